// Stream sockets between processes of this machine.
#pragma once

#include <cstddef>
#include <utility>

namespace invar {

// One end, which it closes; -1: none.
class Socket {
 public:
  explicit Socket(int number = -1) : number_(number) {}
  Socket(Socket&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
  Socket& operator=(Socket&& other) noexcept {
    std::swap(number_, other.number_);
    return *this;
  }
  ~Socket();
  int number() const { return number_; }

 private:
  int number_;
};

// A connected pair that a started program does not inherit. Throws Error when the system gives
// none.
std::pair<Socket, Socket> socket_pair();

// All of it, whatever interrupts. False when the other end is gone: errno says how, 0 that it
// ended.
bool send_all(int socket, const void* data, size_t bytes);
bool receive_all(int socket, void* data, size_t bytes);
// Receives the bytes that there are, at most so many. 0 when the other end is gone.
size_t receive_some(int socket, void* data, size_t bytes);

}  // namespace invar
