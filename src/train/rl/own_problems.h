// Problems of one's own: lines of JSON, and what judges their answers.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "train/rl/problems.h"
#include "train/rl/reward_process.h"

namespace invar::rl {

// [tasks] of a recipe that names a file.
struct OwnTasks {
  std::string file;  // empty: there is none
  // exact: the answer is the right one; last_line: its last line is that of the right one;
  // contains: the right one stands in it. Each of an answer that came to its end by itself.
  std::string reward = "exact";
  // A program judges instead (RewardProcess), or FILE:NAME of a Python function.
  std::vector<std::string> command;
  std::string python;
  int64_t held_out = 0;  // lines at the end that are for evaluation alone
};

class OwnProblems {
 public:
  // Lines {"prompt": text, special tokens written out} or {"messages": [{"role", "content"}, ...]},
  // which become ChatML, and "answer": the right one, or ""; or rows of a Parquet file with these
  // columns. verl's are read too: a list of messages as "prompt", "reward_model.ground_truth" as
  // the answer. Throws Error naming the line.
  explicit OwnProblems(const OwnTasks& tasks);

  // Line `index` of those to learn from, or of those held out, going round.
  Problem make(corpus::Split split, int64_t index) const;
  // The reward in a conversation of one turn.
  double reward(const Problem& problem, const std::string& answer, bool ended);
  Judgement judge(const Spoken& spoken);
  // SHA-256 of the lines.
  const std::string& digest() const { return digest_; }
  // The judge, as a run's identity has it: a name, the words of a command, or the function with
  // its file's SHA-256.
  const std::string& judge_name() const { return judge_; }

 private:
  const OwnTasks tasks_;
  std::vector<Problem> problems_;
  std::string digest_, judge_;
  std::unique_ptr<RewardProcess> process_;
};

}  // namespace invar::rl
