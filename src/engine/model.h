// A model as a user names it, loaded: what is known of it, and its workers.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "engine/sleep.h"
#include "engine/workers.h"

namespace invar {

class Model {
 public:
  // `launch`: where its workers live; see launch_of for what the options name. Throws Error when
  // they cannot be started, or load.
  explicit Model(const ModelOptions& options, const LoadProgress& progress = {},
                 const Launch& launch = launch_threads());
  Model(const Model&) = delete;  // its workers know where its description is
  Model& operator=(const Model&) = delete;

  const ModelOptions& options() const { return description_.options; }
  const ModelConfig& config() const { return description_.config; }
  const DecoderSpec& spec() const { return description_.spec(); }
  const Arithmetic& arithmetic() const { return description_.arithmetic; }
  std::string identity() const {
    return invar::identity(arithmetic(), spec()) + (options().rejection ? "/rejection" : "");
  }
  // Kernels of the CPU, whatever the device: for what the host does with logits.
  const Kernels& host_kernels() const { return description_.host_kernels; }
  // The kind of kernels: a CPU's instruction set, or "cuda".
  const char* instruction_set() const { return workers_->home().kernels().name; }
  ThreadPool& pool() { return *pool_; }
  Workers& workers() { return *workers_; }
  // Where the results of a step are.
  Device& device() const { return workers_->home().device(); }
  AdapterUser adapter_user() const { return options().adapter_user(); }
  int ranks() const { return options().ranks; }
  int stages() const { return description_.stages(); }
  int threads_of_rank() const { return description_.threads_of_rank(pool_->size()); }

  // Bytes in the workers of this process.
  int64_t weight_bytes() const;
  // Every array of weights; on the CPU only.
  std::vector<std::span<const std::byte>> weight_arrays() const;
  // Bytes of weights that a step of one row reads: all but an embedding of its own.
  int64_t weight_bytes_per_token() const;

  // Takes over other weights of the same model; every runner sees them. Nobody may compute
  // meanwhile. Throws Error when a tensor is missing, has another shape or is not finite.
  void reload(const TensorSource& source);
  // The same with the checkpoint in `directory`, which must be of the same shape and type;
  // `options` then name it. Throws Error; the weights are then those of before.
  void take(const std::string& directory);
  // The digest (numerics 8) of such a checkpoint, which takes reading and hashing all of it. Throws
  // as `take` does.
  Digest digest_of(const std::string& directory);
  // Number of the GPU whose memory has all weights; -1: a host, or several.
  int only_gpu() const;
  // A matrix of weights as it lies in that GPU's memory; `source` says what there is. Nobody may
  // change them meanwhile.
  std::vector<std::byte> read_back(const TensorSource& source, const std::string& tensor);
  // Gives memory back while nobody computes: that of keys and values, that of the weights. Memory
  // that is away already stays so. Weights that are not kept are read again.
  void sleep(const Sleep& what);
  // Takes it again; `source`: where weights that were lost are read, null: the options' own. Throws
  // Error where there is not enough; what is not back then is away still.
  void wake(const Wake& what, const TensorSource* source = nullptr);
  // The memory that is away.
  const Sleep& asleep() const { return asleep_; }

 private:
  // A checkpoint of this model elsewhere. Throws Error where it is another model's.
  ModelOptions options_of(const std::string& directory) const;
  std::unique_ptr<TensorSource> open_same_model(const ModelOptions& other) const;
  // `source` becomes the model's tensors.
  Model(const ModelOptions& options, std::unique_ptr<TensorSource> source,
        const LoadProgress& progress, const Launch& launch);
  void take_weights(const ModelOptions& named, const TensorSource& source);

  ModelDescription description_;
  std::unique_ptr<ThreadPool> pool_;
  std::unique_ptr<Workers> workers_;
  Sleep asleep_{.kv_cache = false};
};

}  // namespace invar
