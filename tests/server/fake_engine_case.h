// What tests of engines that are processes ask them, and who listens.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <condition_variable>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "fake_engine.h"
#include "server/backend.h"
#include "tokenizer/make_tokenizer.h"

namespace invar::server {

constexpr int32_t kTokens = 400;

// Every token once and in order.
class Collector final : public BackendSink {
 public:
  struct Answer {
    std::vector<int32_t> tokens;
    FinishReason finish = FinishReason::none;
    std::string error;
  };

  void on_token(const TokenOutput& output) override {
    const std::lock_guard lock(mutex_);
    Answer& answer = answers_[output.request];
    EXPECT_EQ(answer.finish, FinishReason::none);
    answer.finish = output.finish;
    if (output.error) answer.error = output.error;
    if (output.finish != FinishReason::failed) {
      EXPECT_EQ(output.index, std::ssize(answer.tokens));
      EXPECT_EQ(output.logprobs->token, output.token);
      EXPECT_EQ(output.logprobs->top[0].logprob, -1.5f);
      answer.tokens.push_back(output.token);
      ++tokens_, changed_.notify_all();
    }
    if (output.finish != FinishReason::none) ++finished_, changed_.notify_all();
  }
  void on_step(const StepRecord& step) override {
    const std::lock_guard lock(mutex_);
    engines_.insert(step.engine);
  }
  void on_step_end() override {}
  void on_failure(const std::string&) override {}

  bool wait_for(size_t finished, std::chrono::milliseconds most = std::chrono::seconds(30)) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, most, [&] { return finished_ >= finished; });
  }
  size_t tokens() {
    const std::lock_guard lock(mutex_);
    return tokens_;
  }
  void wait_for_tokens(size_t tokens) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, std::chrono::seconds(30), [&] { return tokens_ >= tokens; });
  }
  std::set<int32_t> engines() {
    const std::lock_guard lock(mutex_);
    return engines_;
  }
  std::map<int64_t, Answer> answers() {
    const std::lock_guard lock(mutex_);
    return answers_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<int64_t, Answer> answers_;
  std::set<int32_t> engines_;  // that have computed steps
  size_t finished_ = 0, tokens_ = 0;
};

inline Request job_of(int64_t id, uint64_t seed, int32_t tokens = kTokens) {
  Request request{.id = id, .prompt = {1, 2, 3}};
  request.params.seed = seed;
  request.params.max_tokens = tokens;
  return request;
}

inline std::vector<int32_t> expected(uint64_t seed, int32_t tokens = kTokens) {
  std::vector<int32_t> all;
  for (int32_t i = 0; i < tokens; ++i) all.push_back(fake_token(seed, i));
  return all;
}

inline const Tokenizer& fake_tokenizer() {
  static const Tokenizer made = Tokenizer::from_texts(make_tokenizer(300, 1).texts, "made");
  return made;
}

}  // namespace invar::server
