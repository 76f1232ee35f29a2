// Sixteen f32 lanes as two halves on AVX2: the names of vec16_avx512.h, which says what they mean.
#pragma once

#include <immintrin.h>
#include <cstdint>

namespace invar::cpu {

namespace {

struct Vec16 {
  __m256 lo, hi;
};
struct Bits16 {
  __m256i lo, hi;
};
struct Mask16 {
  __m256 lo, hi;
};

inline Mask16 as_mask(__m256i lo, __m256i hi) {
  return {_mm256_castsi256_ps(lo), _mm256_castsi256_ps(hi)};
}
inline __m256i as_integer(__m256 x) {
  return _mm256_castps_si256(x);
}

// Lanes begin <= i < end, for any begin and end.
inline Mask16 lanes(int begin, int end) {
  const __m256i lo = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  const __m256i hi = _mm256_setr_epi32(8, 9, 10, 11, 12, 13, 14, 15);
  const __m256i before = _mm256_set1_epi32(begin), past = _mm256_set1_epi32(end);
  return as_mask(_mm256_andnot_si256(_mm256_cmpgt_epi32(before, lo), _mm256_cmpgt_epi32(past, lo)),
                 _mm256_andnot_si256(_mm256_cmpgt_epi32(before, hi), _mm256_cmpgt_epi32(past, hi)));
}

inline Vec16 splat(float x) {
  return {_mm256_set1_ps(x), _mm256_set1_ps(x)};
}
inline Bits16 splat_bits(uint32_t x) {
  return {_mm256_set1_epi32(static_cast<int>(x)), _mm256_set1_epi32(static_cast<int>(x))};
}
inline Vec16 load(const float* p) {
  return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)};
}
inline Vec16 load(const float* p, int64_t count) {
  if (count >= 16) return load(p);
  const Mask16 mask = lanes(0, static_cast<int>(count));
  return {_mm256_maskload_ps(p, as_integer(mask.lo)),
          _mm256_maskload_ps(p + 8, as_integer(mask.hi))};
}
inline void store(float* p, Vec16 x) {
  _mm256_storeu_ps(p, x.lo);
  _mm256_storeu_ps(p + 8, x.hi);
}
inline void store(float* p, Vec16 x, int64_t count) {
  if (count >= 16) return store(p, x);
  const Mask16 mask = lanes(0, static_cast<int>(count));
  _mm256_maskstore_ps(p, as_integer(mask.lo), x.lo);
  _mm256_maskstore_ps(p + 8, as_integer(mask.hi), x.hi);
}
inline Bits16 load_bits(const void* p) {
  const __m256i* halves = static_cast<const __m256i*>(p);
  return {_mm256_loadu_si256(halves), _mm256_loadu_si256(halves + 1)};
}
inline void store_bits(void* p, Bits16 x) {
  _mm256_storeu_si256(static_cast<__m256i*>(p), x.lo);
  _mm256_storeu_si256(static_cast<__m256i*>(p) + 1, x.hi);
}
inline Bits16 load_u16(const uint16_t* p) {
  const __m128i* halves = reinterpret_cast<const __m128i*>(p);
  return {_mm256_cvtepu16_epi32(_mm_loadu_si128(halves)),
          _mm256_cvtepu16_epi32(_mm_loadu_si128(halves + 1))};
}
inline Bits16 load_u8(const void* p) {
  const __m128i all = _mm_loadu_si128(static_cast<const __m128i*>(p));
  return {_mm256_cvtepu8_epi32(all), _mm256_cvtepu8_epi32(_mm_srli_si128(all, 8))};
}
inline Bits16 four_times(const void* p) {
  const __m256i twice =
      _mm256_broadcastsi128_si256(_mm_loadu_si128(static_cast<const __m128i*>(p)));
  return {twice, twice};
}
inline Bits16 lookup_bytes(Bits16 table, Bits16 index) {
  return {_mm256_shuffle_epi8(table.lo, index.lo), _mm256_shuffle_epi8(table.hi, index.hi)};
}
inline Vec16 load_f16(const uint16_t* p) {
  const __m128i* halves = reinterpret_cast<const __m128i*>(p);
  return {_mm256_cvtph_ps(_mm_loadu_si128(halves)), _mm256_cvtph_ps(_mm_loadu_si128(halves + 1))};
}
// f16 in the lower halves of the lanes, the upper ones zero, exactly.
inline Vec16 from_f16(Bits16 x) {
  const auto half = [](__m256i v) {
    const __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(v, v), 0xd8);
    return _mm256_cvtph_ps(_mm256_castsi256_si128(packed));
  };
  return {half(x.lo), half(x.hi)};
}
// table[i] of 16 numbers, for each lane's i.
inline Vec16 lookup(const float* table, Bits16 index) {
  const __m256 lo = _mm256_load_ps(table), hi = _mm256_load_ps(table + 8);
  const auto half = [&](__m256i i) {
    return _mm256_blendv_ps(_mm256_permutevar8x32_ps(lo, i), _mm256_permutevar8x32_ps(hi, i),
                            _mm256_castsi256_ps(_mm256_slli_epi32(i, 28)));
  };
  return {half(index.lo), half(index.hi)};
}
inline void store_u16(uint16_t* p, Bits16 x) {
  const __m256i low = _mm256_set1_epi32(0xffff);
  const __m256i packed =
      _mm256_packus_epi32(_mm256_and_si256(x.lo, low), _mm256_and_si256(x.hi, low));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm256_permute4x64_epi64(packed, 0xd8));
}
// The lower halves of 32 lanes; AVX-512 writes them past the caches.
inline void write_u16(uint16_t* p, Bits16 low, Bits16 high) {
  store_u16(p, low);
  store_u16(p + 16, high);
}
inline void store_u16(uint16_t* p, Bits16 x, int64_t count) {
  if (count >= 16) return store_u16(p, x);
  alignas(32) uint16_t all[16];
  store_u16(all, x);
  for (int64_t i = 0; i < count; ++i) p[i] = all[i];
}

