// The store at which processes of torch meet (torch.distributed.TCPStore), as a client of it.
#pragma once

#include <chrono>
#include <cstdint>
#include <stop_token>
#include <string>

#include "base/socket.h"

namespace invar {

// Until when something may take, and who may end it before.
struct Deadline {
  std::chrono::steady_clock::time_point at;
  std::stop_token stop = {};

  static Deadline in(std::chrono::milliseconds time, std::stop_token stop = {}) {
    return {std::chrono::steady_clock::now() + time, std::move(stop)};
  }
  // Throws Error, naming what was waited for, once the time is over or the waiting was ended.
  void expect_time(const std::string& waited_for) const;
};

class TcpStore {
 public:
  // Connects and checks that such a store answers; waits for one that does not listen yet. Throws
  // Error, one sentence, as all of these do.
  TcpStore(const std::string& host, int port, const Deadline& deadline);

  // Adds to the number of the key, of which there is none at first: 0. Returns the sum.
  int64_t add(const std::string& key, int64_t value, const Deadline& deadline);
  // The value, of at most so many bytes; waits until there is one.
  std::string get(const std::string& key, size_t most_bytes, const Deadline& deadline);
  // Whether the process that has the store has ended it. Nothing may be asked at the same time.
  bool has_ended() const;

 private:
  void send(const std::string& bytes, const Deadline& deadline);
  void receive(void* data, size_t bytes, const Deadline& deadline);
  template <typename T>
  T receive_number(const Deadline& deadline);
  void check_kind(const Deadline& deadline);

  std::string where_;
  Socket socket_;
};

}  // namespace invar
