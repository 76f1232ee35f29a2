// Connections between hosts whose two ends have proven to each other that they know a secret.
// Messages carry a code that nobody can make without it. They can be read on the way, but not
// changed, repeated or made up.
#pragma once

#include <array>
#include <cstdint>
#include <future>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "base/error.h"
#include "base/socket.h"

namespace invar {

class SecretSocket {
 public:
  // A greeting that did not come to its end: the other end has ended, is slow or a stranger.
  struct NoGreeting : Error {
    using Error::Error;
  };

  // Over a connection that is just made. Throws NoGreeting when both have not greeted within
  // kGreetingSeconds, and Error when the other end does not know the secret. One end `is_first`.
  static constexpr int kGreetingSeconds = 5;
  SecretSocket(Socket socket, std::string_view secret, bool is_first);

  // A message of exactly so many bytes, whose number both ends know. False when the other end is
  // gone; errno says how, 0 that it ended. receive throws Error for bytes that the other end did
  // not send.
  bool send(const void* data, size_t bytes);
  bool receive(void* data, size_t bytes);

  // Ends the connection for both ends, whoever waits.
  void shut_down();
  int number() const { return socket_.number(); }
  // Whether the process at the other end is gone.
  bool has_hung_up() const;
  // Addresses of the other end and of this one, as numbers.
  std::string peer_address() const;
  // The same of a connection that may have ended.
  const std::string& address() const { return address_; }
  std::string own_address() const;

 private:
  using Code = std::array<uint8_t, 32>;
  Code code_of(uint8_t from, uint64_t number, const void* data, size_t bytes) const;

  Socket socket_;
  const std::string address_;
  std::string key_;  // of this connection
  const bool is_first_;
  uint64_t sent_ = 0, received_ = 0;
};

// Takes connections of those who know the secret; others learn nothing and are closed. It greets up
// to kMostGreetings at the same time, so that strangers who say nothing keep nobody waiting.
class SecretListener {
 public:
  // port 0: any. Throws Error when it cannot be had.
  SecretListener(const std::string& address, int port, std::string secret);
  int port() const;
  // The next one that knows the secret. Throws Error when none has come in so many seconds.
  std::unique_ptr<SecretSocket> accept(double seconds);

 private:
  static constexpr size_t kMostGreetings = 64;
  using Greeted = std::unique_ptr<SecretSocket>;  // null: a stranger

  Greeted take_greeted();
  void take_connection(int wait_ms);

  Socket socket_;
  const std::string secret_;
  std::list<std::future<Greeted>> greetings_;
};

// Tries again for so many seconds, since who listens may not have begun, or greet others. Throws
// Error, at once where the other end does not know the secret.
std::unique_ptr<SecretSocket> connect_to(const std::string& host, int port, std::string_view secret,
                                         double seconds);

}  // namespace invar
