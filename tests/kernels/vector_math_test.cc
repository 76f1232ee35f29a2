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
void exp2_avx512(const float* x, float* y);
void exp_avx512(const float* x, float* y);
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

}  // namespace
}  // namespace invar
