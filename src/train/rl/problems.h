// Problems whose answers a program can judge: a reward is 0 or 1 and needs no model.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "train/corpus/random.h"

namespace invar::rl {

enum class Task {
  arithmetic,  // a sum worked out; right when the last line is
  format,      // a table as JSON; right when a parser reads as many objects with the same keys and
               // types, whatever they say
  copying,     // lists and tables; right when the text is
  own,         // of a file (own_problems.h)
};
inline constexpr std::array<const char*, 4> kTaskNames = {"arithmetic", "format", "copying", "own"};

// A choice of tasks, one bit each.
using Tasks = uint32_t;
constexpr Tasks bit_of(Task task) {
  return 1u << static_cast<uint32_t>(task);
}
inline constexpr Tasks kAllTasks = bit_of(Task::own) - 1;  // that are made

struct Problem {
  Task task = Task::arithmetic;
  std::string prompt;  // a conversation up to where the answer begins, special tokens written out
  std::string right;   // an answer that has the reward
};

// Problem number `index`: a function of (seed, split, index, tasks) alone; tasks take turns.
Problem make_problem(uint64_t seed, corpus::Split split, int64_t index, Tasks tasks);

std::string last_line(const std::string& text);

// 1 or 0. `ended`: the answer came to its end by itself.
double reward(const Problem& problem, const std::string& answer, bool ended);

}  // namespace invar::rl
