// Messages between two processes over a socket: a length, a kind and bytes, with a bound that is
// checked before anything is made from them.
#pragma once

#include <cstdint>
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
  // `most`: bytes that a frame may have.
  explicit FrameSocket(Socket socket, uint64_t most = uint64_t{256} << 20)
      : socket_(std::move(socket)), most_(most) {}

  // Sends all of it; safe from several threads. False when the other end is gone.
  bool send(uint8_t kind, std::string_view bytes);
  // Nothing when the other end is gone, even in mid-frame; one thread. Throws Error for a frame
  // that is longer than any can be.
  std::optional<Frame> receive();
  // Whether there is something to receive, its end perhaps, within so many ms.
  bool has_something(int wait_ms) const;
  // Wakes whoever receives: the other end seems gone.
  void shut_down();

 private:
  Socket socket_;
  const uint64_t most_;
  std::mutex sending_;
};

}  // namespace invar
