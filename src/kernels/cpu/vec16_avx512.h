// Sixteen f32 lanes on AVX-512, for files of that set; the AVX2 header defines the same names, so
// an algorithm over Vec16 is written once and its sets agree by construction. Every function is one
// IEEE operation per lane unless it says otherwise.
#pragma once

#include <immintrin.h>
#include <cstdint>

namespace invar::cpu {

namespace {

struct Vec16 {
  __m512 v;
};
// Sixteen 32-bit patterns.
struct Bits16 {
  __m512i v;
};
// One truth value per lane.
struct Mask16 {
  __mmask16 v;
};

inline __mmask16 first_lanes(int64_t count) {
  return static_cast<__mmask16>(count >= 16 ? 0xffff : (1u << count) - 1);
}

inline Vec16 splat(float x) {
  return {_mm512_set1_ps(x)};
}
inline Bits16 splat_bits(uint32_t x) {
  return {_mm512_set1_epi32(static_cast<int>(x))};
}
inline Vec16 load(const float* p) {
  return {_mm512_loadu_ps(p)};
}
// The first `count` lanes (all from 16 on), zero in the others, whose memory is not touched.
inline Vec16 load(const float* p, int64_t count) {
  return {_mm512_maskz_loadu_ps(first_lanes(count), p)};
}
inline void store(float* p, Vec16 x) {
  _mm512_storeu_ps(p, x.v);
}
inline void store(float* p, Vec16 x, int64_t count) {
  _mm512_mask_storeu_ps(p, first_lanes(count), x.v);
}
inline Bits16 load_bits(const void* p) {
  return {_mm512_loadu_si512(p)};
}
// Sixteen 16-bit patterns, each in the lower half of its lane.
inline Bits16 load_u16(const uint16_t* p) {
  return {_mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
}
// Sixteen bytes, each in the lowest bits of its lane.
inline Bits16 load_u8(const void* p) {
  return {_mm512_cvtepu8_epi32(_mm_loadu_si128(static_cast<const __m128i*>(p)))};
}
// Sixteen bytes of memory in each four lanes.
inline Bits16 four_times(const void* p) {
  return {_mm512_broadcast_i32x4(_mm_loadu_si128(static_cast<const __m128i*>(p)))};
}
// In each four lanes, which are 16 bytes, byte index & 15 of table for each of index's; from 128 on
// a zero.
inline Bits16 lookup_bytes(Bits16 table, Bits16 index) {
  return {_mm512_shuffle_epi8(table.v, index.v)};
}
// Sixteen f16 numbers, exactly.
inline Vec16 load_f16(const uint16_t* p) {
  return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
}
// f16 in the lower halves of the lanes, the upper ones zero, exactly.
inline Vec16 from_f16(Bits16 x) {
  return {_mm512_cvtph_ps(_mm512_cvtepi32_epi16(x.v))};
}
// table[i] of 16 numbers, for each lane's i.
inline Vec16 lookup(const float* table, Bits16 index) {
  return {_mm512_permutexvar_ps(index.v, _mm512_load_ps(table))};
}
inline void store_bits(void* p, Bits16 x) {
  _mm512_storeu_si512(p, x.v);
}
// The lower halves of the lanes, next to each other.
inline void store_u16(uint16_t* p, Bits16 x) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtepi32_epi16(x.v));
}
// The lower halves of 32 lanes, past the caches where they fill a line: for what is not read soon.
// Such stores have an order only by _mm_sfence.
inline void write_u16(uint16_t* p, Bits16 low, Bits16 high) {
  const __m512i line = _mm512_inserti64x4(_mm512_castsi256_si512(_mm512_cvtepi32_epi16(low.v)),
                                          _mm512_cvtepi32_epi16(high.v), 1);
  if (reinterpret_cast<uintptr_t>(p) % 64 == 0)
    _mm512_stream_si512(reinterpret_cast<__m512i*>(p), line);
  else
    _mm512_storeu_si512(p, line);
}
inline void store_u16(uint16_t* p, Bits16 x, int64_t count) {
  _mm512_mask_cvtepi32_storeu_epi16(p, first_lanes(count), x.v);
}

inline Vec16 operator+(Vec16 a, Vec16 b) {
  return {_mm512_add_ps(a.v, b.v)};
}
inline Vec16 operator-(Vec16 a, Vec16 b) {
  return {_mm512_sub_ps(a.v, b.v)};
}
inline Vec16 operator*(Vec16 a, Vec16 b) {
  return {_mm512_mul_ps(a.v, b.v)};
}
inline Vec16 operator/(Vec16 a, Vec16 b) {
  return {_mm512_div_ps(a.v, b.v)};
}
inline Vec16 fma(Vec16 a, Vec16 b, Vec16 c) {
  return {_mm512_fmadd_ps(a.v, b.v, c.v)};
}
// a * b - c, rounded once.
inline Vec16 fms(Vec16 a, Vec16 b, Vec16 c) {
  return {_mm512_fmsub_ps(a.v, b.v, c.v)};
}
inline Vec16 sqrt(Vec16 x) {
  return {_mm512_sqrt_ps(x.v)};
}
// The larger; b when either is NaN.
inline Vec16 max(Vec16 a, Vec16 b) {
  return {_mm512_max_ps(a.v, b.v)};
}
// The smaller; b when either is NaN.
inline Vec16 min(Vec16 a, Vec16 b) {
  return {_mm512_min_ps(a.v, b.v)};
}

inline Bits16 bits_of(Vec16 x) {
  return {_mm512_castps_si512(x.v)};
}
inline Vec16 value_of(Bits16 x) {
  return {_mm512_castsi512_ps(x.v)};
}
// Integral values as 32-bit integers.
inline Bits16 to_integer(Vec16 x) {
  return {_mm512_cvtps_epi32(x.v)};
}
// Signed integers below 2^24 as f32, exactly.
inline Vec16 from_integer(Bits16 x) {
  return {_mm512_cvtepi32_ps(x.v)};
}
// Lanes 0..7, or 8..15, each twice.
inline Bits16 lower_twice(Bits16 x) {
  const __m512i i = _mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7);
  return {_mm512_permutexvar_epi32(i, x.v)};
}
inline Bits16 upper_twice(Bits16 x) {
  const __m512i i = _mm512_setr_epi32(8, 8, 9, 9, 10, 10, 11, 11, 12, 12, 13, 13, 14, 14, 15, 15);
  return {_mm512_permutexvar_epi32(i, x.v)};
}
// Two numbers of memory in each two lanes.
inline Vec16 eight_times(const float* p) {
  double both;
  __builtin_memcpy(&both, p, sizeof both);
  return {_mm512_castpd_ps(_mm512_set1_pd(both))};
}
// Lanes 1, 0, 3, 2 and so on.
inline Vec16 swap_neighbours(Vec16 x) {
  return {_mm512_permute_ps(x.v, 0xb1)};
}
// Lanes 0, 2, 4 ... of a and then of b.
inline Vec16 even_lanes(Vec16 a, Vec16 b) {
  const __m512i i = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
  return {_mm512_permutex2var_ps(a.v, i, b.v)};
}
// The upper halves of a's lanes and then of b's, next to each other.
inline Bits16 upper_words(Bits16 a, Bits16 b) {
  alignas(64) static constexpr uint16_t kOdd[32] = {1,  3,  5,  7,  9,  11, 13, 15, 17, 19, 21,
                                                    23, 25, 27, 29, 31, 33, 35, 37, 39, 41, 43,
                                                    45, 47, 49, 51, 53, 55, 57, 59, 61, 63};
  return {_mm512_permutex2var_epi16(a.v, _mm512_load_si512(kOdd), b.v)};
}
inline Bits16 operator+(Bits16 a, Bits16 b) {
  return {_mm512_add_epi32(a.v, b.v)};
}
inline Bits16 operator&(Bits16 a, Bits16 b) {
  return {_mm512_and_si512(a.v, b.v)};
}
inline Bits16 operator|(Bits16 a, Bits16 b) {
  return {_mm512_or_si512(a.v, b.v)};
}
inline Bits16 operator<<(Bits16 a, int count) {
  return {_mm512_slli_epi32(a.v, static_cast<unsigned>(count))};
}
inline Bits16 operator>>(Bits16 a, int count) {
  return {_mm512_srli_epi32(a.v, static_cast<unsigned>(count))};
}
inline Bits16 operator>>(Bits16 a, Bits16 count) {
  return {_mm512_srlv_epi32(a.v, count.v)};
}
inline Bits16 min_signed(Bits16 a, Bits16 b) {
  return {_mm512_min_epi32(a.v, b.v)};
}
inline Bits16 max_signed(Bits16 a, Bits16 b) {
  return {_mm512_max_epi32(a.v, b.v)};
}

