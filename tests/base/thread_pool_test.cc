#include "base/thread_pool.h"

#include <gtest/gtest.h>
#include <sched.h>

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
