#include "model_process.h"

#include <fmt/format.h>
#include <sys/wait.h>

#include <boost/asio/buffer.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/local/connect_pair.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <cerrno>
#include <csignal>

#include "base/child_process.h"

namespace invar::server {

namespace asio = boost::asio;
using boost::system::error_code;

namespace {

constexpr size_t kLongestLine = 4 << 10;  // of a log; longer ones are cut

}  // namespace

std::shared_ptr<ModelProcess> ModelProcess::start(asio::io_context& loop,
                                                  std::vector<std::string> command,
                                                  const std::string& setup,
                                                  std::function<void(const std::string&)> on_line) {
  const std::shared_ptr<ModelProcess> self(new ModelProcess(loop, std::move(on_line)));
  Socket control(loop), log(loop);
  asio::local::connect_pair(self->control_, control);
  asio::local::connect_pair(self->log_, log);
  const int inherited[] = {control.native_handle(), log.native_handle()};
  for (const int file : inherited) command.push_back(std::to_string(file));
  asio::write(self->control_, asio::buffer(setup + '\n'));
  self->process_ = invar::start({.command = command, .sockets = inherited, .own_group = true});
  asio::co_spawn(loop, self->read_log(), asio::detached);
  return self;
}

ModelProcess::~ModelProcess() {
  if (process_ <= 0) return;
  kill();
  reap();
}

asio::awaitable<size_t> ModelProcess::read(char* to, size_t most) {
  error_code error;
  const size_t size = co_await control_.async_read_some(
      asio::buffer(to, most), asio::redirect_error(asio::use_awaitable, error));
  has_closed_ = static_cast<bool>(error);
  co_return size;
}

asio::awaitable<std::optional<int>> ModelProcess::ready() {
  const auto self = shared_from_this();
  constexpr size_t kLongest = 16;
  std::string line;
  while (!line.ends_with('\n')) {
    char next = 0;
    const size_t size = co_await read(&next, 1);
    if (size == 0 || line.size() > kLongest) co_return std::nullopt;
    line += next;
  }
  co_return std::atoi(line.c_str());
}

void ModelProcess::end() {
  error_code ignored;
  control_.shutdown(Socket::shutdown_send, ignored);
}

void ModelProcess::kill() {
  if (process_ > 0) ::kill(process_, SIGKILL);
}

asio::awaitable<std::string> ModelProcess::gone() {
  const auto self = shared_from_this();
  char ignored[16];
  while (!has_closed_) co_await read(ignored, sizeof ignored);
  kill();  // one that closed its socket is of no use
  co_return reap();
}

std::string ModelProcess::reap() {
  int status = 0;
  while (::waitpid(process_, &status, 0) < 0 && errno == EINTR) {
  }
  process_ = 0;
  return WIFSIGNALED(status) ? fmt::format("signal {}", WTERMSIG(status))
                             : fmt::format("exit status {}", WEXITSTATUS(status));
}

asio::awaitable<void> ModelProcess::read_log() {
  const auto self = shared_from_this();
  std::string text;
  char piece[1024];
  while (true) {
    error_code error;
    const size_t size = co_await log_.async_read_some(
        asio::buffer(piece), asio::redirect_error(asio::use_awaitable, error));
    text.append(piece, size);
    for (size_t end = text.find('\n'); end != text.npos || text.size() > kLongestLine;
         end = text.find('\n')) {
      end = std::min(end, kLongestLine);
      on_line_(text.substr(0, end));
      text.erase(0, std::min(text.size(), end + 1));
    }
    if (error) break;
  }
  if (!text.empty()) on_line_(text);
}

}  // namespace invar::server
