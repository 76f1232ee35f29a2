// Lines of batches on their way, with answers that the test gives.
#include "server/batches.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

namespace invar::server {
namespace {

struct Case {
  ~Case() {
    for (const char* end : {"", "-wal", "-shm"}) std::filesystem::remove(path + end);
  }
  Batch add(const std::string& id, int64_t lines) {
    Batch batch{.id = id, .owner = "o", .endpoint = "/v1/completions", .window = "24h"};
    std::vector<BatchLine> all;
    for (int64_t i = 1; i <= lines; ++i) all.push_back({i, "l" + std::to_string(i), "{}"});
    store.add_batch(batch, all);
    batches.begin(batch);
    return batch;
  }
  // Runs what was given to the threads.
  void run() {
    while (!tasks.empty())
      for (const auto& task : std::exchange(tasks, {})) task();
  }
  void answer_all(int status = 200) {
    run();
    for (const auto& one : std::exchange(asked, {}))
      one->reply({.status = status, .body = "{\"n\": 1}"});
    run();
  }

  static std::string new_path() {
    static int number = 0;
    return testing::TempDir() + "invar_batches_" + std::to_string(::getpid()) + "_" +
           std::to_string(++number) + ".db";
  }

  const std::string path = new_path();
  BatchStore store{path, 1 << 20};
  std::vector<std::function<void()>> tasks, later;
  std::vector<std::shared_ptr<Exchange>> asked;
  Batches batches{store,
                  {.ask = [this](auto exchange) { asked.push_back(exchange); },
                   .pool = [this](auto task) { tasks.push_back(task); },
                   .serving = [this](auto task) { tasks.push_back(task); },
                   .later = [this](auto task) -> std::shared_ptr<void> {
                     later.push_back(task);
                     return std::make_shared<int>();
                   }}};
};

TEST(Batches, SoManyAtATimeAndInTurn) {
  Case c;
  c.add("a", 40);
  c.add("b", 40);
  c.run();
  ASSERT_EQ(c.asked.size(), Batches::kAtOnce);
  int of_a = 0;
  for (const auto& one : c.asked) {
    EXPECT_EQ(one->request.asks_for, "o");
    of_a += one->request.header("idempotency-key")->starts_with("a/") ? 1 : 0;
  }
  EXPECT_GT(of_a, 0);
  EXPECT_LT(of_a, static_cast<int>(Batches::kAtOnce));
  for (int i = 0; i < 10; ++i) c.answer_all();
  for (const char* id : {"a", "b"}) {
    const auto batch = c.store.find_batch(id);
    EXPECT_EQ(batch->status, Batch::Status::completed);
    EXPECT_EQ(batch->completed, 40);
    int64_t after = 0;
    const std::string content = c.store.content(batch->output_file, after, SIZE_MAX);
    EXPECT_EQ(std::ranges::count(content, '\n'), 40);
  }
}

TEST(Batches, ALineThatFindsNoPlaceIsAskedAgain) {
  Case c;
  c.add("a", 3);
  c.answer_all(429);
  EXPECT_EQ(c.store.find_batch("a")->failed, 0);
  EXPECT_TRUE(c.asked.empty());
  ASSERT_EQ(c.later.size(), 1u);
  for (const auto& task : std::exchange(c.later, {})) task();
  EXPECT_EQ(c.asked.size(), 3u);
  c.answer_all();
  EXPECT_EQ(c.store.find_batch("a")->completed, 3);
}

TEST(Batches, WhatIsRefusedIsAnErrorAndACancelledBatchKeepsWhatItHas) {
  Case c;
  c.add("a", 40);
  c.answer_all(400);
  c.run();
  c.batches.cancel("a");
  EXPECT_EQ(c.store.find_batch("a")->status, Batch::Status::in_progress);  // some are asked
  c.answer_all();
  const auto batch = c.store.find_batch("a");
  EXPECT_EQ(batch->status, Batch::Status::cancelled);
  EXPECT_EQ(batch->failed, static_cast<int64_t>(Batches::kAtOnce));
  EXPECT_EQ(batch->completed, static_cast<int64_t>(Batches::kAtOnce));
  EXPECT_TRUE(c.asked.empty());
}

TEST(Batches, WhatWasNotEndedGoesOnWithTheLinesThatAreLeft) {
  Case c;
  c.store.add_batch({.id = "a", .owner = "o", .endpoint = "/v1/completions"},
                    {{1, "l1", "{}"}, {2, "l2", "{}"}});
  c.store.add_answer("a", 1, false, "{}");
  c.batches.resume();
  c.run();
  ASSERT_EQ(c.asked.size(), 1u);
  EXPECT_EQ(*c.asked[0]->request.header("idempotency-key"), "a/2");
  c.answer_all();
  EXPECT_EQ(c.store.find_batch("a")->status, Batch::Status::completed);
}

}  // namespace
}  // namespace invar::server
