// The products inside a chunk of a recurrent layer (numerics 4.4): up to 16 rows, which lie in
// shared memory, by outputs, in an order. A block of kRecurrentThreads computes one together.
#pragma once

#include "kernels/cuda/elementwise.cuh"
#include "kernels/cuda/mma.cuh"
#include "kernels/recurrent.h"

namespace invar::cuda {

constexpr int kRecurrentThreads = 128, kRecurrentWarps = kRecurrentThreads / kWarp;

__device__ __forceinline__ float as_f32(bf16_t x) {
  return bf16_to_f32(x);
}
__device__ __forceinline__ float as_f32(float x) {
  return x;
}
template <typename T>
__device__ __forceinline__ T round_as(float x) {
  if constexpr (sizeof(T) == 4)
    return x;
  else
    return f32_to_bf16(x);
}
template <typename T>
__device__ __forceinline__ T keep_as(float x) {
  if constexpr (sizeof(T) == 4)
    return f32_to_cached_f32(x);
  else
    return f32_to_cached_bf16(x);
}

// Outputs are rows of `stride` elements, or a packed matrix. Calls use(row, output, dot) for 16
// rows of x and `outputs` outputs, by whichever thread has the dot; `inner` is whole steps of 16.
template <Order order, typename T>
struct ChunkProduct;

template <>
struct ChunkProduct<Order::hopper, bf16_t> {
  template <typename Use>
  __device__ static void multiply(const bf16_t* x, int x_stride, const bf16_t* w, int w_stride,
                                  int outputs, int inner, int, const Use& use) {
    const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp, i = lane / 4, j = lane % 4;
    const auto words = [](const bf16_t* p) { return reinterpret_cast<const uint32_t*>(p); };
    const uint32_t *first = words(x + 2 * i * x_stride),
                   *second = words(x + (2 * i + 1) * x_stride);
    for (int tile = warp * 8; tile < outputs; tile += kRecurrentWarps * 8) {
      const uint32_t* row = words(w + static_cast<int64_t>(tile + i) * w_stride);
      float d[4] = {};
      for (int s = 0; s < inner / 16; ++s) {
        const StepRows a = load_row(first, s, lane), b = load_row(second, s, lane);
        step(d, {{a.b[0], b.b[0], a.b[1], b.b[1]}}, load_row(row, s, lane));
      }
#pragma unroll
      for (int k = 0; k < 4; ++k)
        if (const int n = tile + 2 * j + k % 2; n < outputs) use(2 * i + k / 2, n, d[k] + 0.0f);
    }
  }
};

template <typename T>
struct ChunkProduct<Order::portable, T> {
  // `k`: the inner size that the outputs are packed with.
  template <typename Use>
  __device__ static void multiply(const T* x, int x_stride, const T* w, int, int outputs, int inner,
                                  int k, const Use& use) {
    for (int at = threadIdx.x; at < 16 * outputs; at += kRecurrentThreads) {
      const int m = at / outputs, n = at % outputs;
      const T* row = x + m * x_stride;
      const T* panel =
          w + (sizeof(T) == 4 ? packed_index_f32(n, 0, k) : packed_index_bf16(n, 0, k));
      float sum = 0.0f;
      for (int d = 0; d < inner; d += kLeafPad) {  // steps of 16 may end within a leaf: zeros of x
        float even = 0.0f, odd = 0.0f;
#pragma unroll
        for (int l = d; l < d + kLeafPad; l += 2) {
          even = __fmaf_rn(as_f32(row[l]), as_f32(panel[l * 16]), even);
          odd =
              __fmaf_rn(as_f32(row[l + 1]), as_f32(panel[l * 16 + (sizeof(T) == 4 ? 16 : 1)]), odd);
        }
        sum = sum + (even + odd);
      }
      use(m, n, sum + 0.0f);
    }
  }
};

}  // namespace invar::cuda
