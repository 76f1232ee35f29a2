// One request to a server on this machine, and what comes back.
#pragma once

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <string>
#include <utility>

namespace invar::server {

class LocalClient {
 public:
  LocalClient(int port, const std::string& request) : socket_(::socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    const timeval wait{.tv_sec = 20, .tv_usec = 0};
    ::setsockopt(socket_, SOL_SOCKET, SO_RCVTIMEO, &wait, sizeof wait);
    EXPECT_EQ(::connect(socket_, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
    EXPECT_EQ(::send(socket_, request.data(), request.size(), MSG_NOSIGNAL), std::ssize(request));
  }
  ~LocalClient() { ::close(socket_); }
  LocalClient(const LocalClient&) = delete;
  LocalClient& operator=(const LocalClient&) = delete;

  // The first piece that comes; "" where none comes for too long.
  std::string text() const {
    std::string piece(1 << 16, 0);
    const ssize_t size = ::recv(socket_, piece.data(), piece.size(), 0);
    piece.resize(static_cast<size_t>(std::max<ssize_t>(size, 0)));
    return piece;
  }
  bool has_answer() const {
    char first = 0;
    return ::recv(socket_, &first, 1, MSG_PEEK | MSG_DONTWAIT) >= 0;
  }
  int status() const {
    const std::string line = text();
    return line.starts_with("HTTP/1.1 ") ? std::atoi(line.c_str() + 9) : 0;
  }

 private:
  const int socket_;
};

}  // namespace invar::server
