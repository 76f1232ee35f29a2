#include "train/rl/own_problems.h"

#include <cstdio>
#include <fstream>
#include <functional>

#include "base/error.h"
#include "base/json.h"
#include "base/sha256.h"

namespace invar::rl {

namespace {

constexpr size_t kMostLines = 10'000'000, kLongestLine = 1 << 20;

// The text at a key, or `otherwise`.
std::string text_at(const json::Value& line, const char* key, const std::string& where) {
  const json::Value* value = line.find(key);
  if (!value) return {};
  if (!value->is_string())
    fail("{}: expected {} to be text, found {}", where, json::quoted(key), json::excerpt(*value));
  return value->as_string();
}

std::string chat_of(const json::Value& messages, const std::string& where) {
  if (!messages.is_array() || messages.as_array().empty())
    fail("{}: expected \"messages\" to be a list of messages, found {}", where,
         json::excerpt(messages));
  std::string text;
  for (const json::Value& message : messages.as_array()) {
    if (!message.is_object())
      fail("{}: expected a message to be an object, found {}", where, json::excerpt(message));
    const std::string role = text_at(message, "role", where);
    if (role.empty()) fail("{}: expected a message with a role, found none", where);
    text += "<|im_start|>" + role + "\n" + text_at(message, "content", where) + "<|im_end|>\n";
  }
  return text + "<|im_start|>assistant\n";
}

Problem problem_of(const std::string& text, const std::string& where) {
  const json::Value line = json::parse(text, where);
  if (!line.is_object()) fail("{}: expected an object, found {}", where, json::excerpt(line));
  const json::Value* messages = line.find("messages");
  if (const json::Value* prompt = line.find("prompt"); !messages && prompt && prompt->is_array())
    messages = prompt;
  Problem problem{Task::own, messages ? chat_of(*messages, where) : text_at(line, "prompt", where),
                  text_at(line, "answer", where)};
  const json::Value* judged = line.find("reward_model");  // verl's
  if (problem.right.empty() && judged && judged->is_object())
    problem.right = text_at(*judged, "ground_truth", where);
  if (problem.prompt.empty())
    fail("{}: expected a \"prompt\" or \"messages\", found neither", where);
  return problem;
}

// A word of a shell.
std::string quoted(const std::string& text) {
  std::string word = "'";
  for (const char c : text) word += c == '\'' ? "'\\''" : std::string(1, c);
  return word + "'";
}

// Each line of a file of JSON lines, or each row of a Parquet file as one: pyarrow reads it.
void for_lines(const std::string& file, const std::function<void(const std::string&)>& take) {
  if (!file.ends_with(".parquet")) {
    std::ifstream lines(file);
    if (!lines) fail("{}: the file of problems cannot be read", file);
    for (std::string line; std::getline(lines, line);) take(line);
    return;
  }
  constexpr const char* kReader =
      "import json, sys\n"
      "import pyarrow.parquet\n"
      "for batch in pyarrow.parquet.ParquetFile(sys.argv[1]).iter_batches():\n"
      "    for row in batch.to_pylist():\n"
      "        print(json.dumps(row, default=str))\n";
  FILE* out = ::popen(("exec python3 -c " + quoted(kReader) + ' ' + quoted(file)).c_str(), "re");
  if (!out) fail("{}: python3 cannot be started to read it", file);
  struct Close {
    void operator()(FILE* file) const { ::pclose(file); }
  };
  std::unique_ptr<FILE, Close> closing(out);
  std::string line;
  for (int c; (c = std::fgetc(out)) != EOF;) {
    if (c != '\n')
      line += static_cast<char>(c);
    else
      take(std::exchange(line, {}));
  }
  if (::pclose(closing.release()) != 0)
    fail("{}: expected a Parquet file that Python's pyarrow reads (its words are above)", file);
}

}  // namespace

OwnProblems::OwnProblems(const OwnTasks& tasks) : tasks_(tasks) {
  Sha256 sha;
  size_t number = 0;
  for_lines(tasks.file, [&](const std::string& line) {
    const std::string where = fmt::format("{}: line {}", tasks.file, ++number);
    if (number > kMostLines || line.size() > kLongestLine)
      fail("{}: expected at most {} lines of {} bytes", where, kMostLines, kLongestLine);
    sha.update(std::as_bytes(std::span(line)));
    sha.update(std::as_bytes(std::span("\n", 1)));
    if (!line.empty()) problems_.push_back(problem_of(line, where));
  });
  if (std::ssize(problems_) <= tasks.held_out)
    fail("{}: expected more problems than the {} that are held out, found {}", tasks.file,
         tasks.held_out, problems_.size());
  digest_ = to_hex(sha.finish());
  judge_ = tasks.reward;
  if (!tasks.python.empty()) {
    judge_ = judge_of_python(tasks.python);
    process_ = std::make_unique<RewardProcess>(python_command(tasks.python));
  } else if (!tasks.command.empty()) {
    judge_ = fmt::format("{}", fmt::join(tasks.command, " "));
    process_ = std::make_unique<RewardProcess>(tasks.command);
  }
}

Problem OwnProblems::make(corpus::Split split, int64_t index) const {
  const int64_t learned = std::ssize(problems_) - tasks_.held_out;
  const bool is_held_out = split == corpus::Split::held_out_problems;
  const int64_t at = is_held_out ? learned + index % tasks_.held_out : index % learned;
  return problems_[static_cast<size_t>(at)];
}

double OwnProblems::reward(const Problem& problem, const std::string& answer, bool ended) {
  const Judgement said = judge({.problem = problem, .answer = answer, .ended = ended});
  if (!said.reward)
    fail("expected a reward of the only turn, found a message: {}", json::quoted(said.message));
  return *said.reward;
}

Judgement OwnProblems::judge(const Spoken& spoken) {
  if (process_) return process_->judge(spoken);
  const std::string &answer = spoken.answer, &right = spoken.problem.right;
  const auto is_right = [&] {
    if (!spoken.ended) return false;
    if (tasks_.reward == "contains") return answer.find(right) != std::string::npos;
    if (tasks_.reward == "last_line") return last_line(answer) == last_line(right);
    return answer == right;
  };
  return {.reward = is_right() ? 1.0 : 0.0};
}

}  // namespace invar::rl
