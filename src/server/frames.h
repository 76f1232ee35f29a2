// Messages between two processes over a socket: a length, a kind and bytes, with bounds that are
// checked before anything is made from them.
#pragma once

#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

namespace invar::server {

struct Frame {
  uint8_t kind = 0;
  std::string bytes;
};

// One end of a stream socket, which it owns.
class FrameSocket {
 public:
  explicit FrameSocket(int file) : file_(file) {}
  ~FrameSocket();
  FrameSocket(const FrameSocket&) = delete;
  FrameSocket& operator=(const FrameSocket&) = delete;

  // Sends all of it; safe from several threads. False when the other end is gone.
  bool send(uint8_t kind, std::string_view bytes);
  // Nothing when the other end is gone, even in mid-frame; one thread. Throws Error for a frame
  // that is longer than any can be.
  std::optional<Frame> receive();
  // Wakes whoever receives: the other end seems gone.
  void shut_down();

  static constexpr uint32_t kMaxBytes = 256u << 20;

 private:
  bool receive_all(char* data, size_t size);

  int file_;
  std::mutex sending_;
};

}  // namespace invar::server
