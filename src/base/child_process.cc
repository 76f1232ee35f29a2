#include "base/child_process.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <vector>

#include "base/error.h"
#include "base/signals.h"

namespace invar {

namespace {

// Between fork and exec: only what a signal handler may call. `sockets` ascend.
[[noreturn]] void become(char* const* arguments, std::span<const int> sockets,
                         const cpu_set_t* cores, bool own_group, pid_t parent) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(1);  // it ended before the line above
  ::signal(SIGINT, SIG_IGN);
  ::signal(SIGTERM, SIG_IGN);
  ignore_signals_of_others();
  if (own_group) ::setpgid(0, 0);
  sigset_t none;
  ::sigemptyset(&none);
  ::pthread_sigmask(SIG_SETMASK, &none, nullptr);
  if (cores) ::sched_setaffinity(0, sizeof *cores, cores);
  unsigned first = STDERR_FILENO + 1;
  for (const int socket : sockets) {
    const unsigned number = static_cast<unsigned>(socket);
    if (first < number) ::close_range(first, number - 1, 0);
    ::fcntl(socket, F_SETFD, 0);
    first = number + 1;
  }
  ::close_range(first, ~0u, 0);
  ::execv(arguments[0], arguments);
  ::_exit(127);
}

}  // namespace

pid_t start(const ChildProcess& child) {
  std::vector<std::string> words(child.command.begin(), child.command.end());
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  std::vector<int> sockets(child.sockets.begin(), child.sockets.end());
  std::ranges::sort(sockets);
  const pid_t self = ::getpid(), process = ::fork();
  if (process == 0) become(arguments.data(), sockets, child.cores, child.own_group, self);
  if (process < 0) fail("the system gives no process for {}: {}", words[0], std::strerror(errno));
  return process;
}

}  // namespace invar
