// The engine's process under kills and other misfortunes: the sink sees every token once and
// unchanged, or a sentence.
#include "server/engine_process.h"

#include <gtest/gtest.h>

#include <chrono>
#include <csignal>
#include <random>
#include <thread>

#include "base/error.h"
#include "fake_engine_case.h"

namespace invar::server {
namespace {

struct Case {
  explicit Case(const char* mode) : engine({FAKE_ENGINE, mode}, fake_tokenizer()) {
    engine.start(collector);
  }
  Collector collector;  // first: the engine ends before it
  EngineProcess engine;
};

TEST(EngineProcessTest, KillsChangeNothing) {
  Case c("steady");
  std::mt19937 random(std::random_device{}());
  constexpr int kJobs = 24;
  for (int id = 1; id <= kJobs; ++id) c.engine.submit(job_of(id, static_cast<uint64_t>(100 + id)));
  // Each kill comes some tokens after the last: a moment that depends on no clock.
  for (int kill = 0; kill < 20; ++kill) {
    c.collector.wait_for_tokens(c.collector.tokens() + 1 + random() % 450);
    if (const pid_t engine = c.engine.process(); engine > 0) ::kill(engine, SIGKILL);
  }
  ASSERT_TRUE(c.collector.wait_for(kJobs));
  for (const auto& [id, answer] : c.collector.answers()) {
    EXPECT_EQ(answer.tokens, expected(static_cast<uint64_t>(100 + id))) << id;
    EXPECT_NE(answer.tokens, expected(static_cast<uint64_t>(101 + id)));  // it can fail
    EXPECT_EQ(answer.finish, FinishReason::length);
  }
  EXPECT_GE(c.engine.restarts(), 10);
}

// Bytes of prompts that no socket holds.
Request large_job(int64_t id) {
  Request request = job_of(id, static_cast<uint64_t>(id));
  request.prompt = std::vector<int32_t>(100'000, 1);
  return request;
}

// As SIGSTOP, a debugger or a hanging file system stop it: its socket stands, and nothing comes.
TEST(EngineProcessTest, AnEngineThatStandsStillIsReplaced) {
  using Clock = std::chrono::steady_clock;
  Case c("steady");
  c.engine.submit(job_of(1, 5, 4'000));
  c.collector.wait_for_tokens(50);
  const pid_t stopped = c.engine.process();
  ::kill(stopped, SIGSTOP);
  const auto before = Clock::now();
  for (int id = 2; id <= 9; ++id) c.engine.submit(large_job(id));
  c.engine.cancel(9);
  EXPECT_EQ(c.engine.process(), stopped);
  EXPECT_LT(Clock::now() - before, std::chrono::seconds(2));  // who asks it waits for nothing
  while (c.engine.process() == stopped && Clock::now() - before < std::chrono::seconds(30))
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_LT(Clock::now() - before, std::chrono::seconds(15));  // until it is noticed
  ASSERT_TRUE(c.collector.wait_for(8));
  EXPECT_EQ(c.engine.restarts(), 1);
  EXPECT_NE(c.engine.process(), stopped);
  EXPECT_EQ(c.collector.answers()[1].tokens, expected(5, 4'000));
  for (uint64_t id = 2; id <= 8; ++id)
    EXPECT_EQ(c.collector.answers()[static_cast<int64_t>(id)].tokens, expected(id)) << id;
}

// The other side: nothing to say, or little, is no standstill.
TEST(EngineProcessTest, AnEngineThatIsIdleIsLeftAlone) {
  Case c("steady");
  const pid_t engine = c.engine.process();
  ::kill(engine, SIGSTOP);
  std::this_thread::sleep_for(std::chrono::seconds(5));
  ::kill(engine, SIGCONT);
  std::this_thread::sleep_for(std::chrono::seconds(8));
  EXPECT_EQ(c.engine.process(), engine);
  EXPECT_EQ(c.engine.restarts(), 0);
}

TEST(EngineProcessTest, AnEngineThatStandsStillBeforeItIsReadyIsReplaced) {
  Case c("steady");
  c.engine.submit(job_of(1, 5, 1'000'000));
  c.collector.wait_for_tokens(50);
  const pid_t first = c.engine.process();
  ::kill(first, SIGKILL);
  pid_t second = first;
  while (second == first || second == 0) second = c.engine.process();
  ::kill(second, SIGSTOP);  // most likely before it has said that it is ready
  const auto before = std::chrono::steady_clock::now();
  while (c.engine.process() == second &&
         std::chrono::steady_clock::now() - before < std::chrono::seconds(20))
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_NE(c.engine.process(), second);
  c.collector.wait_for_tokens(c.collector.tokens() + 100);
  c.engine.cancel(1);
  EXPECT_EQ(c.engine.restarts(), 2);
}

TEST(EngineProcessTest, AnEngineThatDiesAgainAndAgainGetsThere) {
  Case c("dies");  // after 40 steps each time: repeated ones do not count as progress
  c.engine.submit(job_of(1, 5, 39));
  c.engine.submit(job_of(2, 6, 39));
  EXPECT_TRUE(c.collector.wait_for(2));
  EXPECT_EQ(c.collector.answers()[2].tokens, expected(6, 39));
}

// The other side of every test here: an engine that computes something else when it comes back.
TEST(EngineProcessTest, ADifferentAnswerIsFoundOutAndEnds) {
  Case c("drifts");
  c.engine.submit(job_of(1, 5, 1'000'000));
  while (c.collector.answers()[1].tokens.size() < 20)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  ::kill(c.engine.process(), SIGKILL);
  ASSERT_TRUE(c.collector.wait_for(1));
  EXPECT_EQ(c.collector.answers()[1].finish, FinishReason::failed);
  EXPECT_EQ(c.collector.answers()[1].error,
            "the engine came back and computed another answer than before");
}

TEST(EngineProcessTest, OtherWeightsResumeNothingAndAreNamed) {
  Case c("other-weights");
  const std::string before = to_hex(c.engine.facts().weights);
  c.engine.submit(job_of(1, 5, 1'000'000));
  ::kill(c.engine.process(), SIGKILL);
  ASSERT_TRUE(c.collector.wait_for(1));
  const std::string after = to_hex(c.engine.facts().weights);
  EXPECT_NE(before, after);
  const std::string error = c.collector.answers()[1].error;
  EXPECT_NE(error.find("and the weights " + before), std::string::npos) << error;
  EXPECT_NE(error.find("and " + after), std::string::npos) << error;
}

TEST(EngineProcessTest, RubbishFromTheEngineIsADeath) {
  Case c("garbage");
  for (int id = 1; id <= 4; ++id) c.engine.submit(job_of(id, static_cast<uint64_t>(id), 70));
  // Each engine gets 40 steps further than nothing: 70 tokens are never reached, and it is said.
  ASSERT_TRUE(c.collector.wait_for(4));
  for (const auto& [id, answer] : c.collector.answers()) {
    EXPECT_EQ(answer.finish, FinishReason::failed);
    const auto whole = expected(static_cast<uint64_t>(id), 70);
    ASSERT_LE(answer.tokens.size(), whole.size());
    EXPECT_TRUE(std::equal(answer.tokens.begin(), answer.tokens.end(), whole.begin()));
  }
}

TEST(EngineProcessTest, AJobThatKillsItsEngineFailsAndOthersCanFollow) {
  Case c("poison");
  c.engine.submit(job_of(1, kPoison));
  ASSERT_TRUE(c.collector.wait_for(1));
  EXPECT_EQ(c.collector.answers()[1].error,
            "the engine's process ended 12 times without a new token");
  c.engine.submit(job_of(2, 6, 50));
  ASSERT_TRUE(c.collector.wait_for(2));
  EXPECT_EQ(c.collector.answers()[2].tokens, expected(6, 50));
}

TEST(EngineProcessTest, ACancelledJobIsHeardOfNoMore) {
  Case c("steady");
  c.engine.submit(job_of(1, 5, 1'000'000));
  c.engine.submit(job_of(2, 6, 100));
  ASSERT_TRUE(c.collector.wait_for(1));
  c.engine.cancel(1);
  ::kill(c.engine.process(), SIGKILL);
  c.engine.submit(job_of(3, 7, 100));
  ASSERT_TRUE(c.collector.wait_for(2));
  const size_t heard = c.collector.answers()[1].tokens.size();
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_EQ(c.collector.answers()[1].tokens.size(), heard);
}

TEST(EngineProcessTest, RefusesAFormHere) {
  Case c("steady");
  Request request = job_of(1, 5);
  request.structured_output = R"({"regex": "("})";
  EXPECT_THROW(c.engine.submit(request), Error);
}

TEST(EngineProcessTest, SaysThatItNeverBegan) {
  EXPECT_THROW(EngineProcess({FAKE_ENGINE, "never"}, fake_tokenizer()), Error);
  EXPECT_THROW(EngineProcess({"/no/such/program"}, fake_tokenizer()), Error);
}

TEST(EngineMessagesTest, ComeBackAsTheyWereAndRefuseWhatIsCut) {
  Request request = job_of(9, 7);
  request.params.logit_bias = {{4, 0.1}};
  request.structured_output = "{}";
  request.cache_salt = "salt";
  request.hash_logits = true;
  request.choice = 3;
  request.priority = -2;
  request.pooled = true;
  const std::string bytes = to_bytes(request);
  EXPECT_EQ(to_bytes(request_from(bytes)), bytes);
  EXPECT_EQ(request_from(bytes).priority, -2);
  EXPECT_TRUE(request_from(bytes).pooled);
  TokenOutput token{.request = 9, .token = 5, .index = 2, .finish = FinishReason::failed};
  token.logprobs = TokenLogprobs{{5, -0.0f, 1}, {{6, -2.5f, 2}, {7, -3.0f, 3}}};
  token.error = "a sentence";
  const PooledOutput pooled{.request = 10, .numbers = {0.5f, -0.0f}};
  const std::vector<StepRecord> steps = {{.end_ns = 7, .decode_rows = 2}, {.end_ns = 9}};
  const std::string outputs = outputs_bytes({to_bytes(token), to_bytes(pooled)}, {{9, 5}}, steps,
                                            {.running = 3, .cached_tokens = 8});
  const StepOutputs step = outputs_from(outputs);
  EXPECT_EQ(step.outputs[1].pooled.numbers, pooled.numbers);
  EXPECT_EQ(step.outputs[1].request(), 10);
  EXPECT_TRUE(step.outputs[0].is_last() && step.outputs[1].is_last());
  EXPECT_EQ(step.outputs[0].error, "a sentence");
  EXPECT_EQ(step.outputs[0].token.logprobs, token.logprobs);
  EXPECT_EQ(step.begun.at(0).at_ns, 5);
  EXPECT_EQ(step.steps, steps);
  EXPECT_EQ(step.stats.cached_tokens, 8);
  for (size_t size = 0; size < bytes.size(); ++size)
    EXPECT_THROW(request_from(std::string_view(bytes).substr(0, size)), Error);
  for (size_t size = 0; size < outputs.size(); ++size)
    EXPECT_THROW(outputs_from(std::string_view(outputs).substr(0, size)), Error);
  std::mt19937 random(1);
  for (int i = 0; i < 5000; ++i) {  // neither a crash nor an enormous allocation
    std::string changed = outputs;
    changed[random() % changed.size()] = static_cast<char>(random());
    try {
      outputs_from(changed);
    } catch (const Error&) {
    }
  }
}

}  // namespace
}  // namespace invar::server
