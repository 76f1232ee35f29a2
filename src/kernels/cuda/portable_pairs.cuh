// Operands of products of order `portable` on CUDA cores: pairs of neighbouring elements as f32.
#pragma once

#include "kernels/layout.h"

namespace invar::cuda {

// Elements 2j and 2j + 1 of one output of a packed panel; `panel` points to the panel.
__device__ __forceinline__ float2 weight_pair(const bf16_t* panel, int64_t pair, int output) {
  const uint32_t word = __ldg(reinterpret_cast<const uint32_t*>(panel) + pair * 16 + output);
  return {__uint_as_float(word << 16), __uint_as_float(word & 0xffff0000)};
}
__device__ __forceinline__ float2 weight_pair(const float* panel, int64_t pair, int output) {
  return {__ldg(panel + pair * 32 + output), __ldg(panel + pair * 32 + 16 + output)};
}

__device__ __forceinline__ float2 row_pair(const bf16_t* row, int64_t pair) {
  const uint32_t word = __ldg(reinterpret_cast<const uint32_t*>(row) + pair);
  return {__uint_as_float(word << 16), __uint_as_float(word & 0xffff0000)};
}
__device__ __forceinline__ float2 row_pair(const float* row, int64_t pair) {
  return __ldg(reinterpret_cast<const float2*>(row) + pair);
}

}  // namespace invar::cuda
