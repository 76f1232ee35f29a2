#include "base/thread_pool.h"

#include <gtest/gtest.h>

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
