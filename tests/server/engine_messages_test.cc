#include "server/engine_messages.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace invar::server {
namespace {

Digest digest(uint8_t value) {
  Digest all;
  all.fill(value);
  return all;
}

// No message that is shorter or longer is one.
template <typename Read>
void expect_exact(const std::string& bytes, Read read) {
  for (size_t size = 0; size < bytes.size(); ++size)
    EXPECT_THROW(read(std::string_view(bytes).substr(0, size)), Error) << size;
  EXPECT_THROW(read(bytes + '\0'), Error);
}

TEST(EngineMessages, AHelloArrivesAsItIs) {
  const Hello sent{.facts = {.identity = "invar-1/x",
                             .specification = digest(1),
                             .weights = digest(2),
                             .instruction_set = "amx",
                             .vocab = 3,
                             .max_model_len = 4,
                             .end_tokens = {5, 6},
                             .prompt_logprobs = true,
                             .block_size = 7,
                             .prefix_caching = true},
                   .stats = {.running = 8,
                             .waiting = 9,
                             .max_running = 23,
                             .blocks = 10,
                             .free_blocks = 11,
                             .steps = 12,
                             .rows = 13,
                             .samples = 14,
                             .preemptions = 15,
                             .prompt_tokens = 16,
                             .cached_tokens = 17,
                             .drafts = 18,
                             .draft_tokens = 19,
                             .accepted_tokens = 20,
                             .accepted_at = {21, 22}}};
  const std::string bytes = to_bytes(sent);
  const Hello found = hello_from(bytes);
  EXPECT_EQ(to_bytes(found), bytes);
  EXPECT_EQ(found.facts.specification, digest(1));
  EXPECT_EQ(found.facts.weights, digest(2));
  EXPECT_EQ(found.facts.end_tokens, (std::vector<int32_t>{5, 6}));
  EXPECT_EQ(found.stats.accepted_tokens, 20);
  EXPECT_EQ(found.stats.accepted_at, (std::vector<int64_t>{21, 22}));
  expect_exact(bytes, hello_from);
}

TEST(EngineMessages, ARequestArrivesAsItIs) {
  Request sent{.id = 1, .prompt = {2, 3}, .choice = 4, .structured_output = std::string("{}")};
  sent.params_are_checked = true;
  sent.params.temperature = 0.7;
  sent.params.seed = UINT64_MAX;
  sent.params.logit_bias = {{5, -1.5}};
  sent.params.bad_words = {{6}, {7, 8}};
  sent.params.logprobs_mode = LogprobsMode::processed_logprobs;
  sent.cache_salt = std::string("salt");
  sent.adapter = std::make_shared<const RequestAdapter>(
      RequestAdapter{.name = "a", .directory = "/b", .rank = 16, .digest = digest(5)});
  sent.priority = -9;
  sent.owner = INT64_MIN + 1;
  sent.hash_logits = false;
  sent.pooled = true;
  sent.prediction = {10};
  const std::string bytes = to_bytes(sent);
  const Request found = request_from(bytes);
  EXPECT_EQ(to_bytes(found), bytes);
  EXPECT_EQ(found.prompt, sent.prompt);
  EXPECT_EQ(found.params, sent.params);
  EXPECT_TRUE(found.params_are_checked);
  EXPECT_EQ(found.cache_salt, std::string("salt"));
  ASSERT_TRUE(found.adapter);
  EXPECT_EQ(*found.adapter, *sent.adapter);
  EXPECT_EQ(found.priority, -9);
  EXPECT_EQ(found.owner, sent.owner);
  EXPECT_FALSE(found.hash_logits);
  EXPECT_TRUE(found.pooled);
  EXPECT_EQ(found.prediction, sent.prediction);
  expect_exact(bytes, request_from);
}

TEST(EngineMessages, OutputsArriveInTheirOrder) {
  TokenOutput token{.request = 1, .token = 2, .index = 3, .finish = FinishReason::length};
  token.logprobs = TokenLogprobs{{.token = 2, .logprob = -0.5f, .rank = 1}, {{.token = 9}}};
  token.logits_hash = digest(4);
  const PromptOutput prompt{.request = 5, .position = 6, .logprobs = {{.token = 7}, {}}};
  const PooledOutput pooled{.request = 8, .numbers = {0.5f, -1.0f}};
  const std::string bytes =
      outputs_bytes({to_bytes(token), to_bytes(prompt), to_bytes(pooled)},
                    {{.request = 1, .at_ns = 2}}, {{.end_ns = 3, .tokens = 4}}, {.running = 5});
  const StepOutputs found = outputs_from(bytes);
  ASSERT_EQ(found.outputs.size(), 3u);
  EXPECT_EQ(found.outputs[0].token.finish, FinishReason::length);
  EXPECT_EQ(found.outputs[0].token.logits_hash, digest(4));
  EXPECT_EQ(found.outputs[0].token.logprobs->top.size(), 1u);
  EXPECT_EQ(found.outputs[1].prompt.position, 6);
  EXPECT_EQ(found.outputs[2].pooled.numbers, pooled.numbers);
  for (const RequestOutput& one : found.outputs)
    EXPECT_EQ(one.is_last(), one.kind != RequestOutput::Kind::prompt);
  EXPECT_EQ(found.steps, (std::vector<StepRecord>{{.end_ns = 3, .tokens = 4}}));
  EXPECT_EQ(found.begun.at(0).at_ns, 2);
  EXPECT_EQ(found.stats.running, 5);
  expect_exact(bytes, outputs_from);
}

TEST(EngineMessages, ShortOnes) {
  const Taken taken = taken_from(to_bytes(Taken{.weights = digest(3), .error = "a sentence"}));
  EXPECT_EQ(taken.weights, digest(3));
  EXPECT_EQ(taken.error, "a sentence");
  EXPECT_EQ(cancel_from(cancel_bytes(-5)), -5);
  expect_exact(cancel_bytes(1), cancel_from);
  const Sleep sleep =
      sleep_from(to_bytes(Sleep{.kv_cache = false, .weights = Sleep::Weights::lost}));
  EXPECT_FALSE(sleep.kv_cache);
  EXPECT_EQ(sleep.weights, Sleep::Weights::lost);
  expect_exact(to_bytes(Sleep{}), sleep_from);
  EXPECT_THROW(sleep_from(std::string("\1\3", 2)), Error);
  const Wake wake = wake_from(to_bytes(Wake{.kv_cache = true, .weights = false}));
  EXPECT_TRUE(wake.kv_cache && !wake.weights);
  expect_exact(to_bytes(Wake{}), wake_from);
}

}  // namespace
}  // namespace invar::server
