// Threads that share an engine: one at a time.
#include "engine/engine_driver.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

#include "answers.h"

namespace invar {
namespace {

using testing_engine::Record;

struct Driven {
  Model model{ModelOptions{.model = "tiny", .load_format = "dummy:7", .threads = 1}};
  Engine engine{model, {.kv_bytes = 16 << 20}};
  EngineDriver driver{engine};
  Record record;
};

Request request(int64_t id, int tokens) {
  Request one{.id = id, .prompt = {1, 2, 3, 4}};
  one.params.max_tokens = tokens;
  one.params.ignore_eos = true;
  return one;
}

TEST(EngineDriver, RunsUntilNothingIsLeft) {
  Driven d;
  EXPECT_FALSE(d.driver.step(d.record)) << "there was nothing to do";
  d.engine.add(request(1, 3));
  int steps = 0;
  d.driver.run(d.record, [&](const StepStats&) { ++steps; });
  EXPECT_EQ(steps, 3);
  EXPECT_EQ(d.record.answers[1].tokens.size(), 3);
  EXPECT_FALSE(d.engine.has_work());
}

// A thread that steps in a loop does not keep the others from their turns.
TEST(EngineDriver, OneThreadStepsAndOthersAsk) {
  Driven d;
  constexpr int kThreads = 3, kRequests = 5;
  std::atomic<int> inside = 0, most = 0, asking = kThreads;
  std::vector<std::thread> others;
  for (int thread = 0; thread < kThreads; ++thread) {
    others.emplace_back([&, thread] {
      for (int i = 0; i < kRequests; ++i)
        d.driver.between_steps([&](Engine& engine) {
          most = std::max(most.load(), ++inside);
          engine.add(request(thread * kRequests + i, 4));
          --inside;
        });
      --asking;
    });
  }
  while (d.driver.step(d.record) || asking > 0) continue;
  for (std::thread& other : others) other.join();
  d.driver.run(d.record);
  EXPECT_EQ(most, 1);
  ASSERT_EQ(d.record.answers.size(), kThreads * kRequests);
  for (const auto& [id, answer] : d.record.answers) EXPECT_EQ(answer.tokens.size(), 4) << id;
}

}  // namespace
}  // namespace invar
