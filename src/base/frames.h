// Messages between two processes over a socket: a length, a kind and bytes, with a bound that is
// checked before anything is made from them.
#pragma once

#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

#include "base/socket.h"

namespace invar {

struct Frame {
  uint8_t kind = 0;
  std::string bytes;
};

class FrameSocket {
 public:
  static constexpr uint64_t kMost = uint64_t{256} << 20;

  // `most`: bytes that a frame may have. `trouble`: asked while receive() waits, in mid-frame too;
  // what it says, receive() throws.
  explicit FrameSocket(Socket socket, uint64_t most = kMost,
                       std::function<std::string()> trouble = {})
      : socket_(std::move(socket)), most_(most), trouble_(std::move(trouble)) {}

  // Sends all of it; safe from several threads. False when the other end is gone.
  bool send(uint8_t kind, std::string_view bytes);
  // Nothing when the other end is gone, even in mid-frame; one thread. Throws Error for a frame
  // that is longer than any can be.
  std::optional<Frame> receive();
  // Wakes those who receive or send: the other end seems gone.
  void shut_down();

 private:
  bool receive_bytes(void* data, size_t bytes);

  Socket socket_;
  const uint64_t most_;
  const std::function<std::string()> trouble_;
  std::mutex sending_;
};

}  // namespace invar
