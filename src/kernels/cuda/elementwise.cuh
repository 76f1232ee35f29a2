// Pieces that several kernels share.
#pragma once

#include "kernels/inference.h"
#include "numerics/math.h"

namespace invar::cuda {

constexpr int kWarp = 32;
constexpr uint32_t kAllLanes = 0xffffffff;

__device__ __forceinline__ float value_at(const void* data, DType type, int64_t i) {
  return type == DType::bf16 ? bf16_to_f32(static_cast<const bf16_t*>(data)[i])
                             : static_cast<const float*>(data)[i];
}

__device__ __forceinline__ void store(const Activation& out, int64_t i, float value) {
  if (out.type == DType::bf16)
    static_cast<bf16_t*>(out.data)[i] = f32_to_bf16(value);
  else
    static_cast<float*>(out.data)[i] = value;
}

__device__ __forceinline__ float silu_times(float gate, float up) {
  return (gate / (1.0f + math::exp(-gate))) * up;
}

// The end of a sum64 in one warp: lane l brings lanes l and l + 32 of the 64. The result is lane
// 0's.
__device__ __forceinline__ float halve64(float low, float high) {
  float sum = low + high;
  for (int half = 16; half >= 1; half /= 2) sum = sum + __shfl_down_sync(kAllLanes, sum, half);
  return sum;
}

__device__ __forceinline__ float warp_max(float x) {
  for (int half = 16; half >= 1; half /= 2) {
    const float other = __shfl_xor_sync(kAllLanes, x, half);
    x = x < other ? other : x;
  }
  return x;
}

}  // namespace invar::cuda
