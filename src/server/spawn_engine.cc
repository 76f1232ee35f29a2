#include "spawn_engine.h"

#include "base/child_process.h"
#include "base/error.h"

namespace invar::server {

SpawnedEngine spawn_engine(std::vector<std::string> command, const SharedMemory& pulses,
                           std::function<std::string()> trouble) {
  try {
    auto [mine, its] = socket_pair();
    const int inherited[] = {its.number(), pulses.file()};
    for (const int file : inherited) command.push_back(std::to_string(file));
    const pid_t process = start({.command = command, .sockets = inherited});
    return {process,
            std::make_shared<FrameSocket>(std::move(mine), FrameSocket::kMost, std::move(trouble))};
  } catch (const Error& error) {
    fmt::print(stderr, "invar: the engine's process cannot be started: {}\n", error.what());
    return {};
  }
}

}  // namespace invar::server
