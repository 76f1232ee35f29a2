#include "server/worker.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace invar::server {
namespace {

TEST(Worker, RunsTasksInTheirOrderAndAllOfThemBeforeItEnds) {
  std::vector<int> done;
  {
    Worker worker;
    for (int i = 0; i < 100; ++i) worker.post([&done, i] { done.push_back(i); });
  }
  ASSERT_EQ(done.size(), 100u);
  EXPECT_TRUE(std::ranges::is_sorted(done));
}

TEST(Worker, RunsThemOnAThreadOfItsOwn) {
  std::thread::id first, second;
  {
    Worker worker;
    worker.post([&] { first = std::this_thread::get_id(); });
    worker.post([&] { second = std::this_thread::get_id(); });
  }
  EXPECT_EQ(first, second);
  EXPECT_NE(first, std::this_thread::get_id());
}

}  // namespace
}  // namespace invar::server
