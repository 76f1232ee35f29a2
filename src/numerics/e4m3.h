// Numbers of 8 bits: a sign, 4 bits of exponent (bias 7) and 3 of significand, subnormal ones
// included, without infinities; 0x7f and 0xff are NaN (numerics 4.2).
#pragma once

#include "numerics/dtype.h"

namespace invar::e4m3 {

// A finite number to the nearest, ties to even; what is larger than 448 becomes 448.
constexpr uint8_t from_f32(float x) {
  const uint32_t all = std::bit_cast<uint32_t>(x), bits = all & 0x7fffffff;
  const uint32_t sign = all >> 24 & 0x80;
  const float magnitude = std::bit_cast<float>(bits);
  if (magnitude >= 448.0f) return static_cast<uint8_t>(sign | 0x7e);
  if (magnitude < 0x1p-6f)  // multiples of 2^-9
    return static_cast<uint8_t>(sign | std::bit_cast<uint32_t>((magnitude + 0x1.8p14f)) % 16);
  const uint32_t rounded = bits + 0x7ffff + ((bits >> 20) & 1);
  return static_cast<uint8_t>(sign | ((rounded >> 20) - (120 << 3)));
}
constexpr uint8_t from_bf16(bf16_t x) {
  return from_f32(bf16_to_f32(x));
}

// Exactly; NaN has no such number.
constexpr bf16_t to_bf16(uint8_t x) {
  const uint32_t sign = (x & 0x80u) << 24, magnitude = x & 0x7f;
  const uint32_t bits = magnitude >= 8
                            ? (magnitude + (120 << 3)) << 20
                            : std::bit_cast<uint32_t>(static_cast<float>(magnitude) * 0x1p-9f);
  return static_cast<bf16_t>((sign | bits) >> 16);
}

}  // namespace invar::e4m3