inline Vec16 operator+(Vec16 a, Vec16 b) {
  return {_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)};
}
inline Vec16 operator-(Vec16 a, Vec16 b) {
  return {_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)};
}
inline Vec16 operator*(Vec16 a, Vec16 b) {
  return {_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)};
}
inline Vec16 operator/(Vec16 a, Vec16 b) {
  return {_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi)};
}
inline Vec16 fma(Vec16 a, Vec16 b, Vec16 c) {
  return {_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
}
inline Vec16 fms(Vec16 a, Vec16 b, Vec16 c) {
  return {_mm256_fmsub_ps(a.lo, b.lo, c.lo), _mm256_fmsub_ps(a.hi, b.hi, c.hi)};
}
inline Vec16 sqrt(Vec16 x) {
  return {_mm256_sqrt_ps(x.lo), _mm256_sqrt_ps(x.hi)};
}
inline Vec16 max(Vec16 a, Vec16 b) {
  return {_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi)};
}
// The smaller; b when either is NaN.
inline Vec16 min(Vec16 a, Vec16 b) {
  return {_mm256_min_ps(a.lo, b.lo), _mm256_min_ps(a.hi, b.hi)};
}

inline Bits16 bits_of(Vec16 x) {
  return {as_integer(x.lo), as_integer(x.hi)};
}
inline Vec16 value_of(Bits16 x) {
  return {_mm256_castsi256_ps(x.lo), _mm256_castsi256_ps(x.hi)};
}
inline Bits16 to_integer(Vec16 x) {
  return {_mm256_cvtps_epi32(x.lo), _mm256_cvtps_epi32(x.hi)};
}
inline Vec16 from_integer(Bits16 x) {
  return {_mm256_cvtepi32_ps(x.lo), _mm256_cvtepi32_ps(x.hi)};
}
inline Bits16 eight_twice(__m256i x) {
  return {_mm256_permutevar8x32_epi32(x, _mm256_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3)),
          _mm256_permutevar8x32_epi32(x, _mm256_setr_epi32(4, 4, 5, 5, 6, 6, 7, 7))};
}
inline Bits16 lower_twice(Bits16 x) {
  return eight_twice(x.lo);
}
inline Bits16 upper_twice(Bits16 x) {
  return eight_twice(x.hi);
}
inline Vec16 eight_times(const float* p) {
  double both;
  __builtin_memcpy(&both, p, sizeof both);
  const __m256 four = _mm256_castpd_ps(_mm256_set1_pd(both));
  return {four, four};
}
inline Vec16 swap_neighbours(Vec16 x) {
  return {_mm256_permute_ps(x.lo, 0xb1), _mm256_permute_ps(x.hi, 0xb1)};
}
inline Vec16 even_lanes(Vec16 a, Vec16 b) {
  const auto half = [](Vec16 x) {
    const __m256 even = _mm256_shuffle_ps(x.lo, x.hi, 0x88);
    return _mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(even), 0xd8));
  };
  return {half(a), half(b)};
}
inline Bits16 upper_words(Bits16 a, Bits16 b) {
  const auto half = [](Bits16 x) {
    const __m256i words =
        _mm256_packus_epi32(_mm256_srli_epi32(x.lo, 16), _mm256_srli_epi32(x.hi, 16));
    return _mm256_permute4x64_epi64(words, 0xd8);
  };
  return {half(a), half(b)};
}
inline Bits16 operator+(Bits16 a, Bits16 b) {
  return {_mm256_add_epi32(a.lo, b.lo), _mm256_add_epi32(a.hi, b.hi)};
}
inline Bits16 operator&(Bits16 a, Bits16 b) {
  return {_mm256_and_si256(a.lo, b.lo), _mm256_and_si256(a.hi, b.hi)};
}
inline Bits16 operator|(Bits16 a, Bits16 b) {
  return {_mm256_or_si256(a.lo, b.lo), _mm256_or_si256(a.hi, b.hi)};
}
inline Bits16 operator<<(Bits16 a, int count) {
  return {_mm256_slli_epi32(a.lo, count), _mm256_slli_epi32(a.hi, count)};
}
inline Bits16 operator>>(Bits16 a, int count) {
  return {_mm256_srli_epi32(a.lo, count), _mm256_srli_epi32(a.hi, count)};
}
inline Bits16 operator>>(Bits16 a, Bits16 count) {
  return {_mm256_srlv_epi32(a.lo, count.lo), _mm256_srlv_epi32(a.hi, count.hi)};
}
inline Bits16 min_signed(Bits16 a, Bits16 b) {
  return {_mm256_min_epi32(a.lo, b.lo), _mm256_min_epi32(a.hi, b.hi)};
}
inline Bits16 max_signed(Bits16 a, Bits16 b) {
  return {_mm256_max_epi32(a.lo, b.lo), _mm256_max_epi32(a.hi, b.hi)};
}

