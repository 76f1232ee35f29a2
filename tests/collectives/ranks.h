// Ranks on threads, and what they compute, for tests of groups.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "collectives/group.h"

namespace invar::testing_ranks {

// Numbers whose sum depends on the order.
inline std::vector<float> operand(int rank, int64_t count) {
  std::mt19937 random(rank + 1);
  std::vector<float> values(count);
  for (float& v : values)
    v = std::ldexp(static_cast<float>(random()), static_cast<int>(random() % 60) - 60);
  return values;
}

// What each rank of a group holds after `work`.
using Work = std::function<std::vector<float>(Group&, int rank)>;
inline std::vector<std::vector<float>> on_threads(std::vector<std::unique_ptr<Group>> groups,
                                                  Work work) {
  std::vector<std::vector<float>> results(groups.size());
  std::vector<std::thread> threads;
  for (size_t r = 0; r < groups.size(); ++r)
    threads.emplace_back([&, r] { results[r] = work(*groups[r], static_cast<int>(r)); });
  for (std::thread& thread : threads) thread.join();
  return results;
}

inline std::vector<float> reduce_and_gather(Group& group, int rank, int64_t count = 1001) {
  std::vector<float> data = operand(rank, count), all(group.size() * 7);
  group.tree_all_reduce(data.data(), count, {});
  group.barrier();
  const std::vector<float> mine = operand(100 + rank, 7);
  group.all_gather(mine.data(), 7 * sizeof(float), all.data(), {});
  data.insert(data.end(), all.begin(), all.end());
  return data;
}

}  // namespace invar::testing_ranks
