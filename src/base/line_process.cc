#include "base/line_process.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>

#include "base/child_process.h"
#include "base/error.h"

namespace invar {

namespace {

constexpr size_t kLongestLine = 1 << 20;

}  // namespace

// It reads and writes one end of a pair of sockets.
LineProcess::LineProcess(const std::vector<std::string>& command, const std::string& name,
                         int seconds)
    : name_(name), seconds_(seconds) {
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

LineProcess::~LineProcess() {
  ::close(socket_);
  ::kill(process_, SIGKILL);
  ::waitpid(process_, nullptr, 0);
}

json::Value LineProcess::ask(const json::Value& line) {
  send(json::dump(line) + '\n');
  return json::parse(receive(), name_);
}

void LineProcess::send(const std::string& line) const {
  for (size_t sent = 0; sent < line.size();) {
    const ssize_t n = ::send(socket_, line.data() + sent, line.size() - sent, MSG_NOSIGNAL);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) fail("{} has ended: {}", name_, std::strerror(errno));
    sent += static_cast<size_t>(n);
  }
}

std::string LineProcess::receive() {
  for (;;) {
    if (const size_t end = received_.find('\n'); end != std::string::npos) {
      const std::string line = received_.substr(0, end);
      received_.erase(0, end + 1);
      return line;
    }
    if (received_.size() > kLongestLine)
      fail("{}: expected a line of at most {} bytes", name_, kLongestLine);
    pollfd ready{.fd = socket_, .events = POLLIN, .revents = 0};
    const int found = ::poll(&ready, 1, seconds_ * 1000);
    if (found < 0 && errno == EINTR) continue;
    if (found == 0) fail("{}: no answer in {} seconds", name_, seconds_);
    char piece[4096];
    const ssize_t n = ::recv(socket_, piece, sizeof piece, 0);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) fail("{} ended without an answer", name_);
    received_.append(piece, static_cast<size_t>(n));
  }
}

}  // namespace invar
