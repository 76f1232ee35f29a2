// What is told of an engine's steps.
#include "server/step_watch.h"

#include <gtest/gtest.h>

#include "session/instance.h"

namespace invar::server {
namespace {

struct Heard final : BackendSink {
  void on_begun(const RequestBegun& one) override { begun.push_back(one.request); }
  void on_token(const TokenOutput& output) override { tokens.push_back(output); }
  void on_prompt(const PromptOutput&) override {}
  void on_pooled(const PooledOutput&) override {}
  void on_step(const StepRecord& step) override { steps.push_back(step); }
  void on_step_end() override {}
  void on_failure(const std::string&) override {}

  std::vector<int64_t> begun;
  std::vector<TokenOutput> tokens;
  std::vector<StepRecord> steps;
};

Request request(int64_t id, int tokens) {
  Request one{.id = id, .prompt = {1, 2, 3, 4, 5, 6, 7, 8}};
  one.params.max_tokens = tokens;
  one.params.ignore_eos = true;
  return one;
}

TEST(StepWatch, TellsRowsAndWhoWaits) {
  InstanceOptions options{.model = {.model = "tiny", .load_format = "dummy:1", .threads = 1}};
  options.engine.kv_bytes = 16 << 20;
  options.engine.scheduler.max_model_len = 64;
  options.engine.scheduler.policy = "vllm";  // a prompt's step computes nothing else
  Instance instance(options);
  StepWatch watch(instance.engine(), 3);
  Heard heard;
  EXPECT_FALSE(watch.step(heard)) << "there was nothing to do";
  EXPECT_TRUE(heard.steps.empty());

  instance.engine().add(request(1, 3));
  ASSERT_TRUE(watch.step(heard));
  EXPECT_EQ(heard.begun, (std::vector<int64_t>{1}));
  EXPECT_EQ(heard.steps[0].engine, 3);
  EXPECT_EQ(heard.steps[0].prompt_rows, 8);
  EXPECT_EQ(heard.steps[0].decode_rows, 0);
  EXPECT_EQ(heard.steps[0].tokens, 1);
  EXPECT_GT(heard.steps[0].ns, 0);

  instance.engine().add(request(2, 1));
  ASSERT_TRUE(watch.step(heard));
  EXPECT_EQ(heard.begun, (std::vector<int64_t>{1, 2}));
  EXPECT_EQ(heard.steps[1].prompt_rows, 8);
  EXPECT_EQ(heard.steps[1].stalled, 1) << "request 1 had begun and got no row";

  ASSERT_TRUE(watch.step(heard));
  EXPECT_EQ(heard.steps[2].decode_rows, 1);
  EXPECT_EQ(heard.steps[2].stalled, 0);
  // Since the first step, so the second one is in it.
  EXPECT_GE(1000 * int64_t{heard.steps[2].widest_gap_us} + 1000, heard.steps[1].ns);
  // It is cancelled: nobody waits for its tokens.
  watch.forget(1);
  instance.engine().abort(1);
  instance.engine().add(request(4, 1));
  ASSERT_TRUE(watch.step(heard));
  EXPECT_EQ(heard.steps.back().stalled, 0);
}

}  // namespace
}  // namespace invar::server
