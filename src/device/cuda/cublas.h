// cuBLAS, opened while the program runs: not a dependency. Its results have no order that this
// project defines: it is for the baseline and for comparing speeds.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <mutex>

#include "numerics/dtype.h"

namespace invar::cuda {

// For the GPU that is current when it is made.
class Cublas {
 public:
  Cublas();
  ~Cublas();
  Cublas(const Cublas&) = delete;
  Cublas& operator=(const Cublas&) = delete;

  bool is_there() const { return handle_ != nullptr; }

  // y[rows][n] = x[rows][k] w[n][k]^T (+ y), x and w bf16, y bf16 or f32, sums in f32. Strides in
  // elements.
  struct Product {
    const void *x, *w;
    void* y;
    DType type;  // of y
    int64_t rows, n, k, x_stride, w_stride, y_stride;
    bool accumulate = false;
  };
  void multiply(const Product& p, cudaStream_t stream);

  // Throws Error when this machine has no cuBLAS.
  static void expect();

 private:
  using Gemm = int (*)(void*, int, int, int, int, int, const void*, const void*, int, int,
                       const void*, int, int, const void*, void*, int, int, int, int);
  std::mutex mutex_;  // a handle is for one thread at a time
  void* handle_ = nullptr;
  void* workspace_ = nullptr;
  Gemm gemm_ = nullptr;
  int (*set_stream_)(void*, cudaStream_t) = nullptr;
  int (*set_workspace_)(void*, void*, size_t) = nullptr;
};

}  // namespace invar::cuda
