// The sum inside a step of a Hopper tensor core (numerics 1.2, 1.4): addends aligned to the largest
// exponent and truncated, added exactly, and rounded toward zero.
#pragma once

#include <bit>
#include <cstdint>

namespace invar::tensor_core {

constexpr uint32_t kNan = 0x7fffffff, kInfinity = 0x7f800000;
// The largest exponent counts as this at least.
constexpr int kLowestExponent = -133;

// A finite number as significand * 2^(exponent - fraction bits), with the exponent as stored.
struct Parts {
  int64_t significand;  // signed
  int exponent;
};

// The lower bits of `bits`: a sign, `exponent_bits` and `fraction_bits`.
constexpr Parts split(uint32_t bits, int exponent_bits, int fraction_bits) {
  const int field = static_cast<int>(bits >> fraction_bits & ((1u << exponent_bits) - 1));
  const int64_t fraction = bits & ((1u << fraction_bits) - 1);
  const int64_t magnitude = field ? fraction | int64_t{1} << fraction_bits : fraction;
  const bool negative = bits >> (fraction_bits + exponent_bits) & 1;
  const int bias = (1 << (exponent_bits - 1)) - 1;
  return {negative ? -magnitude : magnitude, (field ? field : 1) - bias};
}

// significand * 2^shift, truncated toward zero. Zero has an exponent, too, which may be far above
// that of what counts.
constexpr int64_t scale(int64_t significand, int shift) {
  if (significand == 0) return 0;
  if (shift >= 0) return significand << shift;
  if (shift < -62) return 0;
  const int64_t magnitude = significand < 0 ? -significand : significand;
  return significand < 0 ? -(magnitude >> -shift) : magnitude >> -shift;
}

// sum * 2^unit rounded toward zero to `fraction_bits` after the leading one, at most 23, in
// binary32; subnormals are kept.
constexpr float round_toward_zero(int64_t sum, int unit, int fraction_bits) {
  if (sum == 0) return 0.0f;
  const uint32_t sign = sum < 0 ? 0x80000000u : 0;
  uint64_t magnitude = static_cast<uint64_t>(sum < 0 ? -sum : sum);
  const int top = 63 - std::countl_zero(magnitude);
  const int exponent = top + unit < -126 ? -126 : top + unit;
  if (exponent > 127) return std::bit_cast<float>(sign | kInfinity);
  const int shift = exponent - fraction_bits - unit;  // brings the last place to bit 0
  magnitude = shift >= 0 ? (shift > 63 ? 0 : magnitude >> shift) : magnitude << -shift;
  magnitude <<= 23 - fraction_bits;
  const uint32_t field = magnitude >> 23 ? static_cast<uint32_t>(exponent + 127) : 0;
  return std::bit_cast<float>(sign | field << 23 | (static_cast<uint32_t>(magnitude) & 0x7fffff));
}

}  // namespace invar::tensor_core
