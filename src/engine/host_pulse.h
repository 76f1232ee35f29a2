// Signs of life between the hosts of a job, over a connection of their own: a process that was
// stopped, or hangs in the kernel, keeps its connections.
#pragma once

#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "base/secret_socket.h"

namespace invar::hosts {

// Shows the first process, from any other one, that this one lives. When the first one is gone,
// this process ends, after some seconds in which it may end by itself: it may wait for another one
// that stands still.
class HostPulse {
 public:
  explicit HostPulse(std::unique_ptr<SecretSocket> to_first);

 private:
  const std::unique_ptr<SecretSocket> socket_;
  std::jthread thread_;
};

// The first process watches the others. It counts its own looks, as PulseWatch does: a process that
// was stopped itself accuses no other.
class HostPulseWatch {
 public:
  static constexpr int kLooks = 100;  // without a sign of life, ten seconds or more

  // `others`: by process; null for the first. `trouble` is told once of each that gives no sign of
  // life.
  HostPulseWatch(std::vector<std::unique_ptr<SecretSocket>> others,
                 std::function<void(int process)> trouble);

 private:
  void look();

  struct Other {
    std::unique_ptr<SecretSocket> socket;  // null: has ended, or was told of
    int looks = 0;                         // that found nothing
  };
  std::vector<Other> others_;
  const std::function<void(int)> trouble_;
  std::jthread thread_;
};

}  // namespace invar::hosts