inline Mask16 is_less(Vec16 a, Vec16 b) {
  return {_mm256_cmp_ps(a.lo, b.lo, _CMP_LT_OQ), _mm256_cmp_ps(a.hi, b.hi, _CMP_LT_OQ)};
}
inline Mask16 is_equal(Vec16 a, Vec16 b) {
  return {_mm256_cmp_ps(a.lo, b.lo, _CMP_EQ_OQ), _mm256_cmp_ps(a.hi, b.hi, _CMP_EQ_OQ)};
}
inline Mask16 is_greater_signed(Bits16 a, Bits16 b) {
  return as_mask(_mm256_cmpgt_epi32(a.lo, b.lo), _mm256_cmpgt_epi32(a.hi, b.hi));
}
inline uint32_t to_word(Mask16 mask) {
  return static_cast<uint32_t>(_mm256_movemask_ps(mask.lo) | _mm256_movemask_ps(mask.hi) << 8);
}
inline Vec16 select(Mask16 mask, Vec16 a, Vec16 b) {
  return {_mm256_blendv_ps(b.lo, a.lo, mask.lo), _mm256_blendv_ps(b.hi, a.hi, mask.hi)};
}
inline Bits16 select(Mask16 mask, Bits16 a, Bits16 b) {
  return bits_of(select(mask, value_of(a), value_of(b)));
}

inline float halve(Vec16 x) {
  const __m256 by8 = _mm256_add_ps(x.lo, x.hi);
  const __m128 by4 = _mm_add_ps(_mm256_castps256_ps128(by8), _mm256_extractf128_ps(by8, 1));
  const __m128 by2 = _mm_add_ps(by4, _mm_movehl_ps(by4, by4));
  return _mm_cvtss_f32(_mm_add_ss(by2, _mm_movehdup_ps(by2)));
}
inline float largest(Vec16 x) {
  const __m256 by8 = _mm256_max_ps(x.lo, x.hi);
  const __m128 by4 = _mm_max_ps(_mm256_castps256_ps128(by8), _mm256_extractf128_ps(by8, 1));
  const __m128 by2 = _mm_max_ps(by4, _mm_movehl_ps(by4, by4));
  return _mm_cvtss_f32(_mm_max_ss(by2, _mm_movehdup_ps(by2)));
}

}  // namespace

}  // namespace invar::cpu
