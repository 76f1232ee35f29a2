// Blocks on a processor with AVX-512's bf16 and VNNI: the names of byte_floats_inl.h by dot
// products of bytes, and bf16_pairs of vec16_math.h. Included after vec16_avx512.h.
#pragma once

#include <immintrin.h>
#include <cstdint>

namespace invar::cpu {

namespace {

inline Bits16 bf16_pairs(Vec16 a, Vec16 b) {
  __m512i pairs;
  __asm__("vcvtne2ps2bf16 %2, %1, %0" : "=v"(pairs) : "v"(b.v), "v"(a.v));
  return {pairs};
}

// `weight` at byte b, which a dot product multiplies by.
inline __m512i pick(int b, uint32_t weight) {
  return splat_bits(weight << 8 * b).v;
}

inline Bits16 byte_of(Bits16 x, int b) {
  return {_mm512_dpbusd_epi32(_mm512_setzero_si512(), x.v, pick(b, 1))};
}

inline Vec16 nibble_of(Bits16 x, int b) {
  alignas(64) static constexpr float kNumbers[16] = {0, 1, 2,  3,  4,  5,  6,  7,
                                                     8, 9, 10, 11, 12, 13, 14, 15};
  return lookup(kNumbers, x >> 8 * b);
}

// The byte is added to the bits of a float from 1 to 2.
template <int kZero>
struct ByteFloat {
  static constexpr uint32_t kWeight = 64;
  static constexpr float kUnit = 0x1p-23f * kWeight, kOrigin = 1.5f;
  static Vec16 of(Bits16 x, int b) {
    const __m512i origin = splat_bits(0x3fc00000 - kWeight * kZero).v;
    return value_of(Bits16{kZero == 0 ? _mm512_dpbusd_epi32(origin, pick(b, kWeight), x.v)
                                      : _mm512_dpbusd_epi32(origin, x.v, pick(b, kWeight))});
  }
};

}  // namespace

}  // namespace invar::cpu
