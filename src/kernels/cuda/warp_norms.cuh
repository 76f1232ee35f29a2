// Sums and norms of vectors that a warp has, and their backward.
#pragma once

#include "kernels/cuda/elementwise.cuh"

namespace invar::cuda {

// sum64 of at(i) by fma of the pair that it gives, by a warp; every lane has the sum.
template <typename At>
__device__ float dot64(int64_t width, const At& at) {
  float lanes[2] = {};
  for (int64_t i = threadIdx.x % kWarp, half = 0; i < width; i += kWarp, half ^= 1) {
    const float2 pair = at(i);
    lanes[half] = __fmaf_rn(pair.x, pair.y, lanes[half]);
  }
  return __shfl_sync(kAllLanes, halve64(lanes[0], lanes[1]), 0);
}
template <typename At>
__device__ float sum64(int64_t width, const At& at) {
  float lanes[2] = {};
  for (int64_t i = threadIdx.x % kWarp, half = 0; i < width; i += kWarp, half ^= 1)
    lanes[half] = lanes[half] + at(i);
  return __shfl_sync(kAllLanes, halve64(lanes[0], lanes[1]), 0);
}

__device__ inline float inverse_root(float sum, int64_t width, float eps) {
  return 1.0f / math::sqrt(sum / static_cast<float>(width) + eps);
}

// dx of y = (x * rs) * w over one vector, by a warp; use(i, dx_i).
template <typename Use>
__device__ void norm_backward_row(const float* dy, const float* x, const float* weight,
                                  int64_t width, float rs, const Use& use) {
  const float sum = dot64(width, [&](int64_t i) { return float2{dy[i] * weight[i], x[i] * rs}; });
  const float mean = sum / static_cast<float>(width);
  for (int64_t i = threadIdx.x % kWarp; i < width; i += kWarp)
    use(i, __fmaf_rn(-(x[i] * rs), mean, dy[i] * weight[i]) * rs);
}

}  // namespace invar::cuda
