#include "train/rl/own_problems.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <cstring>
#include <fstream>

#include "base/child_process.h"
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
  Problem problem{Task::own, messages ? chat_of(*messages, where) : text_at(line, "prompt", where),
                  text_at(line, "answer", where)};
  if (problem.prompt.empty())
    fail("{}: expected a \"prompt\" or \"messages\", found neither", where);
  return problem;
}

}  // namespace

// It reads and writes one end of a pair of sockets.
RewardProcess::RewardProcess(const std::vector<std::string>& command) : name_(command.at(0)) {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0)
    fail("the system gives no sockets for {}: {}", name_, std::strerror(errno));
  std::vector<std::string> words{
      "/bin/sh", "-c", fmt::format("exec \"$@\" 0<&{} 1>&{} {}>&-", ends[1], ends[1], ends[1]),
      "sh"};
  words.insert(words.end(), command.begin(), command.end());
  socket_ = ends[0];
  process_ = start({.command = words, .sockets = {&ends[1], 1}});
  ::close(ends[1]);
}

RewardProcess::~RewardProcess() {
  ::close(socket_);
  ::kill(process_, SIGKILL);
  ::waitpid(process_, nullptr, 0);
}

void RewardProcess::send(const std::string& line) const {
  for (size_t sent = 0; sent < line.size();) {
    const ssize_t n = ::send(socket_, line.data() + sent, line.size() - sent, MSG_NOSIGNAL);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) fail("the reward's program {} has ended: {}", name_, std::strerror(errno));
    sent += static_cast<size_t>(n);
  }
}

std::string RewardProcess::receive() {
  for (;;) {
    if (const size_t end = received_.find('\n'); end != std::string::npos) {
      const std::string line = received_.substr(0, end);
      received_.erase(0, end + 1);
      return line;
    }
    if (received_.size() > kLongestLine)
      fail("the reward's program {}: expected a line of at most {} bytes", name_, kLongestLine);
    pollfd ready{.fd = socket_, .events = POLLIN, .revents = 0};
    const int found = ::poll(&ready, 1, kSeconds * 1000);
    if (found < 0 && errno == EINTR) continue;
    if (found == 0) fail("the reward's program {}: no answer in {} seconds", name_, kSeconds);
    char piece[4096];
    const ssize_t n = ::recv(socket_, piece, sizeof piece, 0);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) fail("the reward's program {} ended without an answer", name_);
    received_.append(piece, static_cast<size_t>(n));
  }
}

double RewardProcess::reward(const Problem& problem, const std::string& answer, bool ended) {
  send(json::dump(json::Object{{"prompt", problem.prompt},
                               {"right", problem.right},
                               {"answer", answer},
                               {"ended", ended}}) +
       '\n');
  const std::string where = "the reward's program " + name_;
  const json::Value said = json::parse(receive(), where);
  const json::Value* value = said.is_object() ? said.find("reward") : nullptr;
  if (!value || !value->is_number() || !std::isfinite(value->as_number()))
    fail("{}: expected {{\"reward\": number}}, found {}", where, json::excerpt(said));
  return value->as_number();
}

OwnProblems::OwnProblems(const OwnTasks& tasks) : tasks_(tasks) {
  std::ifstream file(tasks.file);
  if (!file) fail("{}: the file of problems cannot be read", tasks.file);
  Sha256 sha;
  std::string line;
  for (size_t number = 1; std::getline(file, line); ++number) {
    const std::string where = fmt::format("{}: line {}", tasks.file, number);
    if (number > kMostLines || line.size() > kLongestLine)
      fail("{}: expected at most {} lines of {} bytes", where, kMostLines, kLongestLine);
    sha.update(std::as_bytes(std::span(line)));
    sha.update(std::as_bytes(std::span("\n", 1)));
    if (!line.empty()) problems_.push_back(problem_of(line, where));
  }
  if (std::ssize(problems_) <= tasks.held_out)
    fail("{}: expected more problems than the {} that are held out, found {}", tasks.file,
         tasks.held_out, problems_.size());
  digest_ = to_hex(sha.finish());
  if (!tasks.command.empty()) process_ = std::make_unique<RewardProcess>(tasks.command);
}

Problem OwnProblems::make(corpus::Split split, int64_t index) const {
  const int64_t learned = std::ssize(problems_) - tasks_.held_out;
  const bool is_held_out = split == corpus::Split::held_out_problems;
  const int64_t at = is_held_out ? learned + index % tasks_.held_out : index % learned;
  return problems_[static_cast<size_t>(at)];
}

double OwnProblems::reward(const Problem& problem, const std::string& answer, bool ended) {
  if (process_) return process_->reward(problem, answer, ended);
  if (!ended) return 0;
  if (tasks_.reward == "contains") return answer.find(problem.right) != std::string::npos;
  if (tasks_.reward == "last_line") return last_line(answer) == last_line(problem.right);
  return answer == problem.right;
}

}  // namespace invar::rl
