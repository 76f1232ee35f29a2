#include "numerics/hopper8_step.h"

#include <algorithm>
#include <bit>

#include "numerics/tensor_core_sum.h"

namespace invar {

namespace {

using namespace tensor_core;

constexpr int kProducts = 32, kFractionBits = 13;

bool is_nan(uint8_t x) {
  return (x & 0x7f) == 0x7f;  // e4m3 has no infinities
}

}  // namespace

float hopper8_step(float acc, const uint8_t* a, const uint8_t* b) {
  const uint32_t acc_bits = std::bit_cast<uint32_t>(acc);
  if ((acc_bits & 0x7fffffff) > kInfinity || std::any_of(a, a + kProducts, is_nan) ||
      std::any_of(b, b + kProducts, is_nan))
    return std::bit_cast<float>(kNan);
  if ((acc_bits & 0x7fffffff) == kInfinity) return acc;

  Parts product[kProducts];
  const Parts accumulator = split(acc_bits, 8, 23);
  int largest = accumulator.significand ? accumulator.exponent : kLowestExponent;
  for (int i = 0; i < kProducts; ++i) {
    const Parts x = split(a[i], 4, 3), y = split(b[i], 4, 3);
    product[i] = {x.significand * y.significand, x.exponent + y.exponent};
    if (product[i].significand) largest = std::max(largest, product[i].exponent);
  }
  largest = std::max(largest, kLowestExponent);

  // Everything in units of 2^(largest - 13).
  int64_t sum = scale(accumulator.significand, accumulator.exponent - largest + kFractionBits - 23);
  for (const Parts& p : product)
    sum += scale(p.significand, p.exponent - largest + kFractionBits - 6);
  return round_toward_zero(sum, largest - kFractionBits, kFractionBits);
}

}  // namespace invar
