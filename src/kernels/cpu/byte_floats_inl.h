// Bytes of words as f32 numbers, by shuffling them. Included after a vec16 header. A set may know a
// shorter way: then it has these names before (byte_floats_vnni.h).
#pragma once

#include <cstdint>

namespace invar::cpu {

namespace {

// In each four lanes of `from`, to every byte the one that `which` has there, 128 for a zero.
inline Bits16 shuffle_words(Bits16 from, const uint8_t (&which)[16]) {
  return lookup_bytes(from, four_times(which));
}

// Byte b of each lane, without a sign.
inline Bits16 byte_of(Bits16 x, int b) {
  alignas(16) static constexpr uint8_t kLow[4][16] = {
      {0, 128, 128, 128, 4, 128, 128, 128, 8, 128, 128, 128, 12, 128, 128, 128},
      {1, 128, 128, 128, 5, 128, 128, 128, 9, 128, 128, 128, 13, 128, 128, 128},
      {2, 128, 128, 128, 6, 128, 128, 128, 10, 128, 128, 128, 14, 128, 128, 128},
      {3, 128, 128, 128, 7, 128, 128, 128, 11, 128, 128, 128, 15, 128, 128, 128}};
  return shuffle_words(x, kLow[b]);
}

// The lowest four bits of that byte as a number.
inline Vec16 nibble_of(Bits16 x, int b) {
  return from_integer(byte_of(x & splat_bits(0x0f0f0f0f), b));
}

// Byte b of each lane less kZero, or with kZero = 0 with its sign, is (of(x, b) - kOrigin) / kUnit.
template <int kZero>
struct ByteFloat {
  static constexpr float kUnit = 1, kOrigin = kZero;
  static Vec16 of(Bits16 x, int b) { return from_integer(byte_of(x, b)); }
};
// A byte with a sign is the uppermost of an integer.
template <>
struct ByteFloat<0> {
  static constexpr float kUnit = 0x1p24f, kOrigin = 0;
  static Vec16 of(Bits16 x, int b) {
    alignas(16) static constexpr uint8_t kHigh[4][16] = {
        {128, 128, 128, 0, 128, 128, 128, 4, 128, 128, 128, 8, 128, 128, 128, 12},
        {128, 128, 128, 1, 128, 128, 128, 5, 128, 128, 128, 9, 128, 128, 128, 13},
        {128, 128, 128, 2, 128, 128, 128, 6, 128, 128, 128, 10, 128, 128, 128, 14},
        {128, 128, 128, 3, 128, 128, 128, 7, 128, 128, 128, 11, 128, 128, 128, 15}};
    return from_integer(shuffle_words(x, kHigh[b]));
  }
};

}  // namespace

}  // namespace invar::cpu