// Lanes begin <= i < end, for any begin and end.
inline Mask16 lanes(int begin, int end) {
  const __m512i i = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  const __mmask16 from = _mm512_cmpge_epi32_mask(i, _mm512_set1_epi32(begin));
  return {_mm512_mask_cmplt_epi32_mask(from, i, _mm512_set1_epi32(end))};
}
inline Mask16 is_less(Vec16 a, Vec16 b) {
  return {_mm512_cmp_ps_mask(a.v, b.v, _CMP_LT_OQ)};
}
inline Mask16 is_equal(Vec16 a, Vec16 b) {
  return {_mm512_cmp_ps_mask(a.v, b.v, _CMP_EQ_OQ)};
}
inline Mask16 is_greater_signed(Bits16 a, Bits16 b) {
  return {_mm512_cmpgt_epi32_mask(a.v, b.v)};
}
// One bit per lane.
inline uint32_t to_word(Mask16 mask) {
  return mask.v;
}
// a where true, b elsewhere.
inline Vec16 select(Mask16 mask, Vec16 a, Vec16 b) {
  return {_mm512_mask_blend_ps(mask.v, b.v, a.v)};
}
inline Bits16 select(Mask16 mask, Bits16 a, Bits16 b) {
  return {_mm512_mask_blend_epi32(mask.v, b.v, a.v)};
}

