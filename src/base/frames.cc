#include "base/frames.h"

#include <poll.h>
#include <sys/socket.h>

#include "base/check.h"
#include "base/error.h"

namespace invar {

namespace {

constexpr int kNap = 20;  // ms between two looks for trouble

struct Head {
  uint64_t bytes;
  uint64_t kind;
};

// Whether there is something to receive, the other's end perhaps, within a nap.
bool has_something(int socket) {
  pollfd end{.fd = socket, .events = POLLIN | POLLRDHUP, .revents = 0};
  return ::poll(&end, 1, kNap) > 0;
}

}  // namespace

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

// False when the other end is gone.
bool FrameSocket::receive_bytes(void* data, size_t bytes) {
  if (!trouble_) return receive_all(socket_.number(), data, bytes);
  for (char* at = static_cast<char*>(data); bytes > 0;) {
    while (!has_something(socket_.number()))
      if (const std::string wrong = trouble_(); !wrong.empty()) fail("{}", wrong);
    const size_t received = receive_some(socket_.number(), at, bytes);
    if (received == 0) return false;
    at += received;
    bytes -= received;
  }
  return true;
}

std::optional<Frame> FrameSocket::receive() {
  Head head;
  if (!receive_bytes(&head, sizeof head)) return std::nullopt;
  if (head.bytes > most_ || head.kind > 255)
    fail("a frame: expected at most {} bytes and a kind below 256, found {} and {}", most_,
         head.bytes, head.kind);
  Frame frame{.kind = static_cast<uint8_t>(head.kind)};
  frame.bytes.resize(head.bytes);
  if (!receive_bytes(frame.bytes.data(), head.bytes)) return std::nullopt;
  return frame;
}

}  // namespace invar
