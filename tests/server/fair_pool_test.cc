#include "server/fair_pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <latch>

namespace invar::server {
namespace {

const FairPool::Task kSlow{FairPool::Kind::slow, "a"}, kQuick{FairPool::Kind::quick, "a"};

TEST(FairPool, RunsAllThatItWasGivenBeforeItEndsAndWhatThatGives) {
  std::atomic<int> done = 0;
  {
    FairPool pool;
    for (int i = 0; i < 100; ++i)
      pool.post(kSlow, [&] {
        pool.post(kQuick, [&] { ++done; });
        ++done;
      });
  }
  EXPECT_EQ(done, 200);
}

TEST(FairPool, ASlowThreadIsFreeOfAnyOwnersTasksAndAQuickOneOfSlowTasks) {
  std::latch end(1), all(2);
  std::atomic<int> running = 0;
  FairPool pool;
  for (int i = 0; i < 10; ++i)
    pool.post(kSlow, [&] {
      if (++running <= 2) all.count_down();
      end.wait();
    });
  all.wait();
  for (const auto kind : {FairPool::Kind::slow, FairPool::Kind::quick}) {
    std::promise<void> other;
    pool.post({kind, "b"}, [&] { other.set_value(); });
    EXPECT_EQ(other.get_future().wait_for(std::chrono::seconds(10)), std::future_status::ready);
  }
  EXPECT_EQ(running, 2) << "of ten tasks of one owner";
  end.count_down();
}

TEST(FairPool, OnlySoManyTasksOfAnOwnerWait) {
  std::latch end(1);
  FairPool pool;
  size_t taken = 0;
  while (pool.offer(kQuick, [&] { end.wait(); })) ++taken;
  EXPECT_GE(taken, FairPool::kMostWaiting);
  EXPECT_LE(taken, FairPool::kMostWaiting + FairPool::kQuickThreads);
  EXPECT_TRUE(pool.offer({.owner = "b"}, [] {})) << "another one's do";
  EXPECT_EQ(pool.owners(), 2u);
  end.count_down();
}

TEST(FairPool, OutlivesATaskThatThrows) {
  FairPool pool;
  std::promise<void> next;
  pool.post(kQuick, [] { throw std::out_of_range("a task"); });
  pool.post(kQuick, [&] { next.set_value(); });
  EXPECT_EQ(next.get_future().wait_for(std::chrono::seconds(10)), std::future_status::ready);
}

TEST(FairPool, LargeBodiesAreThoseAbove64Kibibytes) {
  EXPECT_FALSE(is_large(64 << 10));
  EXPECT_TRUE(is_large((64 << 10) + 1));
  EXPECT_EQ(FairPool::reading("a", 64 << 10).kind, FairPool::Kind::quick);
  EXPECT_EQ(FairPool::reading("a", (64 << 10) + 1).kind, FairPool::Kind::slow);
}

}  // namespace
}  // namespace invar::server
