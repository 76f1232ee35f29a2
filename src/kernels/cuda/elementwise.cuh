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

// Two bf16, without subnormals among the values.
__device__ __forceinline__ uint32_t pack_bf16(float low, float high) {
  uint32_t pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}

__device__ __forceinline__ float silu_times(float gate, float up) {
  return (gate / (1.0f + math::exp(-gate))) * up;
}

// Whether silu_of_tame may be asked.
__device__ __forceinline__ bool is_tame_gate(float gate) {
  return fabsf(gate) < 80.0f && fabsf(gate) > 0x1p-70f;
}
// gate / (1 + exp(-gate)) of tame gates, the same bits without branches, so that several are
// computed side by side: no end of exp is met, and the quotient is what division does where
// nothing overflows or vanishes.
__device__ __forceinline__ float silu_of_tame(float gate) {
  const float x = -gate, z = x * math::constants::kLog2eHigh + math::constants::kRound;
  const float n = z - math::constants::kRound;
  float f = __fmaf_rn(x, math::constants::kLog2eHigh, -n);
  f = __fmaf_rn(x, math::constants::kLog2eLow, f);
  constexpr auto kCoefficients = math::constants::kExp2;
  float p = kCoefficients[0];
#pragma unroll
  for (int i = 1; i < 6; ++i) p = __fmaf_rn(p, f, kCoefficients[i]);
  p = __fmaf_rn(p, f, 1.0f);
  // The low bits of z are n.
  const float below = 1.0f + __uint_as_float(__float_as_uint(p) + (__float_as_uint(z) << 23));
  float r;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(below));
  r = __fmaf_rn(r, __fmaf_rn(-below, r, 1.0f), r);
  float q = gate * r;
  q = __fmaf_rn(__fmaf_rn(-below, q, gate), r, q);
  return __fmaf_rn(__fmaf_rn(-below, q, gate), r, q);
}
// silu_times of several, into gate.
template <int kCount>
__device__ __forceinline__ void silu_times_all(float (&gate)[kCount], const float (&up)[kCount]) {
  bool are_tame = true;
#pragma unroll
  for (int i = 0; i < kCount; ++i) are_tame = are_tame && is_tame_gate(gate[i]);
  if (are_tame) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) gate[i] = silu_of_tame(gate[i]) * up[i];
  } else {
#pragma unroll
    for (int i = 0; i < kCount; ++i) gate[i] = silu_times(gate[i], up[i]);
  }
}

// What becomes of a gated pair; any curve but gelu.
__device__ __forceinline__ float gated(Nonlinearity curve, float gate, float up) {
  if (curve == Nonlinearity::silu) return silu_times(gate, up);
  return curve == Nonlinearity::clamped ? math::clamped(gate, up) : math::gelu_tanh(gate) * up;
}
template <int kCount>
__device__ __forceinline__ void gated_all(Nonlinearity curve, float (&gate)[kCount],
                                          const float (&up)[kCount]) {
  if (curve == Nonlinearity::silu) return silu_times_all(gate, up);
#pragma unroll
  for (int i = 0; i < kCount; ++i) gate[i] = gated(curve, gate[i], up[i]);
}

// The end of a sum64 in one warp: lane l brings lanes l and l + 32 of the 64. The result is lane
// 0's.
__device__ __forceinline__ float halve64(float low, float high) {
  float sum = low + high;
  for (int half = 16; half >= 1; half /= 2) sum = sum + __shfl_down_sync(kAllLanes, sum, half);
  return sum;
}

// The same where lane l brings lanes 2l and 2l + 1 of the 64; every lane has the result.
__device__ __forceinline__ float halve64_of_pairs(float even, float odd) {
#pragma unroll
  for (int apart = 16; apart >= 1; apart /= 2) {
    even = even + __shfl_xor_sync(kAllLanes, even, apart);
    odd = odd + __shfl_xor_sync(kAllLanes, odd, apart);
  }
  return even + odd;
}

__device__ __forceinline__ float warp_max(float x) {
  for (int half = 16; half >= 1; half /= 2) {
    const float other = __shfl_xor_sync(kAllLanes, x, half);
    x = x < other ? other : x;
  }
  return x;
}

}  // namespace invar::cuda
