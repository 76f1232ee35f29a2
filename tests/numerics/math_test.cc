#include "numerics/math.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/thread_pool.h"

namespace invar {
namespace {

// Distance of y from the exact value in units in the last place of y's format.
template <typename T>
double ulps(T y, long double exact) {
  const T next = std::nextafter(std::fabs(y), std::numeric_limits<T>::infinity());
  return static_cast<double>(std::fabs(y - exact) /
                             (static_cast<long double>(next) - std::fabs(y)));
}

TEST(Math, Exp2AndExpAreWithinTheirBounds) {
  ScopedFlushToZero flush;
  double worst2 = 0, worst = 0;
  for (int i = 0; i < 2000000; ++i) {
    const float t = -125.9f + 253.0f * static_cast<float>(i) / 2000000.0f;
    worst2 = std::max(worst2, ulps(math::exp2(t), exp2l(static_cast<long double>(t))));
    const float x = t * 0.69f;
    worst = std::max(worst, ulps(math::exp(x), expl(static_cast<long double>(x))));
  }
  EXPECT_LT(worst2, 1.03);
  EXPECT_LT(worst, 1.2);
  EXPECT_EQ(math::exp2(0.0f), 1.0f);
  EXPECT_EQ(math::exp2(-126.5f), 0.0f);
  EXPECT_EQ(math::exp2(128.0f), std::numeric_limits<float>::infinity());
  EXPECT_EQ(math::exp(-1e30f), 0.0f);
  EXPECT_EQ(math::exp(1e30f), std::numeric_limits<float>::infinity());
}

TEST(Math, SoftplusIsWithinItsBound) {
  ScopedFlushToZero flush;
  double worst = 0;
  for (int i = 0; i < 1000000; ++i) {
    const float x = -86.0f + 130.0f * static_cast<float>(i) / 1000000.0f;
    worst = std::max(worst, ulps(math::softplus(x), log1pl(expl(static_cast<long double>(x)))));
  }
  EXPECT_LT(worst, 3.4);
  EXPECT_GT(worst, 0.5);
  EXPECT_EQ(math::softplus(1e30f), 1e30f);
  EXPECT_EQ(math::softplus(-1e30f), 0.0f);
  EXPECT_EQ(math::softplus(std::numeric_limits<float>::infinity()),
            std::numeric_limits<float>::infinity());
  const float nan = math::softplus(std::numeric_limits<float>::quiet_NaN());
  EXPECT_NE(nan, nan);
}

TEST(Math, LogExp2AndSinCosInF64AreAccurate) {
  double worst_log = 0, worst_exp = 0, worst_sin = 0;
  for (int i = 1; i < 300000; ++i) {
    const double x = std::ldexp(1.0 + i / 300000.0, i % 120 - 60);
    worst_log = std::max(worst_log, ulps(math::log(x), logl(x)));
    const double t = -40.0 + i * 80.0 / 300000;
    worst_exp = std::max(worst_exp, ulps(math::exp2(t), exp2l(t)));
    const double angle = i * 0.4321;
    const auto [s, c] = math::sincos(angle);
    worst_sin = std::max<double>(worst_sin, std::fabs(s - sinl(angle)));
    worst_sin = std::max<double>(worst_sin, std::fabs(c - cosl(angle)));
  }
  EXPECT_LT(worst_log, 2.0);
  EXPECT_LT(worst_exp, 2.0);
  EXPECT_LT(worst_sin, 3e-16);
  EXPECT_EQ(math::log(1.0), 0.0);
  EXPECT_NEAR(math::pow(500000.0, -0.5), 1 / std::sqrt(500000.0), 1e-17);
}

// The sequences are the contract: a change of any bit is a new version of the arithmetic.
TEST(Math, RecordedBits) {
  ScopedFlushToZero flush;
  uint64_t hash = 1469598103934665603u;
  const auto add = [&](uint64_t bits) { hash = (hash ^ bits) * 1099511628211u; };
  for (int i = 0; i < 100000; ++i) {
    const float t = -130.0f + 260.0f * static_cast<float>(i) / 100000.0f;
    add(std::bit_cast<uint32_t>(math::exp2(t)));
    add(std::bit_cast<uint32_t>(math::exp(t)));
    add(std::bit_cast<uint64_t>(math::log(std::ldexp(1.0 + i / 100000.0, i % 60 - 30))));
    add(std::bit_cast<uint64_t>(math::sincos(i * 1.37).sin));
    add(std::bit_cast<uint64_t>(math::sincos(i * 1.37).cos));
    add(std::bit_cast<uint64_t>(math::pow(1e6, -i / 100000.0)));
  }
  EXPECT_EQ(hash, 15443472318720661774u);
}

}  // namespace
}  // namespace invar
