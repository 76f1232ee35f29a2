// The answers of one request hold what they have in common once.
#include <gtest/gtest.h>

#include "frontend/openai.h"

namespace invar::openai {
namespace {

const std::string kBody = R"({"prompt": "x", "n": 128, "seed": 7, "stop": ["one", "two", "one"],
  "stop_token_ids": [9, 3, 3], "allowed_token_ids": [5, 1, 2], "logit_bias": {"4": 1000, "2": -1},
  "cache_salt": "salt", "response_format": {"type": "json_object"}})";

Request read(int32_t vocab) {
  Context context{.vocab = vocab};
  Request request = parse_request(json::parse(kBody, "a body"), Endpoint::completions, context);
  check_params(request.base, vocab);
  return request;
}

TEST(SharedAnswers, HoldOneCopyOfEachListAndText) {
  const Request request = read(100);
  const Shared<std::vector<int32_t>> prompt = {1, 2, 3};
  const invar::Request first = request.answer(0, prompt), last = request.answer(127, prompt);
  EXPECT_EQ(first.choice, 0);
  EXPECT_EQ(last.choice, 127);
  EXPECT_TRUE(first.prompt.is_same(last.prompt));
  EXPECT_TRUE(first.cache_salt.is_same(last.cache_salt));
  EXPECT_TRUE(first.structured_output.is_same(last.structured_output));
  EXPECT_EQ(&first.stop.strings(), &last.stop.strings());
  EXPECT_TRUE(first.params.stop_token_ids.is_same(last.params.stop_token_ids));
  EXPECT_TRUE(first.params.allowed_token_ids.is_same(last.params.allowed_token_ids));
  EXPECT_TRUE(first.params.logit_bias.is_same(last.params.logit_bias));
  // What is in its one form already is not copied.
  const SamplingParams again = checked(last.params, 100);
  EXPECT_TRUE(again.stop_token_ids.is_same(first.params.stop_token_ids));
  EXPECT_TRUE(again.allowed_token_ids.is_same(first.params.allowed_token_ids));
  EXPECT_TRUE(again.logit_bias.is_same(first.params.logit_bias));
}

TEST(SharedAnswers, WhatIsGivenTwiceCountsOnceAndIsSorted) {
  const Request request = read(100);
  EXPECT_EQ(request.base.params.stop_token_ids, (std::vector<int32_t>{3, 9}));
  EXPECT_EQ(request.base.params.allowed_token_ids, (std::vector<int32_t>{1, 2, 5}));
  EXPECT_EQ(request.base.stop.strings(), (std::vector<std::string>{"one", "two"}));
}

// What is edited is the copy's own.
TEST(SharedAnswers, AnEditIsSeenByNobodyElse) {
  const Shared<std::vector<int32_t>> one = {1, 2};
  Shared<std::vector<int32_t>> other = one;
  other.edit().push_back(3);
  EXPECT_EQ(one, (std::vector<int32_t>{1, 2}));
  EXPECT_EQ(other, (std::vector<int32_t>{1, 2, 3}));
  const std::vector<int32_t>* own = &other.get();
  other.edit().push_back(4);
  EXPECT_EQ(&other.get(), own);
}

// Charged before it is held: each answer its own tokens, what they share once.
TEST(SharedAnswers, SayWhatTheyHold) {
  Request request = read(100);
  const size_t before = request.memory_bytes();
  request.base.cache_salt = std::string(100'000, 's');
  EXPECT_NEAR(static_cast<double>(request.memory_bytes() - before), 1e5, 1e3);
  request.prompts = {std::vector<int32_t>(1000)};
  EXPECT_GT(request.memory_bytes(), before + 128 * 4000);
}

}  // namespace
}  // namespace invar::openai
