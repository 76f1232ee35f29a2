#include "frames.h"

#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/check.h"
#include "base/error.h"

namespace invar::server {

namespace {

struct Head {
  uint32_t bytes;
  uint32_t kind;
};

}  // namespace

FrameSocket::~FrameSocket() {
  ::close(file_);
}

void FrameSocket::shut_down() {
  ::shutdown(file_, SHUT_RDWR);
}

bool FrameSocket::send(uint8_t kind, std::string_view bytes) {
  CHECK(bytes.size() <= kMaxBytes, "a frame is longer than any can be");
  const Head head{static_cast<uint32_t>(bytes.size()), kind};
  std::string all(reinterpret_cast<const char*>(&head), sizeof head);
  all += bytes;
  const std::lock_guard lock(sending_);
  for (std::string_view left = all; !left.empty();) {
    const ssize_t sent = ::send(file_, left.data(), left.size(), MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent <= 0) return false;
    left.remove_prefix(static_cast<size_t>(sent));
  }
  return true;
}

bool FrameSocket::receive_all(char* data, size_t size) {
  while (size > 0) {
    const ssize_t received = ::recv(file_, data, size, 0);
    if (received < 0 && errno == EINTR) continue;
    if (received <= 0) return false;
    data += received;
    size -= static_cast<size_t>(received);
  }
  return true;
}

std::optional<Frame> FrameSocket::receive() {
  Head head;
  if (!receive_all(reinterpret_cast<char*>(&head), sizeof head)) return std::nullopt;
  if (head.bytes > kMaxBytes || head.kind > 255)
    fail("a frame: expected at most {} bytes and a kind below 256, found {} and {}", kMaxBytes,
         head.bytes, head.kind);
  Frame frame{.kind = static_cast<uint8_t>(head.kind)};
  frame.bytes.resize(head.bytes);
  if (!receive_all(frame.bytes.data(), head.bytes)) return std::nullopt;
  return frame;
}

}  // namespace invar::server
