// exp2 and exp of every instruction set at the ends of their ranges, where no kernel's result shows
// all of them: against the scalar functions, bit by bit but for the sign of nothing.
#include <bit>
#include <limits>
#include <vector>

#include "base/thread_pool.h"
#include "kernel_check.h"
#include "kernels/cpu/features.h"
#include "numerics/math.h"

namespace invar {

namespace cpu {
void exp2_avx2(const float* x, float* y);
void exp_avx2(const float* x, float* y);
void to_8_bits_avx2(const float* x, float* y);
void exp2_avx512(const float* x, float* y);
void exp_avx512(const float* x, float* y);
void divide_avx2(float* x, int count, float divisor);
void divide_avx512(float* x, int count, float divisor);
void to_8_bits_avx512(const float* x, float* y);
}  // namespace cpu

namespace {

using Vector = void (*)(const float*, float*);
using Scalar = float (*)(float);

// The numbers around `x`, 600 each side, then twice as far in each of some steps.
void add_around(float x, std::vector<float>& all) {
  for (int i = -600; i <= 600; ++i)
    all.push_back(std::bit_cast<float>(std::bit_cast<int32_t>(x) + i));
}

// Of both functions: where t crosses -127, -126, -126 +- 1/2, 0, 127, 127 +- 1/2 and 128.
std::vector<float> ends() {
  std::vector<float> all = {0.0f,
                            -0.0f,
                            1e30f,
                            -1e30f,
                            0x1p-126f,
                            -0x1p-126f,
                            std::numeric_limits<float>::infinity(),
                            -std::numeric_limits<float>::infinity()};
  for (const float t : {-150.0f, -149.0f, -127.5f, -127.0f, -126.5f, -126.0f, -125.5f, -125.0f,
                        -0.5f, 0.5f, 126.5f, 127.0f, 127.5f, 128.0f, 128.5f, 129.0f, 1000.0f}) {
    add_around(t, all);
    add_around(t * 0x1.62e43p-1f, all);  // ln 2
  }
  Random random(3);
  for (int i = 0; i < 20000; ++i) all.push_back(140.0f * random.uniform());
  while (all.size() % 16 != 0) all.push_back(1.0f);
  return all;
}

// A subnormal counts as a zero wherever it is used next (numerics 5.1).
uint32_t bits_of(float y) {
  const uint32_t bits = std::bit_cast<uint32_t>(y);
  return (bits & 0x7f800000) == 0 ? 0 : bits;
}

int differences(Vector vector, Scalar scalar) {
  const ScopedFlushToZero flush;
  const std::vector<float> x = ends();
  alignas(64) float in[16], out[16];
  int count = 0;
  for (size_t i = 0; i < x.size(); i += 16) {
    std::copy_n(x.begin() + static_cast<std::ptrdiff_t>(i), 16, in);
    vector(in, out);
    for (int lane = 0; lane < 16; ++lane)
      if (bits_of(out[lane]) != bits_of(scalar(in[lane])) && count++ < 3)
        ADD_FAILURE() << std::hexfloat << in[lane] << ": expected " << scalar(in[lane])
                      << ", found " << out[lane];
  }
  return count;
}

using Divide = void (*)(float*, int, float);

// Quotients of random significands, whose exponents reach beyond the range in which no division is
// needed now and then; divisors close below a power of two, whose reciprocals round worst, too.
int wrong_quotients(Divide divide) {
  const ScopedFlushToZero flush;
  Random random(5);
  const auto draw = [&](int exponents) {
    const int exponent = 127 + static_cast<int>(random.below(exponents)) - exponents / 2;
    return std::bit_cast<float>(static_cast<uint32_t>(exponent) << 23 | (random.next() & 0x7fffff));
  };
  int count = 0;
  for (int round = 0; round < 40000; ++round) {
    const int exponents = round % 8 ? 40 : 240;
    float divisor = round % 4 == 1 ? 1.0f - 0x1p-24f * static_cast<float>(random.below(64))
                                   : draw(round % 16 ? 20 : 240);
    float x[48], quotient[48];
    for (float& v : x) v = draw(exponents) * (random.below(2) ? 1.0f : -1.0f);
    if (round % 32 == 3) x[7] = -0.0f;
    std::copy_n(x, 48, quotient);
    divide(quotient, 48, divisor);
    for (int i = 0; i < 48; ++i)
      count += std::bit_cast<uint32_t>(quotient[i]) != std::bit_cast<uint32_t>(x[i] / divisor);
  }
  return count;
}

float scalar_exp2(float x) {
  return math::exp2(x);
}
float scalar_exp(float x) {
  return math::exp(x);
}

TEST(VectorMath, EndsOfRangesOnAvx2) {
  EXPECT_EQ(differences(cpu::exp2_avx2, scalar_exp2), 0);
  EXPECT_EQ(differences(cpu::exp_avx2, scalar_exp), 0);
}

TEST(VectorMath, EndsOfRangesOnAvx512) {
  if (!__builtin_cpu_supports("avx512f")) GTEST_SKIP() << "no AVX-512";
  EXPECT_EQ(differences(cpu::exp2_avx512, scalar_exp2), 0);
  EXPECT_EQ(differences(cpu::exp_avx512, scalar_exp), 0);
}

TEST(VectorMath, QuotientsAreRoundedAsDivisionDoes) {
  EXPECT_EQ(wrong_quotients(cpu::divide_avx2), 0);
  if (__builtin_cpu_supports("avx512f")) {
    EXPECT_EQ(wrong_quotients(cpu::divide_avx512), 0);
  }
  // As a reciprocal and a product do not.
  EXPECT_GT(wrong_quotients([](float* x, int count, float divisor) {
              for (int i = 0; i < count; ++i) x[i] = x[i] * (1.0f / divisor);
            }),
            1000);
}

// Every 24-bit significand, at both ends of the range of exponents and in the middle.
int wrong_roundings(Vector round, uint32_t dropped) {
  const ScopedFlushToZero flush;
  alignas(64) float in[16], out[16];
  int wrong = 0;
  for (const uint32_t exponent : {127u - 110, 127u, 127u + 109})
    for (uint32_t fraction = 0; fraction < 1 << 23; fraction += 16) {
      for (uint32_t i = 0; i < 16; ++i)
        in[i] = std::bit_cast<float>(i << 31 | exponent << 23 | (fraction + i));
      round(in, out);
      for (int i = 0; i < 16; ++i)
        wrong += out[i] != bf16_to_f32(f32_to_bf16(
                               std::bit_cast<float>(std::bit_cast<uint32_t>(in[i]) & ~dropped)));
    }
  return wrong;
}

TEST(VectorMath, RoundsTo8Bits) {
  EXPECT_EQ(wrong_roundings(cpu::to_8_bits_avx2, 0), 0);
  if (__builtin_cpu_supports("avx512f")) {
    EXPECT_EQ(wrong_roundings(cpu::to_8_bits_avx512, 0), 0);
  }
  // The control: the last bit decides where what is cut off is just above a half.
  EXPECT_GT(wrong_roundings(cpu::to_8_bits_avx2, 1), 0);
}

}  // namespace
}  // namespace invar
