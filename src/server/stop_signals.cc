#include "stop_signals.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <string_view>

#include "base/error.h"
#include "base/signals.h"

namespace invar::server {

namespace {

// A handler knows nothing but this: the file that the first signal writes to, -1 from then on.
std::atomic<int> told_file = -1;
static_assert(std::atomic<int>::is_always_lock_free);

void on_stop_signal(int signal) {
  const int saved = errno;
  const int file = told_file.exchange(-1);
  const uint64_t one = 1;
  if (file < 0 || ::write(file, &one, sizeof one) != sizeof one) {
    std::signal(signal, SIG_DFL);
    std::raise(signal);  // is delivered when this handler returns
  }
  errno = saved;
}

// A user who closes the terminal or rotates logs does not mean to end answers.
void on_hangup(int) {
  constexpr std::string_view kLine =
      "invar: SIGHUP is ignored: the log is the error stream; SIGTERM ends the server\n";
  const int saved = errno;
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, kLine.data(), kLine.size());
  errno = saved;
}

void set_handler(void (*handler)(int)) {
  struct sigaction action {};
  action.sa_handler = handler;
  action.sa_flags = SA_RESTART;
  for (const int signal : {SIGTERM, SIGINT}) ::sigaction(signal, &action, nullptr);
}

void set_hangup_handler() {
  struct sigaction action {};
  action.sa_handler = on_hangup;
  action.sa_flags = SA_RESTART;
  ::sigaction(SIGHUP, &action, nullptr);
}

}  // namespace

StopSignals::StopSignals() : file_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (file_ < 0) fail("no file for signals could be had: {}", std::strerror(errno));
  told_file = file_;
  set_handler(on_stop_signal);
  ignore_signals_of_others();
  set_hangup_handler();
}

StopSignals::~StopSignals() {
  set_handler(SIG_DFL);
  told_file = -1;
  ::close(file_);
}

}  // namespace invar::server
