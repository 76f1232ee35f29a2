#include "numerics/noise.h"

#include <immintrin.h>

namespace invar {

namespace {

// High and low halves of the products of eight 32-bit numbers with one.
struct Product {
  __m256i high, low;
};
inline Product multiply(__m256i a, __m256i m) {
  const __m256i even = _mm256_mul_epu32(a, m);
  const __m256i odd = _mm256_mul_epu32(_mm256_srli_epi64(a, 32), m);
  return {_mm256_blend_epi32(_mm256_srli_epi64(even, 32), odd, 0xaa),
          _mm256_blend_epi32(even, _mm256_slli_epi64(odd, 32), 0xaa)};
}

// Four vectors of eight counters' first, second ... outputs, to the eight counters' four outputs.
inline void store_interleaved(__m256i w0, __m256i w1, __m256i w2, __m256i w3, uint32_t* out) {
  const __m256i low01 = _mm256_unpacklo_epi32(w0, w1), high01 = _mm256_unpackhi_epi32(w0, w1);
  const __m256i low23 = _mm256_unpacklo_epi32(w2, w3), high23 = _mm256_unpackhi_epi32(w2, w3);
  const __m256i c04 = _mm256_unpacklo_epi64(low01, low23);
  const __m256i c15 = _mm256_unpackhi_epi64(low01, low23);
  const __m256i c26 = _mm256_unpacklo_epi64(high01, high23);
  const __m256i c37 = _mm256_unpackhi_epi64(high01, high23);
  __m256i* y = reinterpret_cast<__m256i*>(out);
  _mm256_storeu_si256(y + 0, _mm256_permute2x128_si256(c04, c15, 0x20));
  _mm256_storeu_si256(y + 1, _mm256_permute2x128_si256(c26, c37, 0x20));
  _mm256_storeu_si256(y + 2, _mm256_permute2x128_si256(c04, c15, 0x31));
  _mm256_storeu_si256(y + 3, _mm256_permute2x128_si256(c26, c37, 0x31));
}

}  // namespace

void random_block(const NoiseKey& key, uint32_t block, uint32_t* bits) {
  const __m256i m0 = _mm256_set1_epi64x(0xD2511F53), m1 = _mm256_set1_epi64x(0xCD9E8D57);
  uint32_t k0 = static_cast<uint32_t>(key.seed), k1 = static_cast<uint32_t>(key.seed >> 32);
  __m256i c0 = _mm256_set1_epi32(static_cast<int>(key.position));
  __m256i c1 = _mm256_add_epi32(_mm256_set1_epi32(static_cast<int>(block * 8)),
                                _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
  __m256i c2 = _mm256_set1_epi32(static_cast<int>(key.choice));
  __m256i c3 = _mm256_set1_epi32(static_cast<int>(key.purpose));
  for (int round = 0; round < 10; ++round) {
    const Product p0 = multiply(c0, m0), p1 = multiply(c2, m1);
    const __m256i key0 = _mm256_set1_epi32(static_cast<int>(k0));
    const __m256i key1 = _mm256_set1_epi32(static_cast<int>(k1));
    c0 = _mm256_xor_si256(_mm256_xor_si256(p1.high, c1), key0);
    c2 = _mm256_xor_si256(_mm256_xor_si256(p0.high, c3), key1);
    c1 = p1.low;
    c3 = p0.low;
    k0 += 0x9E3779B9;
    k1 += 0xBB67AE85;
  }
  store_interleaved(c0, c1, c2, c3, bits);
}

}  // namespace invar
