#include "sampling/sampler.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <set>

#include "base/error.h"
#include "base/thread_pool.h"
#include "numerics/math.h"
#include "sample_reference.h"
#include "support/count_allocations.h"

namespace invar {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Logits of one of several kinds: flat, peaked, with ties, with excluded tokens, far apart.
std::vector<float> random_logits(std::mt19937& random, int vocab) {
  std::normal_distribution<float> normal;
  std::vector<float> x(vocab);
  const int kind = random() % 7;
  const float scale = kind == 0 ? 0.01f : kind == 1 ? 30.0f : kind == 2 ? 1000.0f : 2.0f;
  for (float& value : x) value = normal(random) * scale;
  if (kind == 3)
    for (float& value : x) value = std::round(value);  // many ties
  if (kind == 4)
    for (float& value : x)
      if (random() % 3 == 0) value = -kInfinity;
  if (kind == 5)
    for (int i = 0; i < 4; ++i) x[random() % vocab] += 15.0f;
  if (kind == 6)
    for (float& value : x) value = random() % 2 ? 0.0f : -0.0f;
  return x;
}

struct Case {
  std::vector<float> logits;
  SamplingParams params;
  std::vector<uint64_t> allowed;
  TokenHistory history;
  std::vector<int32_t> answer;
  SampleInput input;
};

void random_case(std::mt19937& random, int vocab, Case& c) {
  std::uniform_real_distribution<double> uniform(0.0, 1.0);
  const auto sometimes = [&] { return random() % 3 == 0; };
  c.logits = random_logits(random, vocab);
  SamplingParams p;
  p.seed = random() * uint64_t{0x100000001};
  if (sometimes()) p.temperature = random() % 3 ? 0.1 + 2 * uniform(random) : 0.0;
  if (sometimes()) p.top_k = 1 + random() % (random() % 2 ? 10 : 2 * vocab);
  if (sometimes())
    p.top_p = random() % 8 == 0   ? 1e-14
              : random() % 8 == 0 ? 1 - 0x1p-53
                                  : std::max(1e-6, uniform(random));
  if (sometimes()) p.min_p = random() % 4 ? uniform(random) : std::pow(10.0, -45 * uniform(random));
  if (sometimes()) p.repetition_penalty = 0.5 + uniform(random);
  if (sometimes()) p.presence_penalty = 4 * uniform(random) - 2;
  if (sometimes()) p.frequency_penalty = 4 * uniform(random) - 2;
  if (sometimes())
    for (int i = 0; i < std::min(vocab, 5); ++i)
      p.logit_bias.edit().push_back({vocab - 1 - i, 200 * uniform(random) - 100});
  if (sometimes()) p.min_tokens = random() % 5;
  if (sometimes()) p.stop_token_ids = {int32_t(random() % vocab), int32_t(random() % vocab)};
  const auto some = [&] { return int32_t(random() % std::min(vocab, 20)); };
  if (sometimes())
    for (int i = random() % 30; i >= 0; --i) p.allowed_token_ids.edit().push_back(random() % vocab);
  if (vocab > 8 && sometimes())  // of few tokens, so that the answer begins them
    for (int i = random() % 6; i >= 0; --i)
      p.bad_words.edit().push_back(random() % 2 ? std::vector{some(), some()}
                                                : std::vector{some()});
  try {
    c.params = checked(p, vocab);
  } catch (const UsageError&) {  // nothing is left
    p.allowed_token_ids.edit().clear();
    p.min_tokens = 0;
    c.params = checked(p, vocab);
  }
  c.allowed.clear();
  if (sometimes()) {
    for (int i = 0; i < (vocab + 63) / 64; ++i)
      c.allowed.push_back(random() % 2 ? ~uint64_t{0} : random() * uint64_t{0x100000001});
    if (random() % 8 == 0) c.allowed.assign(c.allowed.size(), 0);
  }
  std::vector<int32_t> prompt;
  for (int i = random() % 50; i > 0; --i) prompt.push_back(random() % vocab);
  c.history = TokenHistory(prompt);
  const int generated = random() % 10;
  c.answer.clear();
  for (int i = 0; i < generated; ++i) c.answer.push_back(some());
  for (const int32_t token : c.answer) c.history.push(token);
  c.input = {.logits = c.logits,
             .params = &c.params,
             .position = static_cast<int32_t>(random() % 10000),
             .choice = static_cast<int32_t>(random() % 4),
             .generated = generated,
             .history = &c.history,
             .answer = c.answer,
             .allowed = c.allowed};
}

// -0 and 0 are one value; everything else has one form.
bool same_bits(std::span<const float> a, std::span<const float> b) {
  if (a.size() != b.size()) return false;
  for (size_t i = 0; i < a.size(); ++i)
    if (std::bit_cast<uint32_t>(a[i]) != std::bit_cast<uint32_t>(b[i])) return false;
  return true;
}

TEST(Sampler, EqualsItsDefinition) {
  ScopedFlushToZero flush;
  std::mt19937 random(1);
  Sampler sampler;  // one for all: nothing is carried over
  int sampled = 0, refused = 0, cut = 0;
  for (int i = 0; i < 6000; ++i) {
    const int vocab = i % 50 == 0 ? 3000 + random() % 3000 : 1 + random() % (i % 2 ? 40 : 400);
    Case c;
    random_case(random, vocab, c);
    std::vector<float> processed;
    const Sampled expected = sample_reference(c.input, &processed);
    const Sampled got = sampler.sample(c.input);
    ASSERT_EQ(got.token, expected.token) << "case " << i;
    ASSERT_STREQ(got.error, expected.error) << "case " << i;
    if (got.error) {
      ++refused;
      continue;
    }
    ++sampled;
    ASSERT_TRUE(same_bits(std::as_const(sampler.processed()).values(), processed)) << "case " << i;
    cut += std::count(processed.begin(), processed.end(), -kInfinity) > 0;
  }
  EXPECT_GT(sampled, 5000);
  EXPECT_GT(refused, 20);
  EXPECT_GT(cut, 2000);
}

// A token whose probability is min_p times the largest one's stays: also where min_p is 1, which
// leaves the largest and all that equal it.
TEST(Sampler, MinPKeepsWhatIsExactlyAtItsEdge) {
  ScopedFlushToZero flush;
  std::mt19937 random(9);
  std::normal_distribution<float> normal;
  Sampler sampler;
  for (int i = 0; i < 400; ++i) {
    std::vector<float> logits(1 + random() % 300);
    for (float& x : logits) x = 3.0f * normal(random);
    const float max = *std::ranges::max_element(logits);
    const float at = logits[random() % logits.size()];
    for (int ties = 0; ties < 3; ++ties) {
      logits[random() % logits.size()] = max;
      logits[random() % logits.size()] = at;
    }
    // The edge itself, and the next number on each side of it.
    const float edge = i % 4 == 0 ? 1.0f : math::exp(at - max);
    for (const float least : {std::nextafter(edge, 0.0f), edge, std::nextafter(edge, 2.0f)}) {
      if (least > 1.0f) continue;
      SamplingParams p{.min_p = least, .seed = random()};
      const SampleInput in{.logits = logits, .params = &p};
      std::vector<float> processed;
      const Sampled expected = sample_reference(in, &processed);
      ASSERT_EQ(sampler.sample(in).token, expected.token) << i;
      ASSERT_TRUE(same_bits(std::as_const(sampler.processed()).values(), processed)) << i;
      const auto kept = std::ranges::count_if(processed, [](float x) { return x > -kInfinity; });
      const float low = edge == 1.0f ? max : at;
      if (least == edge) {
        EXPECT_EQ(kept, std::ranges::count_if(logits, [&](float x) { return x >= low; })) << i;
      }
    }
  }
}

TEST(Sampler, EqualsItsDefinitionOnWholeVocabularies) {
  ScopedFlushToZero flush;
  std::mt19937 random(2);
  Sampler sampler;
  for (int i = 0; i < 12; ++i) {
    Case c;
    random_case(random, i % 2 ? 32000 : 151936, c);
    std::vector<float> processed;
    const Sampled expected = sample_reference(c.input, &processed);
    const Sampled got = sampler.sample(c.input);
    ASSERT_EQ(got.token, expected.token) << "case " << i;
    ASSERT_TRUE(got.error || same_bits(std::as_const(sampler.processed()).values(), processed));
  }
}

TEST(Sampler, NoiseBlocksAreTheSingleNumbers) {
  std::mt19937 random(3);
  for (int i = 0; i < 200; ++i) {
    const NoiseKey key{.seed = random() * uint64_t{0x100000001},
                       .position = static_cast<uint32_t>(random()),
                       .choice = static_cast<uint32_t>(random() % 8),
                       .purpose = static_cast<RandomPurpose>(random() % 3)};
    const uint32_t block = random() % 5000;
    uint32_t bits[kNoiseBlock];
    random_block(key, block, bits);
    for (int j = 0; j < kNoiseBlock; ++j)
      ASSERT_EQ(bits[j], random_bits(key, block * kNoiseBlock + j));
  }
}

TEST(Sampler, NoiseIsAsLargeAsItSaysAndGrowsWithItsBits) {
  EXPECT_LT(gumbel_of(0xffffffff), kMaxGumbel);
  EXPECT_GT(gumbel_of(0xffffffff), 22.8);
  EXPECT_GT(gumbel_of(0), -3.14);
  for (uint32_t bits = 0; bits < 0xff000000; bits += 0x00100001)
    EXPECT_LT(gumbel_of(bits), gumbel_of(bits + 0x00100001));
}

// Every part of the key is another sample; the batch, the thread or an earlier sample is not.
TEST(Sampler, TheSampleDependsOnItsKeyAlone) {
  ScopedFlushToZero flush;
  const std::vector<float> logits(1000, 0.0f);
  SamplingParams p;
  SampleInput in{.logits = logits, .params = &p};
  Sampler sampler;
  const int32_t first = sampler.sample(in).token;
  in.position = 1;
  const int32_t position = sampler.sample(in).token;
  in.position = 0, in.choice = 1;
  const int32_t choice = sampler.sample(in).token;
  in.choice = 0, p.seed = 1;
  const int32_t seed = sampler.sample(in).token;
  EXPECT_NE(first, position);
  EXPECT_NE(first, choice);
  EXPECT_NE(first, seed);
  p.seed = 0;
  EXPECT_EQ(sampler.sample(in).token, first);
  EXPECT_EQ(first, 522);  // recorded: a change is a new version of the arithmetic
}

TEST(Sampler, TiesGoToTheLowerId) {
  ScopedFlushToZero flush;
  std::vector<float> logits(100, -1.0f);
  logits[70] = logits[33] = logits[34] = 2.0f;
  SamplingParams p;
  p.temperature = 0;
  Sampler sampler;
  EXPECT_EQ(sampler.sample({.logits = logits, .params = &p}).token, 33);
  p.temperature = 1;
  p.top_k = 2;
  for (int position = 0; position < 50; ++position) {
    const int32_t token =
        sampler.sample({.logits = logits, .params = &p, .position = position}).token;
    EXPECT_TRUE(token == 33 || token == 34);
  }
}

TEST(Sampler, OnlyAllowedTokensAreDrawnAndBadWordsNeverEnd) {
  ScopedFlushToZero flush;
  const std::vector<float> logits(200, 0.0f);
  SamplingParams p;
  p.allowed_token_ids = {150, 3, 3, 77};
  p.bad_words = {{77}, {3, 150}, {150, 150, 3}};
  p = checked(p, 200);
  EXPECT_EQ(p.allowed_token_ids, (std::vector<int32_t>{3, 77, 150}));
  Sampler sampler;
  const auto drawn_behind = [&](std::vector<int32_t> answer) {
    std::set<int32_t> tokens;
    for (int position = 0; position < 100; ++position)
      tokens.insert(
          sampler.sample({.logits = logits, .params = &p, .position = position, .answer = answer})
              .token);
    return tokens;
  };
  EXPECT_EQ(drawn_behind({}), (std::set<int32_t>{3, 150}));
  EXPECT_EQ(drawn_behind({3}), (std::set<int32_t>{3}));
  EXPECT_EQ(drawn_behind({3, 3}), (std::set<int32_t>{3}));
  EXPECT_EQ(drawn_behind({150}), (std::set<int32_t>{3, 150}));
  EXPECT_EQ(drawn_behind({150, 150}), (std::set<int32_t>{150}));
  EXPECT_EQ(drawn_behind({150, 150, 3}), (std::set<int32_t>{3}));
}

TEST(Sampler, TopPStopsWhereTheSumReachesTheLimit) {
  ScopedFlushToZero flush;
  const std::vector<float> logits(64, 1.0f);  // equal weights: sums meet the limit exactly
  SamplingParams p;
  Sampler sampler;
  for (int kept = 1; kept < 64; ++kept) {
    p.top_p = kept / 64.0;
    std::vector<float> processed;
    const SampleInput in{.logits = logits, .params = &p};
    EXPECT_EQ(sample_reference(in, &processed).token, sampler.sample(in).token);
    EXPECT_EQ(64 - std::count(processed.begin(), processed.end(), kExcluded), kept);
    EXPECT_TRUE(same_bits(std::as_const(sampler.processed()).values(), processed)) << kept;
  }
}

TEST(Sampler, BadRowsFail) {
  ScopedFlushToZero flush;
  Sampler sampler;
  for (const double temperature : {0.0, 1.0})
    for (const int vocab : {1, 31, 32, 33, 100}) {
      SamplingParams p;
      p.temperature = temperature;
      for (int bad = 0; bad < vocab; bad += 10) {
        std::vector<float> logits(vocab, 1.0f);
        logits[bad] = std::numeric_limits<float>::quiet_NaN();
        EXPECT_STREQ(sampler.sample({.logits = logits, .params = &p}).error,
                     "the model's logits are not numbers");
        logits[bad] = kInfinity;
        EXPECT_STREQ(sampler.sample({.logits = logits, .params = &p}).error,
                     "the model's logits are not numbers");
      }
      const std::vector<float> nothing(vocab, -kInfinity);
      EXPECT_STREQ(sampler.sample({.logits = nothing, .params = &p}).error,
                   "no token is allowed here");
    }
}

TEST(TokenHistory, IsAFunctionOfTheTokens) {
  std::mt19937 random(4);
  for (int round = 0; round < 50; ++round) {
    std::vector<int32_t> prompt, answer;
    for (int i = random() % 30; i > 0; --i) prompt.push_back(random() % 20);
    TokenHistory history(prompt);
    for (int i = random() % 30; i > 0; --i) {
      answer.push_back(random() % 20);
      TokenHistory branch = history;  // a draft goes its own way
      branch.push(random() % 20);
      history.push(answer.back());
    }
    std::vector<TokenHistory::Entry> expected;
    for (int32_t token = 0; token < 20; ++token) {
      const int in_answer = std::count(answer.begin(), answer.end(), token);
      if (in_answer + std::count(prompt.begin(), prompt.end(), token) > 0)
        expected.push_back({token, in_answer});
    }
    EXPECT_EQ(std::vector(history.entries().begin(), history.entries().end()), expected);
  }
}

TEST(Sampler, WarmSamplingDoesNotAllocate) {
  ScopedFlushToZero flush;
  std::mt19937 random(5);
  std::vector<Case> cases(100);
  for (Case& c : cases) random_case(random, 500, c);
  for (Case& c : cases)  // the vector has its final place now
    c.input.logits = c.logits, c.input.params = &c.params, c.input.history = &c.history,
    c.input.allowed = c.allowed;
  Sampler sampler;
  const auto sample_all = [&] {
    const int64_t before = allocation_count();
    for (const Case& c : cases) sampler.sample(c.input);
    return allocation_count() - before;
  };
  EXPECT_GT(sample_all(), 0);
  EXPECT_EQ(sample_all(), 0);
}

}  // namespace
}  // namespace invar