// The sixteen lanes halved: lane i plus lane i + 8, then 4, 2, 1 (the end of sum64).
inline float halve(Vec16 x) {
  const __m256 by8 = _mm256_add_ps(_mm512_castps512_ps256(x.v), _mm512_extractf32x8_ps(x.v, 1));
  const __m128 by4 = _mm_add_ps(_mm256_castps256_ps128(by8), _mm256_extractf128_ps(by8, 1));
  const __m128 by2 = _mm_add_ps(by4, _mm_movehl_ps(by4, by4));
  return _mm_cvtss_f32(_mm_add_ss(by2, _mm_movehdup_ps(by2)));
}
// The largest lane; no lane is NaN.
inline float largest(Vec16 x) {
  const __m256 by8 = _mm256_max_ps(_mm512_castps512_ps256(x.v), _mm512_extractf32x8_ps(x.v, 1));
  const __m128 by4 = _mm_max_ps(_mm256_castps256_ps128(by8), _mm256_extractf128_ps(by8, 1));
  const __m128 by2 = _mm_max_ps(by4, _mm_movehl_ps(by4, by4));
  return _mm_cvtss_f32(_mm_max_ss(by2, _mm_movehdup_ps(by2)));
}

// See vec16_math.h. Here n is right for every t, and the scaling flushes and overflows as the ends
// want it: below -126 p * 2^n is subnormal, from 128 on it is 2^128 or more.
inline Vec16 without_integer(Vec16 t, Vec16& n) {
  const __m512 f = _mm512_reduce_ps(t.v, 8);  // to nearest even
  n = {_mm512_sub_ps(t.v, f)};
  return {f};
}
inline Vec16 exp2_end(Vec16, Vec16 n, Vec16 p) {
  return {_mm512_scalef_ps(p.v, n.v)};
}

}  // namespace

}  // namespace invar::cpu
