// A model as a user names it, loaded: what it is, its arithmetic, its weights for every rank.
#pragma once

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "base/sha256.h"
#include "base/thread_pool.h"
#include "collectives/group.h"
#include "device/device.h"
#include "model/decoder.h"
#include "model/families/families.h"

namespace invar {

struct ModelOptions {
  std::string model;  // a Hugging Face directory, or a preset's name with load_format dummy
  // "auto" (safetensors), or "dummy:SEED": random weights for a preset, or a directory's
  // config.json
  std::string load_format = "auto";
  std::string arithmetic = "portable";   // "portable", "hopper", "control"
  std::string weights = "auto";          // "auto", or "rounded": f32 and f16 weights become bf16
  std::string device = "cpu";            // "cpu", "cuda" (a rank per GPU, going round) or "cuda:N"
  std::string instruction_set = "auto";  // of the CPU: "auto", "scalar", "avx2", "avx512", "amx"
  int threads = 0;                       // 0: one per core
  int ranks = 1;                         // tensor-parallel ranks
  // Where the ranks are: "threads" of this process, or "mp": processes that this one starts, each
  // with its shard, with their group over sockets. Only on the CPU so far.
  std::string executor = "threads";
  int rank = -1;  // the one rank that this Model holds; -1: all. With "mp" it is 0.
  std::string worker = "/proc/self/exe";  // the invar program that such a process runs
  std::vector<int> layer_cuts;            // ascending layers at which a pipeline stage begins
  // Drafts are accepted by rejection, so that answers depend on them (speculative/rejection.h).
  bool rejection = false;
  bool mtp_module = false;  // keep the module that predicts one token further, where there is one

  bool operator==(const ModelOptions&) const = default;
};

class RankProcesses;

class Model {
 public:
  explicit Model(const ModelOptions& options, const LoadProgress& progress = {});
  ~Model();

  const ModelOptions& options() const { return options_; }
  const ModelConfig& config() const { return config_; }
  const DecoderSpec& spec() const { return config_.spec; }
  const Arithmetic& arithmetic() const { return arithmetic_; }
  std::string identity() const {
    return invar::identity(arithmetic_, spec()) + (options_.rejection ? "/rejection" : "");
  }
  // Kernels of the CPU, whatever the device: for what the host does with logits.
  const Kernels& host_kernels() const { return host_kernels_; }
  // What the kernels are for: a CPU's instruction set, or "cuda".
  const char* instruction_set() const { return kernels_.name; }
  ThreadPool& pool() { return *pool_; }
  // Where a rank's weights, keys, values and activations lie.
  Device& device(int rank = 0) { return *devices_[rank % devices_.size()]; }
  int ranks() const { return options_.ranks; }
  // The processes of the other ranks; null where all ranks are threads, or in such a process.
  RankProcesses* processes() { return processes_.get(); }
  // Ranks on the CPU share the threads out among themselves; each has one at least.
  int threads_of_rank() const {
    return devices_[0]->is_host() ? std::max(1, pool_->size() / ranks()) : 1;
  }
  int64_t weight_bytes() const;
  // Every array of weights, all ranks; on the CPU only.
  std::vector<std::span<const std::byte>> weight_arrays() const;
  // Bytes of weights that a step of one row reads: all but an embedding of its own.
  int64_t weight_bytes_per_token() const;

  // Takes over other weights of the same model; every decoder sees them. Nobody may compute
  // meanwhile. Throws Error when a tensor is missing, has another shape or is not finite.
  void reload(const TensorSource& source);
  // The same with the checkpoint in `directory`, which must be of the same shape and type; returns
  // its digest (numerics 8), and `options` then name it. Throws Error; the weights are then those
  // of before.
  Digest take(const std::string& directory);

  // A decoder of one rank, computing on `pool`: of all layers, or with `exit_layer` of the first so
  // many, with the final norm and the head behind them.
  Decoder make_decoder(int rank, ThreadPool& pool, int exit_layer = 0);

 private:
  void settle_executor();
  bool is_here(int rank) const { return options_.rank < 0 || options_.rank == rank; }
  void write(const TensorSource& source);
  void check_same_model(const ModelConfig& other, const TensorSource& source) const;

  ModelOptions options_;
  std::vector<std::unique_ptr<Device>> devices_;  // ranks go round them
  std::unique_ptr<ThreadPool> pool_;
  ModelConfig config_;
  Arithmetic arithmetic_;
  Kernels kernels_, host_kernels_;
  std::vector<std::unique_ptr<DecoderWeights>> weights_;  // per rank, null for those elsewhere
  std::unique_ptr<RankProcesses> processes_;              // or null
};

// What the options name, from its configuration alone. Throws Error when it cannot be read and
// UsageError when there is no such preset.
ModelConfig read_model_config(const ModelOptions& options);

// The digest of the weights that the options name, as they are stored (numerics 8).
// Reads all of them.
Digest weights_digest(const ModelOptions& options, ThreadPool& pool);

}  // namespace invar
