// Problems of one's own: lines of JSON, and what judges their answers.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "train/rl/problems.h"

namespace invar::rl {

// [tasks] of a recipe that names a file.
struct OwnTasks {
  std::string file;  // empty: there is none
  // exact: the answer is the right one; last_line: its last line is that of the right one;
  // contains: the right one stands in it. Each of an answer that came to its end by itself.
  std::string reward = "exact";
  // A program that judges instead: see RewardProcess.
  std::vector<std::string> command;
  int64_t held_out = 0;  // lines at the end that are for evaluation alone
};

// A program that gives rewards. It reads a line of JSON for each answer, {"prompt", "right",
// "answer", "ended"}, and writes a line {"reward": number} before the next one comes.
class RewardProcess {
 public:
  static constexpr int kSeconds = 60;  // for one answer

  // Throws Error where it cannot be started.
  explicit RewardProcess(const std::vector<std::string>& command);
  ~RewardProcess();
  RewardProcess(const RewardProcess&) = delete;
  RewardProcess& operator=(const RewardProcess&) = delete;

  // Throws Error where the program ends, is late, or says what is no such line.
  double reward(const Problem& problem, const std::string& answer, bool ended);

 private:
  void send(const std::string& line) const;
  std::string receive();

  const std::string name_;
  int socket_ = -1;
  int process_ = -1;
  std::string received_;  // behind the last line
};

class OwnProblems {
 public:
  // Lines {"prompt": text, special tokens written out} or {"messages": [{"role", "content"}, ...]},
  // which become ChatML, and "answer": the right one, or "". Throws Error naming the line.
  explicit OwnProblems(const OwnTasks& tasks);

  // Line `index` of those to learn from, or of those held out, going round.
  Problem make(corpus::Split split, int64_t index) const;
  double reward(const Problem& problem, const std::string& answer, bool ended);
  // SHA-256 of the file and of how it is judged.
  const std::string& digest() const { return digest_; }

 private:
  const OwnTasks tasks_;
  std::vector<Problem> problems_;
  std::string digest_;
  std::unique_ptr<RewardProcess> process_;
};

}  // namespace invar::rl
