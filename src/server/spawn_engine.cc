#include "spawn_engine.h"

#include "base/child_process.h"
#include "base/error.h"

namespace invar::server {

SpawnedEngine spawn_engine(std::vector<std::string> command) {
  try {
    auto [mine, its] = socket_pair();
    command.push_back(std::to_string(its.number()));
    const int sockets[] = {its.number()};
    const pid_t process = start({.command = command, .sockets = sockets});
    return {process, std::make_shared<FrameSocket>(std::move(mine))};
  } catch (const Error& error) {
    fmt::print(stderr, "invar: the engine's process cannot be started: {}\n", error.what());
    return {};
  }
}

}  // namespace invar::server
