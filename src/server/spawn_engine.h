// How an engine's process begins.
#pragma once

#include <sys/types.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/frames.h"
#include "base/shared_memory.h"
#include "engine/pulse.h"

namespace invar::server {

struct SpawnedEngine {
  pid_t process = 0;                    // 0: it could not be started
  std::shared_ptr<FrameSocket> socket;  // null then
};

// Runs `command` with two more arguments, the numbers of its end of a socket and of the memory in
// which it shows that it lives (SignOfLife). It ends when the thread that called this does.
// `trouble`: of the socket.
SpawnedEngine spawn_engine(std::vector<std::string> command, const SharedMemory& pulses,
                           std::function<std::string()> trouble);

// An engine's process shows its server that it lives, as long as it has this. A process that was
// stopped, or hangs in the kernel, keeps its socket and shows nothing.
class SignOfLife {
 public:
  explicit SignOfLife(int file) : memory_(SharedMemory::of_file(file)), pulse_(memory_, 0) {}

 private:
  SharedMemory memory_;
  Pulse pulse_;
};

}  // namespace invar::server
