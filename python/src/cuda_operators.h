// The engine's operations on tensors of a GPU, in the caller's stream: the other back end of
// PyTorch's operators (python/invar/torch/cuda.py). Nothing here allocates or waits, so that all of
// it can be recorded in a graph; what an operation needs besides its result is the caller's memory.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "device/cuda_device.h"
#include "kernels/cuda/torch_operators.h"
#include "kernels/training.h"

namespace invar::python {

// Memory [begin, begin + bytes).
struct Range {
  const void* begin = nullptr;
  size_t bytes = 0;
};

// The backward of attention over whole sequences, whose keys and values are written to the cache
// again.
struct CudaAttentionBackward {
  QkvParams rotation;
  AttentionBackwardParams attention;  // its max and sum are made
  QkvBackwardParams heads;
};

// Attention over a cache: `of.kv` is where rotation writes to.
struct CudaAttention {
  QkvParams rotation;
  AttentionParams of;
};

class CudaOperators {
 public:
  // Throws Error where there is no such GPU, or where its tensor cores do not compute the order.
  CudaOperators(const std::string& order, int gpu);

  int gpu() const { return gpu_; }
  const Kernels& kernels() const { return kernels_; }

  // Streams are CUDA's handles.
  void matmul(uintptr_t stream, const MatmulParams& p);
  void gated_matmul(uintptr_t stream, const GatedMatmulParams& p);
  void rms_norm(uintptr_t stream, const RmsNormParams& p);
  // Where a key or a value is not finite the result is NaN.
  void attention(uintptr_t stream, const CudaAttention& p);
  // Operations whose kernels wait for all that is before them.
  void round(uintptr_t stream, const RoundParams& p);
  void embed(uintptr_t stream, const EmbedParams& p);
  void rope(uintptr_t stream, const RotateHeadsParams& p);
  void log_sum_exp(uintptr_t stream, const LogitsParams& p);
  void gate(uintptr_t stream, const cuda::Values& g, const cuda::Values& u, int64_t count,
            Nonlinearity curve, bf16_t* out);
  void rounded(uintptr_t stream, const cuda::Values& x, int64_t count, float* out);
  void place_rows(uintptr_t stream, const cuda::PlacesParams& p);
  void mean(uintptr_t stream, const float* x, int64_t rows, int64_t width, float* out);

  // Operators' backwards. All of their kernels wait for the kernels before them.
  const TrainingKernels& training() const { return training_; }
  template <typename Params>
  void train(uintptr_t stream, Operation<Params> TrainingKernels::*operation, const Params& p) {
    wait_and_run(stream, training_.*operation, p);
  }
  void gate_gradients(uintptr_t stream, const cuda::GateGradients& p);
  void attention_backward(uintptr_t stream, const CudaAttentionBackward& p);

 private:
  // Kernels begin before the ones before them end, and read what none of an engine's kernels writes
  // until then: weights. Here a product may be another one's weights. So what was written is kept,
  // stream by stream, and whoever reads it early is put behind a kernel that waits for everything.
  class EarlyWrites {
   public:
    bool meet(uintptr_t stream, const std::vector<Range>& reads) const;
    void add(uintptr_t stream, const Range& written) { of_[stream].push_back(written); }
    void forget(uintptr_t stream) { of_.erase(stream); }

   private:
    static constexpr size_t kMost = 64;
    std::map<uintptr_t, std::vector<Range>> of_;
  };

  template <typename Work>
  void on(uintptr_t stream, Work work) {
    const std::lock_guard lock(mutex_);
    const std::unique_ptr<Stream> borrowed = borrow_cuda_stream(*device_, stream);
    work(Execution{.device = device_.get(), .stream = borrowed.get()});
  }
  template <typename Params>
  void wait_and_run(uintptr_t stream, Operation<Params> operation, const Params& p) {
    on(stream, [&](const Execution& execution) {
      operation(p, execution);
      early_.forget(stream);
    });
  }
  void wait_if_written(uintptr_t stream, const std::vector<Range>& reads, const Execution& on);

  int gpu_;
  std::unique_ptr<Device> device_;
  Kernels kernels_;
  TrainingKernels training_;
  std::mutex mutex_;
  EarlyWrites early_;
};

}  // namespace invar::python
