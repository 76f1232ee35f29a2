// Normalising and rotating one head by one warp.
#pragma once

#include "kernels/cuda/elementwise.cuh"

namespace invar::cuda {

// A lane's pairs of a head, i and i + E/2 for i = lane, lane + 32 ..., and what rotates them; only
// constant indices, so that all of it is registers. kHeadDim 0: any up to kLargest.
template <int kHeadDim, int kLargest = 256>
struct HeadPairs {
  static constexpr int kMost = (kHeadDim ? kHeadDim : kLargest) / 2 / kWarp;
  float c[kMost], s[kMost], low_weight[kMost], high_weight[kMost];
  float low[kMost], high[kMost];

  __device__ static bool has(int i, int half) { return kHeadDim || i < half; }

  // What is there before the head is.
  __device__ HeadPairs(const QkvParams& p, int64_t row, const float* norm, int lane) {
    const int half = p.kv.head_dim / 2;
    const int64_t at = int64_t{p.positions[row]} * half;
#pragma unroll
    for (int j = 0; j < kMost; ++j) {
      const int i = lane + j * kWarp;
      if (!has(i, half)) continue;
      c[j] = p.cos[at + i];
      s[j] = p.sin[at + i];
      low_weight[j] = norm ? norm[i] : 1.0f;
      high_weight[j] = norm ? norm[i + half] : 1.0f;
    }
  }

  __device__ void load(const QkvParams& p, const float* in, int lane) {
    const int half = p.kv.head_dim / 2;
#pragma unroll
    for (int j = 0; j < kMost; ++j) {
      const int i = lane + j * kWarp;
      if (!has(i, half)) continue;
      low[j] = in[i];
      high[j] = in[i + half];
    }
  }
  // Normalises (when `is_normed`) and rotates the head that was loaded from `in`.
  __device__ void rotate(const QkvParams& p, const float* in, bool is_normed, int lane) {
    const int e = p.kv.head_dim;
    if (is_normed) {
      const float rs = 1.0f / math::sqrt(squares(in, e, lane) / static_cast<float>(e) + p.norm_eps);
#pragma unroll
      for (int j = 0; j < kMost; ++j) {
        low[j] = (low[j] * rs) * low_weight[j];
        high[j] = (high[j] * rs) * high_weight[j];
      }
    }
#pragma unroll
    for (int j = 0; j < kMost; ++j) {
      const float a = low[j], b = high[j];
      low[j] = __fmaf_rn(a, c[j], -(b * s[j]));
      high[j] = __fmaf_rn(b, c[j], a * s[j]);
    }
  }

  // sum64 of the squares, lanes l and l + 32 of the 64 by lane l.
  __device__ float squares(const float* in, int e, int lane) const {
    float first = 0.0f, second = 0.0f;
    if constexpr (kHeadDim == 128) {
      first = __fmaf_rn(low[0], low[0], first);
      first = __fmaf_rn(high[0], high[0], first);
      second = __fmaf_rn(low[1], low[1], second);
      second = __fmaf_rn(high[1], high[1], second);
    } else {
      for (int i = lane; i < e; i += 64) first = __fmaf_rn(in[i], in[i], first);
      for (int i = lane + 32; i < e; i += 64) second = __fmaf_rn(in[i], in[i], second);
    }
    return __shfl_sync(kAllLanes, halve64(first, second), 0);
  }
};

__device__ __forceinline__ bool is_finite(float x) {
  return (__float_as_uint(x) & 0x7f800000) != 0x7f800000;
}

}  // namespace invar::cuda
