// A program that judges answers, and may answer them: a reward, or an environment of several turns.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/line_process.h"
#include "train/rl/problems.h"

namespace invar::rl {

// The answer of the model in a turn of a conversation.
struct Spoken {
  const Problem& problem;
  std::string answer;
  bool ended = true;         // by itself
  int64_t conversation = 0;  // unique in the run
  int turn = 0;
  bool is_last = true;  // there is no room for another turn
};

// A reward, which ends the conversation, or the words that the model answers next: ChatML of a
// message, or text as it stands with its special tokens written out.
struct Judgement {
  std::optional<double> reward;
  std::string message;
};

// It reads a line of JSON for each turn, {"prompt", "right", "answer", "ended", "conversation",
// "turn", "last"}, and writes {"reward": number}, {"message": text, "role": "user"} or {"text":
// text} before the next one comes.
class RewardProcess {
 public:
  static constexpr int kSeconds = 60;  // for one answer

  // Throws Error where it cannot be started.
  explicit RewardProcess(const std::vector<std::string>& command);

  // Throws Error where the program ends, is late, or says what is no such line.
  Judgement judge(const Spoken& spoken);

 private:
  LineProcess process_;
};

// The program that calls a Python function, FILE:NAME, with those of the line's members that it has
// parameters for. It returns a number, a text (the next message), or one of the objects above.
std::vector<std::string> python_command(const std::string& function);
// NAME and the SHA-256 of its file. Throws Error where there is no such file.
std::string judge_of_python(const std::string& function);

}  // namespace invar::rl
