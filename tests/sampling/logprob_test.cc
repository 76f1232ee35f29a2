#include "sampling/logprob.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "base/thread_pool.h"
#include "kernels/reference/reference.h"
#include "sample_reference.h"
#include "sampling/sampler.h"

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

// What numerics 6 says of them: section 3 of the row after step 5. The model's own ones are others.
TEST(Logprob, ProcessedOnesAreOfTheRowThatIsSampledFrom) {
  ScopedFlushToZero flush;
  const Kernels kernels = reference::table(Order::portable);
  LogprobReader reader(kernels);
  Sampler sampler;
  std::mt19937 random(2);
  std::normal_distribution<float> normal(0, 3);
  int rows = 0, different = 0;
  for (const double temperature : {0.0, 0.5, 0.7, 0.9, 1.0, 1.2})
    for (int filters = 0; filters < 8; ++filters)
      for (int round = 0; round < 10; ++round) {
        std::vector<float> logits(300);
        for (float& x : logits) x = normal(random);
        SamplingParams p{.temperature = temperature, .seed = random()};
        if (filters & 1) p.top_p = 0.9;
        if (filters & 2) p.top_k = 20;
        if (filters & 4) p.min_p = 0.05;
        p = checked(std::move(p), 300);
        const SampleInput input{.logits = logits, .params = &p, .position = round};
        std::vector<float> processed;
        const int32_t token = sample_reference(input, &processed).token;
        ASSERT_EQ(sampler.sample(input).token, token);
        TokenLogprobs got, own, values;
        const std::span<const float> row = std::as_const(sampler.processed()).values();
        ASSERT_TRUE(reader.read(row, token, 2, got));
        ASSERT_TRUE(reader.read(row, token, 2, values, true));
        ASSERT_TRUE(reader.read(logits, token, 2, own));
        const orders::LogSumExp sum = orders::log_sum_exp(processed);
        EXPECT_EQ(got.logprob, sum.log_probability(processed[token]));
        EXPECT_EQ(got.top[0].logprob, sum.log_probability(processed[got.top[0].token]));
        EXPECT_EQ(values.logprob, processed[token]);
        EXPECT_EQ(values.rank, got.rank);
        double all = 0;
        for (const float x : processed) all += std::exp(double{sum.log_probability(x)});
        EXPECT_NEAR(all, 1, 1e-5);
        ++rows;
        different += got.logprob != own.logprob;
        // Of a row as it is they are the model's own.
        if (temperature == 0 || (temperature == 1 && filters == 0)) {
          EXPECT_EQ(got, own);
        }
      }
  EXPECT_GT(different, rows * 2 / 3);
}

// SGLang's: of the row after the temperature, with what filters leave out. The sampled token keeps
// its value and its rank.
TEST(Logprob, ScaledOnesAreOfTheRowBeforeFilters) {
  ScopedFlushToZero flush;
  const Kernels kernels = reference::table(Order::portable);
  LogprobReader reader(kernels);
  Sampler sampler;
  std::mt19937 random(3);
  std::normal_distribution<float> normal(0, 3);
  int different = 0;
  for (const double temperature : {0.0, 0.5, 1.0, 1.2})
    for (int round = 0; round < 20; ++round) {
      std::vector<float> logits(300);
      for (float& x : logits) x = normal(random);
      SamplingParams p{.temperature = temperature, .logit_bias = {{3, 2.0}}, .seed = random()};
      SamplingParams open = checked(p, 300);
      p.top_k = 20, p.top_p = 0.9, p.min_p = 0.02;
      p = checked(std::move(p), 300);
      const SampleInput input{.logits = logits, .params = &p, .position = round};
      const int32_t token = sampler.sample(input).token;
      TokenLogprobs scaled, processed;
      ASSERT_TRUE(reader.read(std::as_const(sampler.processed()).values(), token, 0, processed));
      ASSERT_EQ(sampler.scale(input), nullptr);
      const std::span<const float> row = std::as_const(sampler.processed()).values();
      ASSERT_TRUE(reader.read(row, token, 0, scaled));
      std::vector<float> expected;
      sample_reference({.logits = logits, .params = &open, .position = round}, &expected);
      EXPECT_TRUE(std::ranges::equal(row, expected));
      EXPECT_EQ(scaled.rank, processed.rank);
      different += scaled.logprob != processed.logprob;
    }
  EXPECT_EQ(different, 60) << "all but the greedy ones";
}

// Of a prompt's token: what looks back at an answer changes nothing.
TEST(Logprob, OfAPromptLookBackAtNoAnswer) {
  ScopedFlushToZero flush;
  Sampler sampler;
  std::vector<float> logits(100);
  for (size_t i = 0; i < logits.size(); ++i) logits[i] = static_cast<float>(i % 13);
  SamplingParams plain{.temperature = 0.7, .top_k = 9, .logit_bias = {{3, 2.0}}};
  SamplingParams looking = plain;
  looking.repetition_penalty = 1.5;
  looking.presence_penalty = 1;
  looking.min_tokens = 3;
  looking.stop_token_ids = {12};
  looking.bad_words = {{25}};
  TokenHistory history(std::vector<int32_t>{12, 25, 38});
  const auto row_of = [&](SamplingParams p, int32_t given) {
    p = checked(std::move(p), 100);
    const SampleInput input{.logits = logits, .params = &p, .history = &history, .given = given};
    std::vector<float> reference;
    sample_reference(input, &reference);
    EXPECT_EQ(sampler.process(input), nullptr);
    const std::span<const float> row = std::as_const(sampler.processed()).values();
    EXPECT_TRUE(std::ranges::equal(row, reference));
    return reference;
  };
  EXPECT_EQ(row_of(looking, 5), row_of(plain, 5));
  EXPECT_NE(row_of(looking, -1), row_of(plain, -1));
}

}  // namespace
}  // namespace invar
