// What attention of order `hopper` over a cache in rows (CacheLayout::rows) shares.
#pragma once

#include <limits>

#include "kernels/cuda/cuda_kernels.h"
#include "kernels/cuda/elementwise.cuh"
#include "kernels/cuda/tma.cuh"

namespace invar::cuda {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

// Whether some table may have many rows, as far as the host knows.
inline bool may_have_many_rows(const AttentionParams& p) {
  return p.rows >= kManyRows && p.most_rows >= kManyRows;
}

// Whether row t's table has many rows; these stand together.
__device__ __forceinline__ bool has_many_rows(const AttentionParams& p, int64_t t) {
  const int32_t table = p.table_of[t];
  int count = 1;
  for (int64_t i = t - 1; i >= 0 && count < kManyRows && p.table_of[i] == table; --i) ++count;
  for (int64_t i = t + 1; i < p.rows && count < kManyRows && p.table_of[i] == table; ++i) ++count;
  return count >= kManyRows;
}

// exp2 for t < 128.
__device__ __forceinline__ float exp2_below_128(float t) {
  const float n = (t + math::constants::kRound) - math::constants::kRound;
  const float value = math::exp2_of_parts(n, t - n);
  return t < -126.0f ? 0.0f : value;
}

// half_tanh(x) of numerics 5.1 without branches, so that several are computed side by side: beyond
// 24 it is 1 of x's sign, and below no end of exp is met and the quotient is what division does.
__device__ __forceinline__ float capped(float x) {
  x = x > 24.0f ? 24.0f : x;
  x = x < -24.0f ? -24.0f : x;  // a NaN stays one
  const float z = x * math::constants::kLog2eHigh + math::constants::kRound;
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
  float q = 2.0f * r;
  q = __fmaf_rn(__fmaf_rn(-below, q, 2.0f), r, q);
  return 1.0f - __fmaf_rn(__fmaf_rn(-below, q, 2.0f), r, q);
}

// A head's sink joins M and L (numerics 4.1, step 5); returns the factor of O.
__device__ __forceinline__ float join_sink(const float* sinks, int head, float max, float& sum) {
  const float m = sinks[head] * math::constants::kLog2eHigh, both = fmaxf(max, m);
  const float a = exp2_below_128(max - both);
  sum = __fmaf_rn(sum, a, exp2_below_128(m - both));
  return a;
}

__device__ __forceinline__ uint32_t pack_any_bf16(float low, float high) {
  return f32_to_bf16(low) | static_cast<uint32_t>(f32_to_bf16(high)) << 16;
}

// Keys or values as TMA reads them: {e, slot, block * G + head}, boxes of 64 x a block.
CUtensorMap cache_map(const KvLayer& kv, const bf16_t* data);
// Queries as tiles read them: {e, head, row}, boxes of 64 x 64 rows.
CUtensorMap tile_queries(const AttentionParams& p);

// Attention of the rows whose tables have many rows, and of the others.
bool tiles_can(int head_dim);
// `max` and `sum` as PartialAttentionParams has them, of the rows whose tables have many rows.
void attend_tiles(const AttentionParams& p, const Execution& on, float* max = nullptr,
                  float* sum = nullptr);
bool single_can(int head_dim);
// It reads slots before the kernels before it are done, but none that a row of the same call may
// write: a sequence's rows have consecutive positions, so those are at most p.rows - 1 before a
// row's own.
void attend_single(const AttentionParams& p, const Execution& on);
// Whether it reads what is stored in 8 bits as it lies, and not what load_slots makes of it.
constexpr bool single_reads_stored(const KvLayer& kv) {
  return kv.stored.data && (kv.head_dim == 64 || kv.head_dim == 128);
}
void attend_single_stored(const AttentionParams& p, const Execution& on);
// Whether what rows share is computed for all of them at once, and that, before attend_single,
// which then begins behind it.
bool shared_can(const AttentionParams& p);
inline AttentionParams without_shared(AttentionParams p) {
  p.num_shared = 0;
  return p;
}
void attend_shared(const AttentionParams& p, const Execution& on);
// With the rotation before it, of rows that read no other's key or value. With few rows, whose
// splits are shared out, a kernel for the rotation is faster: every block would rotate.
bool single_rotates(const AttentionParams& p, const Execution& on);
void attend_single_rotated(const RotatedAttentionParams& p, const Execution& on);
// The baseline's: not split by split, but in as many pieces as keep the GPU busy.
void attend_single_by_count(const AttentionParams& p, const Execution& on);

// The zeros behind row t of the output, by some threads of a block.
__device__ __forceinline__ void clear_padding(const AttentionParams& p, int64_t t, int thread,
                                              int threads) {
  const int64_t width = int64_t{p.heads} * p.kv.head_dim;
  for (int64_t i = width + thread; i < round_up(width, kLeafPad); i += threads)
    static_cast<bf16_t*>(p.out.data)[t * p.out.stride + i] = 0;
}

}  // namespace invar::cuda
