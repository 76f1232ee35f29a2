// Signs of life of the processes of one host that compute together: each counts in memory that all
// share. A process that was stopped, or hangs in the kernel, no longer counts, though its
// connections stand.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/shared_memory.h"

namespace invar {

size_t pulse_bytes(int processes);

// Counts for process `number` as long as it lives.
class Pulse {
 public:
  Pulse(SharedMemory& memory, int number);
  ~Pulse();
  Pulse(const Pulse&) = delete;

 private:
  std::mutex mutex_;
  std::condition_variable ending_;
  bool ends_ = false;
  std::jthread thread_;
};

// Checks whether the others count, for a process that waits for them and looks now and then. Looks
// that come at once count as one. So a process that was stopped itself accuses no other, and
// neither does one that waits often and briefly.
class PulseWatch {
 public:
  static constexpr int kLooks = 500;  // without a sign of life, ten seconds or more
  static constexpr std::chrono::milliseconds kApart{20};
  using Time = std::chrono::steady_clock::time_point;

  // `names`: of each process, for the sentence.
  PulseWatch(SharedMemory& memory, std::vector<std::string> names);
  // A sentence about the first that gives no sign of life, or nothing.
  std::string trouble(Time now = std::chrono::steady_clock::now());

 private:
  struct Seen {
    uint32_t count = 0;
    int looks = 0;  // that found this count
  };
  SharedMemory& memory_;
  const std::vector<std::string> names_;
  std::vector<Seen> seen_;
  Time last_look_;
};

}  // namespace invar
