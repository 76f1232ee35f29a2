#include "base/socket.h"

#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/error.h"

namespace invar {

Socket::~Socket() {
  if (number_ >= 0) ::close(number_);
}

std::pair<Socket, Socket> socket_pair() {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0)
    fail("the system gives no socket for another process: {}", std::strerror(errno));
  return {Socket(ends[0]), Socket(ends[1])};
}

bool send_all(int socket, const void* data, size_t bytes) {
  for (const char* at = static_cast<const char*>(data); bytes > 0;) {
    const ssize_t sent = ::send(socket, at, bytes, MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent <= 0) return false;
    at += sent;
    bytes -= static_cast<size_t>(sent);
  }
  return true;
}

bool receive_all(int socket, void* data, size_t bytes) {
  for (char* at = static_cast<char*>(data); bytes > 0;) {
    const size_t received = receive_some(socket, at, bytes);
    if (received == 0) return false;
    at += received;
    bytes -= received;
  }
  return true;
}

size_t receive_some(int socket, void* data, size_t bytes) {
  ssize_t received = 0;
  do received = ::recv(socket, data, bytes, 0);
  while (received < 0 && errno == EINTR);
  if (received == 0) errno = 0;
  return received > 0 ? static_cast<size_t>(received) : 0;
}

}  // namespace invar
