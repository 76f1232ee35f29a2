// A process that serves one model to the server before it: `invar serve MODEL` on a port of its own
// of this machine, which it serves to nobody else. Only models_front.cc and model_process.cc
// include this.
#pragma once

#include <sys/types.h>

#include <boost/asio/awaitable.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace invar::server {

class ModelProcess : public std::enable_shared_from_this<ModelProcess> {
 public:
  // Runs `command` with two more arguments: the number of a socket on which it is told `setup`, a
  // line, and says its port when it serves; it ends when that socket is closed here. And of one
  // that takes its log: `on_line` hears each line. Throws Error when there is no process to be had.
  static std::shared_ptr<ModelProcess> start(boost::asio::io_context& loop,
                                             std::vector<std::string> command,
                                             const std::string& setup,
                                             std::function<void(const std::string&)> on_line);
  ~ModelProcess();
  ModelProcess(const ModelProcess&) = delete;

  pid_t process() const { return process_; }
  // The port at which it serves; nothing where it has ended before.
  boost::asio::awaitable<std::optional<int>> ready();
  // Lets it finish what it answers, and end.
  void end();
  void kill();
  // Waits until it is no more. "exit status 1", "signal 9"
  boost::asio::awaitable<std::string> gone();

 private:
  using Socket = boost::asio::local::stream_protocol::socket;
  ModelProcess(boost::asio::io_context& loop, std::function<void(const std::string&)> on_line)
      : control_(loop), log_(loop), on_line_(std::move(on_line)) {}
  boost::asio::awaitable<void> read_log();
  boost::asio::awaitable<size_t> read(char* to, size_t most);
  std::string reap();

  Socket control_, log_;
  std::function<void(const std::string&)> on_line_;
  pid_t process_ = 0;
  bool has_closed_ = false;  // its socket: nothing wakes one that reads it once more
};

}  // namespace invar::server
