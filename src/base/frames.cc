#include "base/frames.h"

#include <poll.h>
#include <sys/socket.h>

#include "base/check.h"
#include "base/error.h"

namespace invar {

namespace {

struct Head {
  uint64_t bytes;
  uint64_t kind;
};

}  // namespace

bool FrameSocket::has_something(int wait_ms) const {
  pollfd end{.fd = socket_.number(), .events = POLLIN | POLLRDHUP, .revents = 0};
  return ::poll(&end, 1, wait_ms) > 0;
}

void FrameSocket::shut_down() {
  ::shutdown(socket_.number(), SHUT_RDWR);
}

bool FrameSocket::send(uint8_t kind, std::string_view bytes) {
  CHECK(bytes.size() <= most_, "a frame is longer than any can be");
  const Head head{bytes.size(), kind};
  std::string all(reinterpret_cast<const char*>(&head), sizeof head);
  all += bytes;
  const std::lock_guard lock(sending_);
  return send_all(socket_.number(), all.data(), all.size());
}

std::optional<Frame> FrameSocket::receive() {
  Head head;
  if (!receive_all(socket_.number(), &head, sizeof head)) return std::nullopt;
  if (head.bytes > most_ || head.kind > 255)
    fail("a frame: expected at most {} bytes and a kind below 256, found {} and {}", most_,
         head.bytes, head.kind);
  Frame frame{.kind = static_cast<uint8_t>(head.kind)};
  frame.bytes.resize(head.bytes);
  if (!receive_all(socket_.number(), frame.bytes.data(), head.bytes)) return std::nullopt;
  return frame;
}

}  // namespace invar
