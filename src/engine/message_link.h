// How a worker in another process hears what it is to do, and answers.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "base/socket.h"

namespace invar {

class MessageLink {
 public:
  virtual ~MessageLink() = default;
  // Throws Error when the other end is gone.
  virtual void send(std::string_view message) = 0;
  // Nothing when the other end is gone or wants no more.
  virtual std::optional<std::string> receive() = 0;
};

// Over a connected socket. `trouble` is asked while it waits; receive() throws its sentence.
std::unique_ptr<MessageLink> make_socket_link(Socket socket,
                                              std::function<std::string()> trouble = {});

}  // namespace invar
