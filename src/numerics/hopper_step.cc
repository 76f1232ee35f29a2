#include "numerics/hopper_step.h"

#include <algorithm>
#include <bit>
#include <cstdint>

namespace invar {

namespace {

constexpr uint32_t kNan = 0x7fffffff, kInfinity = 0x7f800000;
constexpr int kLowestExponent = -133;

// A finite number as significand * 2^(exponent - fraction bits), with the exponent as stored.
struct Parts {
  int64_t significand;  // signed
  int exponent;
};

Parts split(uint32_t bits, int fraction_bits) {
  const int field = static_cast<int>(bits >> fraction_bits & 0xff);
  const int64_t fraction = bits & ((1u << fraction_bits) - 1);
  const int64_t magnitude = field ? fraction | int64_t{1} << fraction_bits : fraction;
  const bool negative = bits >> (fraction_bits + 8) & 1;
  return {negative ? -magnitude : magnitude, std::max(field, 1) - 127};
}

// significand * 2^shift, truncated toward zero.
int64_t scale(int64_t significand, int shift) {
  if (shift >= 0) return significand << shift;
  if (shift < -62) return 0;
  const int64_t magnitude = significand < 0 ? -significand : significand;
  return significand < 0 ? -(magnitude >> -shift) : magnitude >> -shift;
}

// sum * 2^unit rounded toward zero to binary32, subnormals kept.
float round_toward_zero(int64_t sum, int unit) {
  if (sum == 0) return 0.0f;
  const uint32_t sign = sum < 0 ? 0x80000000u : 0;
  uint64_t magnitude = static_cast<uint64_t>(sum < 0 ? -sum : sum);
  const int top = 63 - std::countl_zero(magnitude);
  const int exponent = std::max(top + unit, -126);
  if (exponent > 127) return std::bit_cast<float>(sign | kInfinity);
  const int shift = exponent - 23 - unit;  // brings the last place of the result to bit 0
  magnitude = shift >= 0 ? (shift > 63 ? 0 : magnitude >> shift) : magnitude << -shift;
  const uint32_t field = magnitude >> 23 ? static_cast<uint32_t>(exponent + 127) : 0;
  return std::bit_cast<float>(sign | field << 23 | (static_cast<uint32_t>(magnitude) & 0x7fffff));
}

// The infinity or NaN that a step with such an operand gives, or 0 when all operands are finite.
uint32_t special_result(uint32_t acc, const bf16_t* a, const bf16_t* b) {
  bool positive = false, negative = false;
  const auto see_infinity = [&](bool is_negative) { (is_negative ? negative : positive) = true; };
  if ((acc & 0x7fffffff) > kInfinity) return kNan;
  if ((acc & 0x7fffffff) == kInfinity) see_infinity(acc >> 31);
  for (int i = 0; i < 16; ++i) {
    const int x = a[i] & 0x7fff, y = b[i] & 0x7fff;
    if (x > 0x7f80 || y > 0x7f80) return kNan;
    if (x != 0x7f80 && y != 0x7f80) continue;
    if (x == 0 || y == 0) return kNan;
    see_infinity((a[i] ^ b[i]) >> 15);
  }
  if (positive && negative) return kNan;
  if (positive) return kInfinity;
  return negative ? kInfinity | 0x80000000u : 0;
}

}  // namespace

float hopper_step(float acc, const bf16_t* a, const bf16_t* b) {
  const uint32_t acc_bits = std::bit_cast<uint32_t>(acc);
  if (const uint32_t special = special_result(acc_bits, a, b)) return std::bit_cast<float>(special);

  Parts product[16];
  const Parts accumulator = split(acc_bits, 23);
  int largest = accumulator.significand ? accumulator.exponent : kLowestExponent;
  for (int i = 0; i < 16; ++i) {
    const Parts x = split(a[i], 7), y = split(b[i], 7);
    product[i] = {x.significand * y.significand, x.exponent + y.exponent};
    if (product[i].significand) largest = std::max(largest, product[i].exponent);
  }
  largest = std::max(largest, kLowestExponent);

  // Everything in units of 2^(largest - 25).
  int64_t sum = scale(accumulator.significand, accumulator.exponent - largest + 25 - 23);
  for (const Parts& p : product) sum += scale(p.significand, p.exponent - largest + 25 - 14);
  return round_toward_zero(sum, largest - 25);
}

}  // namespace invar
