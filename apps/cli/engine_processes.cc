#include "engine_processes.h"

#include <fmt/format.h>

#include <fstream>

#include "base/cores.h"
#include "base/error.h"
#include "device/cuda_device.h"
#include "engine/host_job.h"
#include "server/engine_process.h"
#include "server/replicas.h"

namespace invar::cli {

namespace {

// This program as it was called, to be an engine's process.
std::vector<std::string> engine_command() {
  std::ifstream called("/proc/self/cmdline", std::ios::binary);
  std::vector<std::string> command;
  for (std::string argument; std::getline(called, argument, '\0');) command.push_back(argument);
  if (command.empty()) fail("/proc/self/cmdline: expected this program's arguments, found none");
  command.front() = "/proc/self/exe";
  command.push_back("--engine-files");
  return command;
}

// Processes that share memory do not see how much of it the others will take.
void expect_room_for_replicas(const ServeFlags& flags) {
  if (flags.engine.kv_gib > 0) return;
  const ModelOptions& options = flags.model.options;
  const int gpus = options.device == "cuda" ? cuda_device_count() : 0;
  if (gpus >= flags.replicas * options.workers()) return;
  fail_usage(
      "expected --kv-cache-memory for {} replicas that are processes of {} workers each and share "
      "the memory of the device {}{}, found none",
      flags.replicas, options.workers(), options.device,
      gpus > 0 ? fmt::format(" ({} GPUs)", gpus) : "");
}

}  // namespace

bool has_replica_processes(const ServeFlags& flags) {
  const ModelOptions& options = flags.model.options;
  const std::string executor = options.settled_executor();
  return flags.replicas > 1 &&
         (options.device != "cpu" || executor == "mp" || executor == "mp-sockets");
}

std::unique_ptr<server::Backend> make_engine_processes(const ServeFlags& flags,
                                                       const Tokenizer& tokenizer) {
  constexpr const char* kContext = "--engine-context";
  if (hosts::launch().size > 1 && (flags.engine_process || flags.replicas > 1))
    fail_usage(
        "--engine-process and --data-parallel-size start processes of one host: leave them out of "
        "a job over several");
  if (!has_replica_processes(flags)) {
    if (!flags.engine_process) return nullptr;
    return std::make_unique<server::EngineProcess>(engine_command(), tokenizer, kContext);
  }
  expect_room_for_replicas(flags);
  std::vector<std::vector<std::string>> commands;
  for (int replica = 0; replica < flags.replicas; ++replica) {
    std::vector<std::string>& command = commands.emplace_back(engine_command());
    command.insert(command.end() - 1, {"--engine-replica", std::to_string(replica)});
  }
  return std::make_unique<server::ReplicaProcesses>(commands, tokenizer, kContext);
}

void become_replica(ServeFlags& flags) {
  const int replicas = std::exchange(flags.replicas, 1), replica = flags.engine_replica;
  flags.model.options.first_gpu = replica * flags.model.options.workers();
  keep_part_of_cores(replica, replicas);
}

}  // namespace invar::cli
