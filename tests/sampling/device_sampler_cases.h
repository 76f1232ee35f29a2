// Rows of logits with all kinds of parameters, for a DeviceSampler on whatever device.
#pragma once

#include <gtest/gtest.h>

#include <bit>
#include <limits>
#include <map>
#include <random>
#include <vector>

#include "kernels/select.h"
#include "numerics/logits_hash.h"
#include "sampling/device_sampler.h"

namespace invar::testing_sampling {

constexpr int32_t kRows = 16;

// Rows that differ in kind: ordinary, ties, all excluded, NaN, infinite.
inline std::vector<float> rows_of_logits(int64_t vocab, uint32_t seed) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  std::mt19937 random(seed);
  std::vector<float> logits(kRows * vocab);
  for (float& x : logits) x = std::uniform_real_distribution<float>(-6, 6)(random);
  std::fill_n(logits.begin() + vocab, vocab, 1.0f);
  std::fill_n(logits.begin() + 2 * vocab, vocab, -kInfinity);
  logits[3 * vocab + vocab / 2] = std::numeric_limits<float>::quiet_NaN();
  logits[4 * vocab + vocab / 3] = kInfinity;
  logits[5 * vocab] = -kInfinity;
  for (int64_t i = 0; i < vocab; ++i) logits[6 * vocab + i] = static_cast<float>(i % 7) * 40.0f;
  for (int64_t i = 0; i < vocab; ++i) logits[7 * vocab + i] = i % 2 ? 0.0f : -0.0f;
  return logits;
}

// Parameters of a row: each filter on or off by the bits of `which`.
struct Case {
  SamplingParams params;
  TokenHistory history;
  std::vector<int32_t> answer;
  std::vector<uint64_t> allowed;
  int32_t generated = 0, given = -1;
  std::optional<int32_t> logprobs;
};
inline SampleInput input_of(const Case& c, int32_t row) {
  return {.params = &c.params,
          .position = 70000 + row,
          .choice = row % 3,
          .generated = c.generated,
          .history = &c.history,
          .answer = c.answer,
          .allowed = c.allowed,
          .logprobs = c.logprobs,
          .wants_hash = row % 3 == 0,
          .given = c.given};
}

inline Case case_of(uint32_t which, int64_t vocab, std::mt19937& random) {
  const auto token = [&] { return static_cast<int32_t>(random() % vocab); };
  Case c;
  c.params.seed = 0x123456789abcdef0;
  c.params.temperature = std::vector<double>{0.0, 0.01, 0.8, 4.0}[random() % 4];
  const auto has = [&](int bit) { return which >> bit & 1; };
  if (has(0)) c.params.top_k = 1 + static_cast<int32_t>(random() % std::min<int64_t>(vocab, 300));
  if (has(1)) c.params.top_p = std::vector<double>{1e-9, 0.3, 0.9, 0.999}[random() % 4];
  if (has(2)) c.params.min_p = 0.05;
  if (has(3)) {
    std::map<int32_t, double> biases;
    for (int i = 0; i < 20; ++i) biases[token()] = random() % 200 - 100.0;
    c.params.logit_bias.edit().assign(biases.begin(), biases.end());
  }
  if (has(4)) {
    c.params.repetition_penalty = 1.3;
    c.params.presence_penalty = 0.5;
    c.params.frequency_penalty = -0.25;
    c.history = TokenHistory(std::vector<int32_t>{token(), token(), token()});
    for (int i = 0; i < 10; ++i) c.history.push(token());
  }
  if (has(5)) {
    c.params.stop_token_ids = {token(), token()};
    c.params.min_tokens = 5;
    c.generated = static_cast<int32_t>(random() % 8);
    c.answer = {token()};
    c.params.bad_words = {{token()}, {c.answer[0], token()}};
  }
  if (has(6))
    for (int i = 0; i < 40; ++i) c.params.allowed_token_ids.edit().push_back(token());
  if (has(7)) {
    c.allowed.assign((vocab + 63) / 64, 0);
    for (uint64_t& word : c.allowed) word = uint64_t{random()} << 32 | random();
  }
  if (random() % 2) c.logprobs = static_cast<int32_t>(random() % std::min<int64_t>(vocab, 30));
  if (random() % 8 == 0) c.given = token();
  c.params.logprobs_mode = static_cast<LogprobsMode>(random() % 5);
  c.params = checked(std::move(c.params), static_cast<int32_t>(vocab));
  if (!DeviceSampler::can(input_of(c, 0)))
    c.params.logprobs_mode = LogprobsMode::processed_logprobs;
  return c;
}

