#include "numerics/hopper_step.h"

#include <algorithm>
#include <bit>
#include <cstdint>

#include "numerics/tensor_core_sum.h"

namespace invar {

namespace {

using namespace tensor_core;

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
  const Parts accumulator = split(acc_bits, 8, 23);
  int largest = accumulator.significand ? accumulator.exponent : kLowestExponent;
  for (int i = 0; i < 16; ++i) {
    const Parts x = split(a[i], 8, 7), y = split(b[i], 8, 7);
    product[i] = {x.significand * y.significand, x.exponent + y.exponent};
    if (product[i].significand) largest = std::max(largest, product[i].exponent);
  }
  largest = std::max(largest, kLowestExponent);

  // Everything in units of 2^(largest - 25).
  int64_t sum = scale(accumulator.significand, accumulator.exponent - largest + 25 - 23);
  for (const Parts& p : product) sum += scale(p.significand, p.exponent - largest + 25 - 14);
  return round_toward_zero(sum, largest - 25, 23);
}

}  // namespace invar
