// What a warpgroup of attention_tiles.cu makes of its rows' scores: probabilities and the running
// maximum and sum (numerics 4). Scores lie as wgmma_steps.cuh says.
#pragma once

#include "kernels/cuda/attention_rows.cuh"

namespace invar::cuda {

// The state of the two rows that a lane has a part of, and what the last split does to it.
struct RowState {
  float max[2], sum[2];  // M and L
  float a[2], b[2];
  float zero[2];  // -0 where the split is not merged: then O stays as it is, a zero's sign, too

  // A head's sink is one more split, whose values are zeros.
  __device__ __forceinline__ void join(const float* sinks, int head) {
#pragma unroll
    for (int r = 0; r < 2; ++r) a[r] = join_sink(sinks, head, max[r], sum[r]);
  }
};

__device__ __forceinline__ float quad_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(kAllLanes, x, 1));
  return fmaxf(x, __shfl_xor_sync(kAllLanes, x, 2));
}

// The largest score of both rows. Bit patterns of floats that are not negative compare as integers,
// three at a time and beside the floating-point pipe; `lowest` is the lowest negative score, or 0.
__device__ __forceinline__ void largest(const float (&s)[64], float (&top)[2], float (&lowest)[2]) {
  int high[4];
  unsigned low[4];
#pragma unroll
  for (int q = 0; q < 4; ++q) {
    const int at = q % 2 * 2 + q / 2 * 4;
    high[q] = max(__float_as_int(s[at]), __float_as_int(s[at + 1]));
    low[q] = max(__float_as_uint(s[at]), __float_as_uint(s[at + 1]));
  }
#pragma unroll
  for (int x = 2; x < 16; x += 2)
#pragma unroll
    for (int q = 0; q < 4; ++q) {
      const int at = 4 * x + q % 2 * 2 + q / 2 * 4;
      high[q] = __vimax3_s32(high[q], __float_as_int(s[at]), __float_as_int(s[at + 1]));
      low[q] = __vimax3_u32(low[q], __float_as_uint(s[at]), __float_as_uint(s[at + 1]));
    }
  bool is_negative = false;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    int h = max(high[r], high[r + 2]);
    const unsigned l = max(low[r], low[r + 2]);
    h = max(h, __shfl_xor_sync(kAllLanes, h, 1));
    h = max(h, __shfl_xor_sync(kAllLanes, h, 2));
    top[r] = __int_as_float(h);
    lowest[r] = static_cast<int>(l) < 0 ? __uint_as_float(l) : 0.0f;
    is_negative = is_negative || h < 0;
  }
  if (!__any_sync(kAllLanes, is_negative)) return;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    float most = fmaxf(s[2 * r], s[2 * r + 1]);
#pragma unroll
    for (int x = 1; x < 16; ++x) most = fmaxf(most, fmaxf(s[4 * x + 2 * r], s[4 * x + 2 * r + 1]));
    top[r] = quad_max(most);
  }
}

// t = exp2(t) of eight arguments below 128, so that the operations of one do not wait for each
// other. kClamp: some may be below -126, where the result is 0.
template <bool kClamp>
__device__ __forceinline__ void exponentials_of(float (&t)[8]) {
  float z[8], y[8];
  if constexpr (kClamp) {
#pragma unroll
    for (int q = 0; q < 8; ++q) t[q] = t[q] < -126.0f ? -127.0f : t[q];
  }
#pragma unroll
  for (int q = 0; q < 8; ++q)
    asm volatile("add.rn.ftz.f32 %0, %1, 0f4B400000;" : "=f"(z[q]) : "f"(t[q]));
#pragma unroll
  for (int q = 0; q < 8; ++q)
    asm volatile("sub.rn.ftz.f32 %0, %1, 0f4B400000;" : "=f"(y[q]) : "f"(z[q]));
#pragma unroll
  for (int q = 0; q < 8; ++q) asm volatile("sub.rn.ftz.f32 %0, %0, %1;" : "+f"(t[q]) : "f"(y[q]));
  constexpr auto kCoefficients = math::constants::kExp2;
#pragma unroll
  for (int q = 0; q < 8; ++q)
    asm volatile("fma.rn.ftz.f32 %0, %1, %2, %3;"
                 : "=f"(y[q])
                 : "f"(t[q]), "f"(kCoefficients[0]), "f"(kCoefficients[1]));
#pragma unroll
  for (int i = 2; i <= 6; ++i)
#pragma unroll
    for (int q = 0; q < 8; ++q)
      asm volatile("fma.rn.ftz.f32 %0, %0, %1, %2;"
                   : "+f"(y[q])
                   : "f"(t[q]), "f"(i < 6 ? kCoefficients[i < 6 ? i : 0] : 1.0f));
      // The low bits of z are the integer part; with -127 and t = 0 the result is +0.
#pragma unroll
  for (int q = 0; q < 8; ++q)
    t[q] = __uint_as_float(__float_as_uint(y[q]) + (__float_as_uint(z[q]) << 23));
}

