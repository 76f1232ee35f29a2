// A model as a user names it, loaded: what it is, its arithmetic, its weights for every rank.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/function_ref.h"
#include "base/thread_pool.h"
#include "collectives/group.h"
#include "device/device.h"
#include "model/decoder.h"
#include "model/families/families.h"

namespace invar {

struct ModelOptions {
  std::string model;  // a Hugging Face directory, or a preset's name with load_format dummy
  std::string load_format = "auto";      // "auto" (safetensors) or "dummy:SEED"
  std::string arithmetic = "portable";   // "portable", "hopper", "control"
  std::string weights = "auto";          // "auto", or "rounded": f32 and f16 weights become bf16
  std::string instruction_set = "auto";  // "auto", "scalar", "avx2", "avx512", "amx"
  int threads = 0;                       // 0: one per core
  int ranks = 1;                         // tensor-parallel ranks in this process
  std::vector<int> layer_cuts;           // ascending layers at which a pipeline stage begins
};

class Model {
 public:
  explicit Model(const ModelOptions& options, const LoadProgress& progress = {});
  ~Model();

  const ModelOptions& options() const { return options_; }
  const ModelConfig& config() const { return config_; }
  const DecoderSpec& spec() const { return config_.spec; }
  const Arithmetic& arithmetic() const { return arithmetic_; }
  std::string identity() const { return invar::identity(arithmetic_, spec()); }
  const Kernels& kernels() const { return kernels_; }
  const char* instruction_set() const { return kernels_.name; }
  ThreadPool& pool() { return *pool_; }
  Device& device() { return *device_; }
  int ranks() const { return options_.ranks; }
  int64_t weight_bytes() const;
  // Bytes of weights that a step of one row reads: all but an embedding of its own.
  int64_t weight_bytes_per_token() const;
  // Calls visit(address, bytes) for every array of weights; host memory only.
  void for_each_weight(FunctionRef<void(const std::byte*, size_t)> visit) const;

  // A decoder of one rank, computing on `pool`.
  Decoder make_decoder(int rank, ThreadPool& pool);

 private:
  ModelOptions options_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<ThreadPool> pool_;
  ModelConfig config_;
  Arithmetic arithmetic_;
  Kernels kernels_;
  std::vector<std::unique_ptr<DecoderWeights>> weights_;  // per rank
};

}  // namespace invar
