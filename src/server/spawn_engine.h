// How an engine's process begins.
#pragma once

#include <sys/types.h>

#include <memory>
#include <string>
#include <vector>

#include "base/frames.h"

namespace invar::server {

struct SpawnedEngine {
  pid_t process = 0;                    // 0: it could not be started
  std::shared_ptr<FrameSocket> socket;  // null then
};

// Runs `command` with one more argument, the number of its end of a socket. It ends when the thread
// that called this does.
SpawnedEngine spawn_engine(std::vector<std::string> command);

}  // namespace invar::server
