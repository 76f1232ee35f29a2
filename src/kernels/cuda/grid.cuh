// Grids in which a thread has an element, or a warp a row, and blocks have as many threads always.
#pragma once

#include "kernels/cuda/elementwise.cuh"

namespace invar::cuda {

constexpr int kThreads = 256, kWarps = kThreads / kWarp;

// Blocks that have `each` of the elements.
inline int blocks_of(int64_t elements, int64_t each = kThreads) {
  return static_cast<int>((elements + each - 1) / each);
}
__device__ inline int64_t thread_of_grid() {
  return static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
}
__device__ inline int64_t warp_of_grid() {
  return static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / kWarp;
}

}  // namespace invar::cuda
