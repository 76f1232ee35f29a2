#include "sampling/logprob.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "base/thread_pool.h"
#include "kernels/reference/reference.h"

namespace invar {
namespace {

TEST(Logprob, AreThoseOfTheOrderAndRanked) {
  ScopedFlushToZero flush;
  const Kernels kernels = reference::table(Order::portable);
  LogprobReader reader(kernels);
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  for (int round = 0; round < 100; ++round) {
    const int vocab = 1 + random() % 500;
    std::vector<float> logits(vocab);
    for (float& x : logits) x = round % 2 ? normal(random) : std::round(2 * normal(random));
    if (round % 3 == 0)
      for (int i = 0; i < vocab / 2; ++i) logits[i] = kExcluded;
    const int32_t chosen = random() % vocab, top = random() % (vocab + 2);
    TokenLogprobs got;
    ASSERT_TRUE(reader.read(logits, chosen, top, got));

    std::vector<int32_t> order(vocab);
    for (int i = 0; i < vocab; ++i) order[i] = i;
    std::stable_sort(order.begin(), order.end(),
                     [&](int32_t a, int32_t b) { return logits[a] > logits[b]; });
    const orders::LogSumExp sum = orders::log_sum_exp(logits);
    const int excluded = std::count(logits.begin(), logits.end(), kExcluded);
    EXPECT_EQ(got.token, chosen);
    EXPECT_EQ(got.logprob, sum.log_probability(logits[chosen]));
    EXPECT_EQ(order[got.rank - 1], chosen);
    ASSERT_EQ(std::ssize(got.top), std::min(top, vocab - excluded));
    for (int i = 0; i < std::ssize(got.top); ++i)
      EXPECT_EQ(got.top[i], (TokenLogprob{order[i], sum.log_probability(logits[order[i]]), i + 1}));
  }
  std::vector<float> bad(100, 1.0f);
  bad[70] = std::numeric_limits<float>::quiet_NaN();
  TokenLogprobs got;
  EXPECT_FALSE(reader.read(bad, 3, 2, got));
}

}  // namespace
}  // namespace invar
