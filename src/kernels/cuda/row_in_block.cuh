// A norm (numerics 3) of one row by the block that multiplies it: of few rows that takes less than
// waiting for a kernel of its own.
#pragma once

#include "kernels/cuda/normed_products.h"
#include "kernels/cuda/row_norm.cuh"
#include "kernels/cuda/tma.cuh"

namespace invar::cuda {

constexpr int kFoursOfThread = 8;  // that a thread holds in registers, at most
// Whether so many threads can.
constexpr bool norms_row(int64_t width, int threads) {
  return width % 64 == 0 && width <= int64_t{4} * kFoursOfThread * threads;
}
// The outputs of a product with w, as its end counts them.
inline int64_t outputs_of(const Matrix& w) {
  return w.count == 1 ? w.n : w.count * round_up(w.n, kLeafPad);
}
// Of shared memory: the row, and sum64's lanes.
constexpr int norm_bytes(int width) {
  return (width + 64) * static_cast<int>(sizeof(float));
}

// By `threads` threads, when the kernels before are done: `put` gets every four elements as bf16,
// and where they begin.
template <typename Put>
__device__ __forceinline__ void norm_row(const RowNorm& norm, float* staged, int thread,
                                         int threads, const Put& put) {
  constexpr int kOthers = 2;  // a named barrier
  const int fours = norm.width / 4, lane = thread % kWarp;
  float* lanes = staged + norm.width;
  float4 weight[kFoursOfThread], x[kFoursOfThread];
#pragma unroll
  for (int n = 0; n < kFoursOfThread; ++n)
    if (const int i = thread + n * threads; i < fours)
      weight[n] = __ldg(reinterpret_cast<const float4*>(norm.weight) + i);
  wait_for_kernels_before();
#pragma unroll
  for (int n = 0; n < kFoursOfThread; ++n)
    if (const int i = thread + n * threads; i < fours)
      x[n] = reinterpret_cast<const float4*>(norm.x)[i];
#pragma unroll
  for (int n = 0; n < kFoursOfThread; ++n)
    if (const int i = thread + n * threads; i < fours) reinterpret_cast<float4*>(staged)[i] = x[n];
  named_sync(kOthers, threads);
  for (int l = thread; l < 64; l += threads) {
    float sum = 0.0f;
#pragma unroll 16
    for (int i = l; i < norm.width; i += 64) sum = __fmaf_rn(staged[i], staged[i], sum);
    lanes[l] = sum;
  }
  named_sync(kOthers, threads);
  const float sum = __shfl_sync(kAllLanes, halve64(lanes[lane], lanes[lane + kWarp]), 0);
  const float rs = 1.0f / math::sqrt(sum / static_cast<float>(norm.width) + norm.eps);
#pragma unroll
  for (int n = 0; n < kFoursOfThread; ++n)
    if (const int i = thread + n * threads; i < fours)
      put(4 * i, uint2{round_pair((x[n].x * rs) * weight[n].x, (x[n].y * rs) * weight[n].y),
                       round_pair((x[n].z * rs) * weight[n].z, (x[n].w * rs) * weight[n].w)});
}

}  // namespace invar::cuda