// s = exp2(fma(s, c, minus_max)) for arguments below 128.
template <bool kClamp>
__device__ __forceinline__ void exponentials(float (&s)[64], float c, const float (&minus_max)[2]) {
#pragma unroll
  for (int x = 0; x < 64; x += 8) {
    float t[8];
#pragma unroll
    for (int q = 0; q < 8; ++q) t[q] = __fmaf_rn(s[x + q], c, minus_max[q / 2 % 2]);
    exponentials_of<kClamp>(t);
#pragma unroll
    for (int q = 0; q < 8; ++q) s[x + q] = t[q];
  }
}

// sum64 of both rows' 128 probabilities (numerics 3).
__device__ __forceinline__ void sums(const float (&p)[64], float (&sum)[2]) {
  float s[4][4];
#pragma unroll
  for (int x = 0; x < 4; ++x)
#pragma unroll
    for (int q = 0; q < 4; ++q)
      s[x][q] = (p[4 * x + q] + p[4 * (x + 8) + q]) + (p[4 * (x + 4) + q] + p[4 * (x + 12) + q]);
#pragma unroll
  for (int q = 0; q < 4; ++q) {
    s[0][q] = (s[0][q] + s[2][q]) + (s[1][q] + s[3][q]);
    s[0][q] = s[0][q] + __shfl_xor_sync(kAllLanes, s[0][q], 2);
    s[0][q] = s[0][q] + __shfl_xor_sync(kAllLanes, s[0][q], 1);
  }
  sum[0] = s[0][0] + s[0][1];
  sum[1] = s[0][2] + s[0][3];
}

struct RowRange {
  int first[2], last[2];  // valid slots of the lane's two rows
};

// From the scores of the split at `base` to its probabilities, in place, and the state after it.
__device__ __forceinline__ void probabilities(float (&s)[64], int base, const RowRange& range,
                                              bool is_partial, int lane, ScoreScale scale,
                                              RowState& state) {
  // What the tensor cores wrote is looked at as integers only from here on.
#pragma unroll
  for (int x = 0; x < 64; ++x) asm volatile("" : "+f"(s[x])::"memory");
  const float c = scale.factor;
  if (scale.inner > 0) {
#pragma unroll
    for (float& x : s) x = capped(x * scale.inner);
  }
  bool has_slot[2] = {true, true};
  if (is_partial) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      has_slot[r] = range.last[r] >= base && range.first[r] < base + kSplitSlots;
      const int last = range.last[r] - base - lane % 4 * 2,
                first = range.first[r] - base - lane % 4 * 2;
#pragma unroll
      for (int x = 0; x < 16; ++x) {
        if (x * 8 > last || x * 8 < first) s[4 * x + 2 * r] = kMinusInfinity;
        if (x * 8 + 1 > last || x * 8 + 1 < first) s[4 * x + 2 * r + 1] = kMinusInfinity;
      }
    }
  }
  float top[2], lowest[2], max[2], minus[2];
  largest(s, top, lowest);
  bool is_low = false, is_odd = false;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    max[r] = top[r] * c;
    minus[r] = has_slot[r] ? -max[r] : 0.0f;
    is_low = is_low || __fmaf_rn(lowest[r], c, minus[r]) < -126.0f;
    // Below 2^29 the rounding of max cannot make an argument of 128; infinities and NaN are not.
    is_odd = is_odd || (has_slot[r] && !(fabsf(max[r]) < 0x1p29f));
  }
  if (__any_sync(kAllLanes, is_odd)) {
#pragma unroll
    for (int x = 0; x < 64; ++x) s[x] = math::exp2(__fmaf_rn(s[x], c, minus[x / 2 % 2]));
  } else if (__any_sync(kAllLanes, is_low)) {
    exponentials<true>(s, c, minus);
  } else {
    exponentials<false>(s, c, minus);
  }
  float sum[2];
  sums(s, sum);
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const float e = exp2_below_128(-fabsf(state.max[r] - max[r]));
    const bool is_higher = max[r] > state.max[r];
    state.a[r] = is_higher && has_slot[r] ? e : 1.0f;
    state.b[r] = !has_slot[r] ? -0.0f : is_higher ? 1.0f : e;
    state.zero[r] = has_slot[r] ? 0.0f : -0.0f;
    state.max[r] = has_slot[r] ? fmaxf(state.max[r], max[r]) : state.max[r];
    state.sum[r] = __fmaf_rn(state.sum[r], state.a[r], sum[r] * state.b[r]);
  }
}

// O = O * a + o * b. The inner fma is the product, and makes a first split's o what it sets O to.
template <int kValues>
__device__ __forceinline__ void merge(float (&out)[kValues], const float (&split)[kValues],
                                      const RowState& state) {
#pragma unroll
  for (int x = 0; x < kValues; ++x) {
    const int r = x / 2 % 2;
    out[x] = __fmaf_rn(out[x], state.a[r], __fmaf_rn(split[x], state.b[r], state.zero[r]));
  }
}

// O = O * a + 0.
template <int kValues>
__device__ __forceinline__ void shrink(float (&out)[kValues], const RowState& state) {
#pragma unroll
  for (int x = 0; x < kValues; ++x) out[x] = __fmaf_rn(out[x], state.a[x / 2 % 2], 0.0f);
}

}  // namespace invar::cuda
