#include "server/fair_queue.h"

#include <gtest/gtest.h>

namespace invar::server {
namespace {

// Runs all that waits, one after another; the order in which their owners came.
std::string order_of(FairQueue& queue, int64_t work_of_a, int64_t work_of_others) {
  std::string order;
  while (auto next = queue.pop()) {
    order += next->owner;
    queue.end(*next, next->owner == "a" ? work_of_a : work_of_others);
  }
  return order;
}

FairQueue filled(std::initializer_list<const char*> owners) {
  FairQueue queue(1);
  for (const char* owner : owners) queue.push({owner, [] {}});
  return queue;
}

TEST(FairQueue, OwnersTakeTurnsWhateverOneHasGivenBefore) {
  FairQueue queue = filled({"a", "a", "a", "a", "b", "c"});
  EXPECT_EQ(order_of(queue, 1, 1), "abcaaa");
}

TEST(FairQueue, WhoseTasksTakeLongerHasFewerOfThem) {
  FairQueue queue = filled({"a", "a", "a", "b", "b", "b", "b", "b"});
  EXPECT_EQ(order_of(queue, 4, 1), "abbbbaba") << "as much work, not as many tasks";
}

TEST(FairQueue, NobodySavesTurnsUp) {
  FairQueue queue = filled({"b", "b", "b", "b"});
  EXPECT_EQ(order_of(queue, 1, 1), "bbbb");
  for (const char* owner : {"b", "b", "b", "a", "a", "a"}) queue.push({owner, [] {}});
  EXPECT_EQ(order_of(queue, 1, 1), "bababa") << "b is not punished for what it had alone";
}

TEST(FairQueue, TasksOfAnOwnerKeepTheirOrderAndItsBoundOfThoseThatRun) {
  FairQueue queue(2);
  std::vector<int> ran;
  for (int i = 0; i < 3; ++i) queue.push({"a", [&ran, i] { ran.push_back(i); }});
  for (int i = 0; i < 2; ++i) queue.pop()->run();
  EXPECT_FALSE(queue.pop()) << "two of them run";
  queue.end({.owner = "a", .run = nullptr}, 1);
  queue.pop()->run();
  EXPECT_EQ(ran, (std::vector{0, 1, 2}));
}

TEST(FairQueue, OfBigTasksOneRunsAtATimeAndOthersPassBy) {
  FairQueue queue(2);
  for (const char* owner : {"a", "b"}) queue.push({owner, [] {}, true});
  queue.push({"c", [] {}});
  const auto big = queue.pop();
  EXPECT_EQ(big->owner, "a");
  EXPECT_EQ(queue.pop()->owner, "c");
  EXPECT_FALSE(queue.pop());
  queue.end(*big, 1);
  EXPECT_EQ(queue.pop()->owner, "b");
}

TEST(FairQueue, AnOwnerWithoutTasksIsForgotten) {
  FairQueue queue(1);
  for (int i = 0; i < 1000; ++i) {
    queue.push({std::to_string(i), [] {}});
    queue.end(*queue.pop(), 5);
  }
  EXPECT_EQ(queue.owners(), 0u);
  EXPECT_EQ(queue.waiting() + queue.running(), 0u);
}

}  // namespace
}  // namespace invar::server