// One row's result against the host's, by Sampler, LogprobReader and PositionHasher.
inline void expect_host_result(const SampleInput& input, const DeviceSampled& found,
                               const std::string& what) {
  Sampler sampler;
  const Kernels kernels = select_kernels(Order::portable, "scalar");
  LogprobReader reader(kernels);
  PositionHasher hash;
  TokenLogprobs logprobs;
  const bool has_nan = std::ranges::any_of(input.logits, [](float x) { return x != x; });
  const LogprobsMode mode = input.params->logprobs_mode;
  Sampled expected{.token = input.given};
  if (input.given < 0) expected = sampler.sample(input);
  if (!expected.error && input.logprobs && is_scaled(mode))
    expected.error = sampler.scale(input);
  else if (input.given >= 0 && input.logprobs && is_processed(mode))
    expected.error = sampler.process(input);
  if (expected.error) expected.token = -1;
  if (has_nan) expected = {.error = sampling::kNotANumber};
  EXPECT_EQ(found.token, expected.token) << what;
  EXPECT_STREQ(found.error, expected.error) << what;
  if (input.wants_hash) {
    EXPECT_EQ(found.digest, hash(input.logits)) << what;
  }
  if (expected.error || !input.logprobs) return;
  const std::span<const float> row =
      is_processed(mode) ? std::as_const(sampler.processed()).values() : input.logits;
  reader.read(row, expected.token, *input.logprobs, logprobs, is_logits(mode));
  // What a NaN holds is no bit of the answer (numerics 0).
  const auto bits = [](float x) { return x != x ? 0x7fc00000 : std::bit_cast<uint32_t>(x); };
  EXPECT_EQ(found.logprobs.rank, logprobs.rank) << what;
  EXPECT_EQ(bits(found.logprobs.logprob), bits(logprobs.logprob)) << what;
  ASSERT_EQ(found.logprobs.top.size(), logprobs.top.size()) << what;
  for (size_t i = 0; i < logprobs.top.size(); ++i) {
    EXPECT_EQ(found.logprobs.top[i].token, logprobs.top[i].token) << what << ", top " << i;
    EXPECT_EQ(bits(found.logprobs.top[i].logprob), bits(logprobs.top[i].logprob)) << what;
  }
}

// Steps of kRows rows, with every combination of filters in turn. `on_device` gives the address of
// logits on the sampler's device.
template <typename OnDevice>
void check_all(DeviceSampler& sampler, int64_t vocab, OnDevice on_device, int steps) {
  const ScopedFlushToZero flush;
  std::mt19937 random(static_cast<uint32_t>(vocab));
  const std::vector<float> logits = rows_of_logits(vocab, 1);
  const float* there = on_device(logits);
  for (int step = 0; step < steps; ++step) {
    std::vector<Case> cases;
    std::vector<SampleInput> inputs;
    for (int32_t row = 0; row < kRows; ++row) {
      uint32_t which = random() % 256;
      if (vocab < 50) which &= 0x97;  // else nothing may come
      cases.push_back(case_of(which, vocab, random));
    }
    for (int32_t row = 0; row < kRows; ++row) {
      inputs.push_back(input_of(cases[row], row));
      ASSERT_TRUE(DeviceSampler::can(inputs.back()));
    }
    const auto found = sampler.sample(there, vocab, inputs);
    ASSERT_EQ(std::ssize(found), kRows);
    for (int32_t row = 0; row < kRows; ++row) {
      inputs[row].logits = std::span<const float>(logits).subspan(row * vocab, vocab);
      expect_host_result(inputs[row], found[row],
                         "vocabulary " + std::to_string(vocab) + ", step " + std::to_string(step) +
                             ", row " + std::to_string(row));
    }
  }
}

}  // namespace invar::testing_sampling
