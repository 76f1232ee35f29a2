#include "engine/message_link.h"

#include <cerrno>
#include <cstring>

#include "base/error.h"
#include "base/frames.h"

namespace invar {

namespace {

constexpr uint64_t kMostBytes = uint64_t{1} << 32;  // of a message

class SocketLink final : public MessageLink {
 public:
  SocketLink(Socket socket, std::function<std::string()> trouble)
      : socket_(std::move(socket), kMostBytes, std::move(trouble)) {}

  void send(std::string_view message) override {
    if (!socket_.send(0, message))
      fail("a worker's process takes no more messages: {}", std::strerror(errno));
  }

  std::optional<std::string> receive() override {
    std::optional<Frame> frame = socket_.receive();
    if (!frame) return {};
    return std::move(frame->bytes);
  }

 private:
  FrameSocket socket_;
};

}  // namespace

std::unique_ptr<MessageLink> make_socket_link(Socket socket, std::function<std::string()> trouble) {
  return std::make_unique<SocketLink>(std::move(socket), std::move(trouble));
}

}  // namespace invar
