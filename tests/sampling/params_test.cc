#include "sampling/params.h"

#include <gtest/gtest.h>

#include <limits>

#include "base/error.h"

namespace invar {
namespace {

constexpr int32_t kVocab = 100;

std::string refusal(void (*change)(SamplingParams&)) {
  SamplingParams p;
  change(p);
  try {
    checked(p, kVocab);
  } catch (const UsageError& e) {
    return e.what();
  }
  return "";
}

TEST(SamplingParams, DefaultsAreVllms) {
  const SamplingParams p = checked({}, kVocab);
  EXPECT_EQ(p, SamplingParams{});
  EXPECT_EQ(p.n, 1);
  EXPECT_EQ(p.temperature, 1.0);
  EXPECT_EQ(p.top_p, 1.0);
  EXPECT_EQ(p.top_k, 0);
  EXPECT_EQ(p.min_p, 0.0);
  EXPECT_EQ(p.repetition_penalty, 1.0);
  EXPECT_EQ(p.max_tokens, 16);
}

TEST(SamplingParams, OneForm) {
  SamplingParams p;
  p.temperature = 1e-6;
  p.top_k = 5;
  p.top_p = 0.5;
  p.min_p = 0.1;
  EXPECT_TRUE(checked(p, kVocab).is_greedy());
  EXPECT_EQ(checked(p, kVocab).top_k, 0);
  p.temperature = 1e-3;
  EXPECT_EQ(checked(p, kVocab).temperature, 0.01);
  EXPECT_EQ(checked(p, kVocab).top_k, 5);
  p.top_k = -1;
  EXPECT_EQ(checked(p, kVocab).top_k, 0);
  p.top_k = kVocab;
  EXPECT_EQ(checked(p, kVocab).top_k, 0);
  p.logit_bias = {{7, 500.0}, {3, -1.5}};
  EXPECT_EQ(checked(p, kVocab).logit_bias,
            (std::vector<std::pair<int32_t, double>>{{3, -1.5}, {7, 100.0}}));
}

TEST(SamplingParams, AbsurdOnesAreRefusedInOneSentence) {
  EXPECT_EQ(refusal([](SamplingParams& p) { p.temperature = -1; }),
            "temperature must be in [0, 10000], not -1");
  EXPECT_EQ(refusal([](SamplingParams& p) { p.top_p = 0; }), "top_p must be in (0, 1], not 0");
  EXPECT_EQ(refusal([](SamplingParams& p) { p.top_k = -2; }),
            "top_k must be at least 1, or 0 or -1 to turn it off, not -2");
  EXPECT_EQ(refusal([](SamplingParams& p) { p.min_p = 1.5; }), "min_p must be in [0, 1], not 1.5");
  EXPECT_EQ(refusal([](SamplingParams& p) { p.repetition_penalty = 0; }),
            "repetition_penalty must be in [0.0001, 10000], not 0");
  EXPECT_EQ(refusal([](SamplingParams& p) { p.repetition_penalty = 1e-40; }),
            "repetition_penalty must be in [0.0001, 10000], not 1e-40");
  EXPECT_EQ(refusal([](SamplingParams& p) { p.repetition_penalty = 1e-4; }), "");
  EXPECT_EQ(refusal([](SamplingParams& p) {
              p.allowed_token_ids = {3, kVocab};
            }),
            "allowed_token_ids names token 100 but the model has tokens 0 to 99");
  EXPECT_EQ(refusal([](SamplingParams& p) {
              p.bad_words = {{3, -1}};
            }),
            "bad_words names token -1 but the model has tokens 0 to 99");
  EXPECT_EQ(refusal([](SamplingParams& p) { p.bad_words = {{}}; }),
            "a bad word must be at least one token, not none");
  const std::string nothing =
      "expected a token that may come first, found none: allowed_token_ids, bad_words and "
      "min_tokens leave nothing";
  EXPECT_EQ(refusal([](SamplingParams& p) {
              p.allowed_token_ids = {3, 4};
              p.stop_token_ids = {4};
              p.bad_words = {{3}};
              p.min_tokens = 1;
            }),
            nothing);
  EXPECT_EQ(refusal([](SamplingParams& p) {
              p.allowed_token_ids = {3, 4};
              p.stop_token_ids = {4};
              p.bad_words = {{3}};
            }),
            "");
  EXPECT_EQ(refusal([](SamplingParams& p) {
              for (int32_t i = 0; i < kVocab; ++i) p.bad_words.edit().push_back({i});
            }),
            nothing);
  EXPECT_EQ(refusal([](SamplingParams& p) { p.presence_penalty = 2.1; }),
            "presence_penalty must be in [-2, 2], not 2.1");
  EXPECT_EQ(refusal([](SamplingParams& p) { p.frequency_penalty = -3; }),
            "frequency_penalty must be in [-2, 2], not -3");
  EXPECT_EQ(refusal([](SamplingParams& p) { p.n = 0; }), "n must be in [1, 128], not 0");
  EXPECT_EQ(refusal([](SamplingParams& p) { p.n = 2, p.temperature = 0; }),
            "n must be 1 with temperature 0, not 2: all answers are equal");
  EXPECT_EQ(refusal([](SamplingParams& p) { p.max_tokens = 0; }),
            "max_tokens must be at least 1, not 0");
  EXPECT_EQ(refusal([](SamplingParams& p) { p.min_tokens = 17; }),
            "min_tokens must be in [0, max_tokens = 16], not 17");
  EXPECT_EQ(refusal([](SamplingParams& p) { p.stop_token_ids = {kVocab}; }),
            "stop_token_ids names token 100 but the model has tokens 0 to 99");
  EXPECT_EQ(refusal([](SamplingParams& p) {
              p.logit_bias = {{-1, 1.0}};
            }),
            "logit_bias names token -1 but the model has tokens 0 to 99");
  EXPECT_EQ(refusal([](SamplingParams& p) {
              p.logit_bias = {{1, 1.0}, {1, 2.0}};
            }),
            "logit_bias names token 1 twice");
  EXPECT_EQ(refusal([](SamplingParams& p) { p.logprobs = kVocab + 1; }),
            "logprobs must be in [0, 100], not 101");
  EXPECT_EQ(refusal([](SamplingParams& p) { p.prompt_logprobs = -1; }),
            "prompt_logprobs must be in [0, 100], not -1");
  const auto nan = [](SamplingParams& p) {
    p.temperature = std::numeric_limits<double>::quiet_NaN();
  };
  EXPECT_EQ(refusal(nan), "temperature must be in [0, 10000], not nan");
  for (void (*change)(SamplingParams&) :
       {+[](SamplingParams& p) { p.top_p = std::numeric_limits<double>::quiet_NaN(); },
        +[](SamplingParams& p) { p.min_p = std::numeric_limits<double>::quiet_NaN(); },
        +[](SamplingParams& p) { p.repetition_penalty = std::numeric_limits<double>::quiet_NaN(); },
        +[](SamplingParams& p) {
          p.logit_bias = {{1, std::numeric_limits<double>::quiet_NaN()}};
        }})
    EXPECT_NE(refusal(change), "");
}

}  // namespace
}  // namespace invar
