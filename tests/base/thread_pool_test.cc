#include "base/thread_pool.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <new>
#include <stdexcept>
#include <thread>

namespace invar {
namespace {

TEST(ThreadPool, EveryShareRunsOncePerRound) {
  for (const int threads : {1, 2, 3, 8}) {
    ThreadPool pool(threads);
    std::vector<int> seen(threads, 0);
    for (int round = 0; round < 200; ++round) pool.run([&](Part p) { seen[p.index] += p.count; });
    for (const int count : seen) EXPECT_EQ(count, 200 * threads);
  }
}

TEST(ThreadPool, WhatAShareThrowsReachesTheCaller) {
  for (const int threads : {1, 2, 8}) {
    ThreadPool pool(threads);
    for (const int thrower : {0, threads / 2, threads - 1}) {
      std::vector<int> seen(threads, 0);
      const auto work = [&](Part p) {
        ++seen[p.index];
        if (p.index == threads - 1) throw std::runtime_error("the last");
        if (p.index == thrower) throw std::bad_alloc();
      };
      // Of several the lowest share's, when all have ended.
      if (thrower == threads - 1)
        EXPECT_THROW(pool.run(work), std::runtime_error);
      else
        EXPECT_THROW(pool.run(work), std::bad_alloc);
      if (threads > 1) {  // a pool of one has no other share
        EXPECT_EQ(seen, std::vector<int>(threads, 1));
      }
      // The next run knows nothing of it.
      std::fill(seen.begin(), seen.end(), 0);
      EXPECT_NO_THROW(pool.run([&](Part p) { ++seen[p.index]; }));
      EXPECT_EQ(seen, std::vector<int>(threads, 1));
    }
  }
}

// More threads than cores, and shares that take no time: most workers come late, and find that
// their share is taken.
TEST(ThreadPool, EveryShareRunsOnceThoughWorkersAreLate) {
  const int threads = 4 * static_cast<int>(ThreadPool::usable_cores().size());
  ThreadPool pool(threads);
  std::vector<int> seen(threads, 0);
  std::vector<std::thread::id> by(threads);
  int taken = 0;
  for (int round = 0; round < 5000; ++round) {
    pool.run([&](Part p) {
      ++seen[p.index];
      by[p.index] = std::this_thread::get_id();
    });
    taken += by[1] == std::this_thread::get_id();
  }
  for (const int count : seen) EXPECT_EQ(count, 5000);
  EXPECT_GT(taken, 0);
}

TEST(ThreadPool, CallerIsPinnedToItsCore) {
  const std::vector<int> cores = ThreadPool::usable_cores();
  std::thread([&] {
    ThreadPool(1, static_cast<int>(cores.size()) - 1).pin_caller();
    EXPECT_EQ(::sched_getcpu(), cores.back());
    EXPECT_EQ(ThreadPool::usable_cores(), std::vector<int>{cores.back()});
  }).join();
  EXPECT_EQ(ThreadPool::usable_cores(), cores);
}

TEST(ThreadPool, EveryMemberFlushesSubnormals) {
  ThreadPool pool(2);
  int on[2] = {};
  EXPECT_FALSE(ScopedFlushToZero::is_on());
  pool.run([&](Part p) { on[p.index] = ScopedFlushToZero::is_on(); });
  EXPECT_EQ(on[0] + on[1], 2);
  EXPECT_FALSE(ScopedFlushToZero::is_on());
}

TEST(Part, RunsCoverTheWholeOnce) {
  for (const int64_t total : {0, 1, 7, 64, 1000})
    for (const int64_t grain : {1, 16, 32})
      for (const int count : {1, 2, 3, 7}) {
        int64_t next = 0;
        for (int i = 0; i < count; ++i) {
          const auto run = Part{i, count}.of(total, grain);
          EXPECT_EQ(run.begin, next);
          next = run.end;
        }
        EXPECT_EQ(next, total);
      }
}

}  // namespace
}  // namespace invar
