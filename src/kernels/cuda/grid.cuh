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
__device__ inline bf16_t* row_of(const Activation& x, int64_t t) {
  return static_cast<bf16_t*>(x.data) + t * x.stride;
}

// Rows whose elements threads have four by four: blocks for them, and a thread's row and first
// element, which may stand behind the row.
constexpr int kFour = 4;
inline int fours_of(int64_t rows, int64_t width) {
  return static_cast<int>(rows) * blocks_of(width, kFour * kThreads);
}
struct FourOfRow {
  int64_t t, first;
  __device__ explicit FourOfRow(int64_t width) {
    const auto pieces = static_cast<uint32_t>((width + kFour * kThreads - 1) / (kFour * kThreads));
    t = blockIdx.x / pieces;
    first = (blockIdx.x % pieces * kThreads + threadIdx.x) * kFour;
  }
};
// Whether rows `stride` elements apart may be read four by four.
inline bool is_by_four(int64_t width, int64_t stride) {
  return width % kFour == 0 && stride % kFour == 0;
}
__device__ inline void load_four(const float* from, float (&x)[kFour]) {
  const float4 four = *reinterpret_cast<const float4*>(from);
  x[0] = four.x, x[1] = four.y, x[2] = four.z, x[3] = four.w;
}
__device__ inline void store_four(bf16_t* to, const float (&x)[kFour]) {
  const auto pair = [](float low, float high) {
    return f32_to_bf16(low) | static_cast<uint32_t>(f32_to_bf16(high)) << 16;
  };
  *reinterpret_cast<uint2*>(to) = {pair(x[0], x[1]), pair(x[2], x[3])};
}

__device__ inline int64_t warp_of_grid() {
  return static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / kWarp;
}

}  // namespace invar::cuda
