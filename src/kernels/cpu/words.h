// Moving bf16 between the layouts of layout.h, for the baseline set. Pairs of bf16 are 32-bit
// words; a panel's row is 16 words.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "numerics/dtype.h"

namespace invar::cpu {

// Word i of row j of `to` = word j of row i of `from`, for i and j below 8. The rows of `from` are
// from_bytes apart, those of `to` to_stride words.
inline void transpose8(const void* from, int64_t from_bytes, uint32_t* to, int64_t to_stride) {
  const auto load = [&](int64_t i, int64_t half) {
    const char* row = static_cast<const char*>(from) + i * from_bytes;
    return _mm_loadu_ps(reinterpret_cast<const float*>(row) + half * 4);
  };
  // Words 4h .. 4h + 3 of row i below, of row i + 4 above.
  const auto load2 = [&](int64_t i, int64_t half) {
    return _mm256_insertf128_ps(_mm256_castps128_ps256(load(i, half)), load(i + 4, half), 1);
  };
  for (int64_t half = 0; half < 2; ++half) {
    const __m256 a = load2(0, half), b = load2(1, half), c = load2(2, half), d = load2(3, half);
    const __m256 ab_low = _mm256_unpacklo_ps(a, b), ab_high = _mm256_unpackhi_ps(a, b);
    const __m256 cd_low = _mm256_unpacklo_ps(c, d), cd_high = _mm256_unpackhi_ps(c, d);
    float* out = reinterpret_cast<float*>(to + half * 4 * to_stride);
    _mm256_storeu_ps(out, _mm256_shuffle_ps(ab_low, cd_low, 0x44));
    _mm256_storeu_ps(out + to_stride, _mm256_shuffle_ps(ab_low, cd_low, 0xee));
    _mm256_storeu_ps(out + 2 * to_stride, _mm256_shuffle_ps(ab_high, cd_high, 0x44));
    _mm256_storeu_ps(out + 3 * to_stride, _mm256_shuffle_ps(ab_high, cd_high, 0xee));
  }
}

// Writes a line, which goes past the caches when it is whole in memory: for what is not read soon.
// Such stores have an order only by _mm_sfence.
inline void write_line(__m256i low, __m256i high, void* to) {
  __m256i* line = static_cast<__m256i*>(to);
  if (reinterpret_cast<uintptr_t>(to) % 64 == 0) {
    _mm256_stream_si256(line, low);
    _mm256_stream_si256(line + 1, high);
  } else {
    _mm256_storeu_si256(line, low);
    _mm256_storeu_si256(line + 1, high);
  }
}

// 16 words of the pairs (even[i], odd[i]); `write` takes its two halves and `words`.
template <typename Write>
inline void interleave16(const bf16_t* even, const bf16_t* odd, void* words, Write write) {
  const __m256i a = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(even));
  const __m256i b = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(odd));
  const __m256i low = _mm256_unpacklo_epi16(a, b), high = _mm256_unpackhi_epi16(a, b);
  write(_mm256_permute2x128_si256(low, high, 0x20), _mm256_permute2x128_si256(low, high, 0x31),
        words);
}
inline void interleave16(const bf16_t* even, const bf16_t* odd, void* words) {
  interleave16(even, odd, words, [](__m256i low, __m256i high, void* to) {
    _mm256_storeu_si256(static_cast<__m256i*>(to), low);
    _mm256_storeu_si256(static_cast<__m256i*>(to) + 1, high);
  });
}

// And back.
inline void separate16(const void* words, bf16_t* even, bf16_t* odd) {
  const __m256i* line = static_cast<const __m256i*>(words);
  const __m256i a = _mm256_loadu_si256(line), b = _mm256_loadu_si256(line + 1);
  const __m256i low = _mm256_set1_epi32(0xffff);
  const auto pack = [](__m256i x, __m256i y) {
    return _mm256_permute4x64_epi64(_mm256_packus_epi32(x, y), 0xd8);
  };
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(even),
                      pack(_mm256_and_si256(a, low), _mm256_and_si256(b, low)));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(odd),
                      pack(_mm256_srli_epi32(a, 16), _mm256_srli_epi32(b, 16)));
}

}  // namespace invar::cpu
