// Bytes from one pipeline stage to the next, in order.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>

#include "base/secret_socket.h"
#include "base/shared_memory.h"
#include "device/stream.h"

namespace invar {

// One of two ends. Operations throw PeerLeft (collectives/group.h) when the other has left.
class Channel {
 public:
  virtual ~Channel() = default;
  virtual void send(const void* data, size_t bytes) = 0;
  // Waits for so many bytes.
  virtual void receive(void* data, size_t bytes) = 0;

  // Memory that both ends see, for a message that is large and would be copied twice: what the
  // sender puts there the receiver reads there. Both ends say the same of a number of bytes; where
  // that is `false` messages are sent and received.
  virtual bool has_place_for(size_t) const { return false; }
  // Waits until so many bytes are free; they are sent by the next call.
  virtual std::byte* place(size_t) { return nullptr; }
  virtual void send_placed() {}
  // Waits for what was placed. It stays until it is released, and so does what is received behind
  // it, which must be small.
  virtual std::byte* receive_placed(size_t, std::shared_ptr<Event> /*taken*/) { return nullptr; }
  // Waits for the event of data that was received in place, which is no longer needed then.
  virtual void release() {}
  // That memory is for the streams of a GPU.
  virtual void pin() {}

  // The other end no longer waits for this one. Its last call.
  virtual void leave() = 0;
};

// Between two workers of this process, on one thread or on two: what is sent first is received
// later. It is both ends.
std::unique_ptr<Channel> make_inproc_channel();

// Over a connected stream socket, which stays the caller's to close.
std::unique_ptr<Channel> make_socket_channel(int socket);

std::unique_ptr<Channel> make_secret_channel(std::shared_ptr<SecretSocket> socket);

// Between two processes of this host, either end. The memory, of shared_channel_bytes() zeros, is
// one channel's, and lives as long; large, it takes a step's hidden states before they are
// received. `trouble`: what is known to be wrong with the other end.
std::unique_ptr<Channel> make_shared_channel(SharedMemory& memory,
                                             std::function<std::string()> trouble);
size_t shared_channel_bytes(bool is_large = false);

}  // namespace invar
