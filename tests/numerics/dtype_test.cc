#include "numerics/dtype.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace invar {
namespace {

TEST(DType, Bf16RoundsToNearestEvenAndFlushesSubnormals) {
  EXPECT_EQ(f32_to_bf16(1.0f), 0x3f80);
  EXPECT_EQ(f32_to_bf16(0x1.01p0f), 0x3f80);  // a tie, to the even neighbour
  EXPECT_EQ(f32_to_bf16(0x1.03p0f), 0x3f82);
  EXPECT_EQ(f32_to_bf16(-0x1.fffp-127f), 0x8000);  // subnormal
  EXPECT_EQ(f32_to_bf16(std::numeric_limits<float>::max()), 0x7f80);
  EXPECT_EQ(f32_to_bf16(-std::numeric_limits<float>::quiet_NaN()), 0x7fff);
  EXPECT_EQ(f32_to_cached_bf16(std::numeric_limits<float>::max()), 0x7f7f);
  EXPECT_EQ(f32_to_cached_bf16(-std::numeric_limits<float>::infinity()), 0xff7f);
  EXPECT_EQ(f32_to_cached_bf16(std::nanf("")), 0);
}

TEST(DType, EveryF16GoesThroughF32AndBack) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const float x = f16_to_f32(static_cast<uint16_t>(bits));
    if (std::isnan(x)) continue;
    EXPECT_EQ(x, static_cast<float>(std::bit_cast<_Float16>(static_cast<uint16_t>(bits)))) << bits;
    EXPECT_EQ(f32_to_f16(x), bits);
  }
}

TEST(DType, F16RoundingIsTheHardwares) {
  uint32_t state = 1;
  for (int i = 0; i < 1000000; ++i) {
    state = state * 1664525u + 1013904223u;
    const float x = std::bit_cast<float>(state);
    if (std::isnan(x)) continue;
    EXPECT_EQ(f32_to_f16(x), std::bit_cast<uint16_t>(static_cast<_Float16>(x))) << x;
  }
}

}  // namespace
}  // namespace invar
