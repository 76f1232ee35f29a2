#include "kernels/cpu/pair.h"

#include <bit>
#include <cmath>

#include "base/thread_pool.h"
#include "kernels/cpu/features.h"
#include "numerics/orders.h"

namespace invar::cpu {

namespace {

// Numbers of a fixed sequence (SplitMix64).
class Numbers {
 public:
  uint64_t next() {
    uint64_t z = state_ += 0x9e3779b97f4a7c15;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
    z = (z ^ z >> 27) * 0x94d049bb133111eb;
    return z ^ z >> 31;
  }

 private:
  uint64_t state_ = 0;
};

// A bf16 of any bits; of exponents about that of 1; so small that products are subnormal; or odd.
uint32_t operand(Numbers& numbers, int kind) {
  constexpr uint16_t kOdd[] = {0,      0x8000, 1,      0x8001, 0x7f,   0x80,   0x3f80, 0xbf80,
                               0x7f7f, 0xff7f, 0x7f80, 0xff80, 0x7fc0, 0x2000, 0x1f80, 0x3f81};
  const auto bits = static_cast<uint32_t>(numbers.next());
  const auto with_exponent = [&](uint32_t exponent) { return (bits & 0x807f) | exponent << 7; };
  if (kind == 0) return bits & 0xffff;
  if (kind == 1) return with_exponent(120 + (bits >> 20) % 16);
  if (kind == 2) return with_exponent(30 + (bits >> 20) % 80);
  return kOdd[bits >> 20 & 15];
}

bool holds(Numbers& numbers, int kind) {
  alignas(64) uint32_t x[16], w[16];
  alignas(64) float chain[16], found[16];
  for (int i = 0; i < 16; ++i) {
    x[i] = operand(numbers, kind) | operand(numbers, kind) << 16;
    w[i] = operand(numbers, kind) | operand(numbers, kind) << 16;
    const uint32_t low = kind == 3 ? 0 : static_cast<uint32_t>(numbers.next()) & 0xffff;
    chain[i] = std::bit_cast<float>(operand(numbers, kind) << 16 | low);
  }
  pair_steps_avx512bf16(x, w, chain, found);
  for (int i = 0; i < 16; ++i) {
    const auto half = [](uint32_t pair, int odd) {
      return std::bit_cast<float>(odd ? pair & 0xffff0000 : pair << 16);
    };
    const float xs[2] = {half(x[i], 0), half(x[i], 1)}, ws[2] = {half(w[i], 0), half(w[i], 1)};
    const float expected = orders::pair_step(chain[i], xs, ws);
    const bool both_nan = std::isnan(expected) && std::isnan(found[i]);
    if (!both_nan && std::bit_cast<uint32_t>(expected) != std::bit_cast<uint32_t>(found[i]))
      return false;
  }
  return true;
}

}  // namespace

bool pair_instruction_holds() {
  static const bool all_hold = [] {
    if (!has_avx512_bf16()) return false;
    const ScopedFlushToZero flush;
    Numbers numbers;
    for (int i = 0; i < 4096; ++i)
      if (!holds(numbers, i % 4)) return false;
    return true;
  }();
  return all_hold;
}

void pair_best_avx512(const PanelProduct& p) {
  pair_instruction_holds() ? pair_product_avx512bf16(p) : pair_product_avx512(p);
}

}  // namespace invar::cpu
