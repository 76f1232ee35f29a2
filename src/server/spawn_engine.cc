#include "spawn_engine.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>

#include "base/error.h"
#include "base/signals.h"

namespace invar::server {

namespace {

constexpr int kSocketOfEngine = 3;

// Between fork and exec: only what a signal handler may call.
[[noreturn]] void become_engine(char* const* arguments, int socket, pid_t server) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != server) ::_exit(1);  // it died before the line above
  // A terminal's ^C goes to both processes: the server decides when to end.
  ::signal(SIGINT, SIG_IGN);
  ::signal(SIGTERM, SIG_IGN);
  ignore_signals_of_others();
  sigset_t none;
  ::sigemptyset(&none);
  ::pthread_sigmask(SIG_SETMASK, &none, nullptr);
  if (socket == kSocketOfEngine)
    ::fcntl(socket, F_SETFD, 0);
  else
    ::dup2(socket, kSocketOfEngine);
  ::close_range(kSocketOfEngine + 1, ~0u, 0);
  ::execv(arguments[0], arguments);
  ::_exit(127);
}

}  // namespace

SpawnedEngine spawn_engine(const std::vector<std::string>& command) {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
    fmt::print(stderr, "invar: the engine's process gets no socket: {}\n", std::strerror(errno));
    return {};
  }
  std::vector<std::string> arguments = command;
  arguments.push_back(std::to_string(kSocketOfEngine));
  std::vector<char*> pointers;
  for (std::string& argument : arguments) pointers.push_back(argument.data());
  pointers.push_back(nullptr);
  auto socket = std::make_shared<FrameSocket>(ends[0]);
  const pid_t server = ::getpid();
  const pid_t process = ::fork();
  if (process == 0) become_engine(pointers.data(), ends[1], server);
  ::close(ends[1]);
  if (process > 0) return {process, std::move(socket)};
  fmt::print(stderr, "invar: the engine's process cannot be started: {}\n", std::strerror(errno));
  return {};
}

}  // namespace invar::server
