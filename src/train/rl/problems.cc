#include "train/rl/problems.h"

#include <algorithm>
#include <bit>

#include "base/error.h"
#include "base/json.h"
#include "train/corpus/corpus.h"

namespace invar::rl {

namespace {

// Task number index, index + 1 ... of those chosen, going round.
Task pick_task(int64_t index, Tasks tasks) {
  int64_t turn = index % std::popcount(tasks);
  for (uint32_t i = 0;; ++i)
    if ((tasks >> i & 1) && turn-- == 0) return static_cast<Task>(i);
}

corpus::Turn make_turn(Task task, corpus::Random& random) {
  switch (task) {
    case Task::arithmetic:
      return corpus::make_arithmetic(random);
    case Task::format:
      return corpus::make_json(random);
    case Task::copying:
    case Task::own:
      break;
  }
  return corpus::make_copying(random);
}

// Arrays of as many elements, objects with the same keys in the same order, values of one type.
bool is_alike(const json::Value& value, const json::Value& model) {
  if (value.is_array() && model.is_array())
    return std::ranges::equal(value.as_array(), model.as_array(), is_alike);
  if (value.is_object() && model.is_object())
    return std::ranges::equal(value.as_object(), model.as_object(),
                              [](const json::Member& a, const json::Member& b) {
                                return a.first == b.first && is_alike(a.second, b.second);
                              });
  return std::string_view(value.type_name()) == model.type_name();
}

bool has_form_of(const std::string& text, const std::string& model) {
  try {
    return is_alike(json::parse(text, "answer"), json::parse(model, "answer"));
  } catch (const Error&) {
    return false;
  }
}

}  // namespace

Problem make_problem(uint64_t seed, corpus::Split split, int64_t index, Tasks tasks) {
  corpus::Random random(seed, index, split);
  const Task task = pick_task(index, tasks);
  corpus::Sample sample;
  sample.turns.push_back(make_turn(task, random));
  return {task, corpus::prompt_of(sample, 0), sample.turns[0].assistant};
}

std::string last_line(const std::string& text) {
  return text.substr(text.rfind('\n') + 1);
}

double reward(const Problem& problem, const std::string& answer, bool ended) {
  if (!ended) return 0;
  switch (problem.task) {
    case Task::arithmetic:
      return last_line(answer) == last_line(problem.right);
    case Task::format:
      return has_form_of(answer, problem.right);
    case Task::copying:
    case Task::own:
      break;
  }
  return answer == problem.right;
}

}  // namespace invar::rl
