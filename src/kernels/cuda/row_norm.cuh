// A row in the registers of a block of 256 threads: quarter q of them has elements from q * kPer *
// 64 on, 64 of them a lane of sum64 each.
#pragma once

#include "kernels/cuda/elementwise.cuh"

namespace invar::cuda {

constexpr int kRowThreads = 256;

// bf16 of two numbers, without branches: a product by 1 makes a subnormal a zero of its sign, and
// the conversion makes every NaN the same.
__device__ __forceinline__ uint32_t round_pair(float low, float high) {
  uint32_t pair;
  asm("{.reg .f32 l, h; mul.ftz.f32 l, %1, 0f3F800000; mul.ftz.f32 h, %2, 0f3F800000; "
      "cvt.rn.bf16x2.f32 %0, h, l;}"
      : "=r"(pair)
      : "f"(low), "f"(high));
  return pair;
}
// bf16(x) as f32.
__device__ __forceinline__ float rounded(float x) {
  return __uint_as_float(round_pair(0.0f, x));
}

// The thread's first element; the others are 64 apart.
template <int kPer>
__device__ __forceinline__ int first_of_thread() {
  return static_cast<int>(threadIdx.x) / 64 * (kPer * 64) + static_cast<int>(threadIdx.x) % 64;
}

// Zeros behind the row.
template <int kPer>
__device__ __forceinline__ void load_row(const float* from, int width, float (&to)[kPer]) {
  const int begin = first_of_thread<kPer>();
#pragma unroll
  for (int j = 0; j < kPer; ++j) to[j] = begin + 64 * j < width ? from[begin + 64 * j] : 0.0f;
}

// 1 / sqrt(sum64(x * x) / width + eps): the chain of a lane goes from quarter to quarter. Zeros
// behind the row leave it as it is.
template <int kPer>
__device__ __forceinline__ float inverse_rms(const float (&x)[kPer], float width, float eps,
                                             float* lanes) {
  const int quarter = threadIdx.x / 64, of_64 = threadIdx.x % 64, lane = threadIdx.x % kWarp;
  for (int turn = 0; turn < 4; ++turn) {
    if (turn == quarter) {
      float squares = turn == 0 ? 0.0f : lanes[of_64];
#pragma unroll
      for (int j = 0; j < kPer; ++j) squares = __fmaf_rn(x[j], x[j], squares);
      lanes[of_64] = squares;
    }
    __syncthreads();
  }
  const float sum = __shfl_sync(kAllLanes, halve64(lanes[lane], lanes[lane + kWarp]), 0);
  return 1.0f / math::sqrt(sum / width + eps);
}

// What enters a product. Neighbours exchange values, so that each has pairs of elements, of every
// other 64.
template <int kPer>
__device__ __forceinline__ void write_row(const float (&x)[kPer], bf16_t* row, int padded) {
  const int lane = threadIdx.x % kWarp;
  const bool is_odd = lane % 2;
  const int at = first_of_thread<kPer>() - is_odd + is_odd * 64;
#pragma unroll
  for (int j = 0; j < kPer; j += 2) {
    const float other = __shfl_xor_sync(kAllLanes, is_odd ? x[j] : x[j + 1], 1);
    const float low = is_odd ? other : x[j], high = is_odd ? x[j + 1] : other;
    if (at + 64 * j < padded)
      *reinterpret_cast<uint32_t*>(row + at + 64 * j) = round_pair(low, high);
  }
}

// h = h + z * scale; then what the next product reads of h: its norm, or without a weight h itself.
template <int kPer>
struct RowEnd {
  float* h;  // the row's
  float scale, eps;
  int width;
  bf16_t* out;  // or null: it is not wanted

  __device__ __forceinline__ void operator()(const float (&z)[kPer], float (&y)[kPer],
                                             const float (&weight)[kPer], bool is_normed,
                                             float* lanes) const {
    const int begin = first_of_thread<kPer>();
#pragma unroll
    for (int j = 0; j < kPer; ++j) {
      y[j] = y[j] + z[j] * scale;
      if (begin + 64 * j < width) h[begin + 64 * j] = y[j];
    }
    if (!out) return;
    if (is_normed) {
      const float rs = inverse_rms(y, static_cast<float>(width), eps, lanes);
#pragma unroll
      for (int j = 0; j < kPer; ++j) y[j] = (y[j] * rs) * weight[j];
    }
    write_row(y, out, static_cast<int>(round_up(width, kLeafPad)));
  }
};

}  // namespace invar::cuda
