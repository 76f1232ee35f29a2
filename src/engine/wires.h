// The links of a worker in a process of its own, by the numbers of files that it inherits.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "engine/pulse.h"
#include "engine/runner.h"

namespace invar {

// A group, and channels, of these wires.
class ProcessLinks {
 public:
  // Links a worker whose model was loaded with these options.
  ProcessLinks(const WorkerPlace& place, const Wires& wires, const ModelOptions& options);
  // The objects that it points to live as long as this one.
  WorkerLinks links() const { return {group(), before_.get(), after_.get()}; }

 private:
  Group* group() const {
    if (peers_) return peers_.get();
    return group_ ? group_.get() : &solo_group();
  }
  void meet_neighbours(const WorkerPlace& place, const Wires& wires);
  std::string trouble();
  // The trouble that the watch has found.
  std::string found_trouble();
  void watch_for_gpu();

  SharedMemory pulses_, group_memory_, before_memory_, after_memory_;
  std::optional<PulseWatch> watch_;
  std::vector<std::pair<int, std::string>> neighbours_;  // sockets to them, who they are
  std::unique_ptr<Group> group_, peers_;                 // peers_: on GPUs, around it
  std::unique_ptr<Channel> before_, after_;
  std::mutex mutex_;
  std::string found_;     // trouble
  std::jthread watcher_;  // in the place of a host that waits for its GPU
};

std::string host_name();
// "rank 1 of stage 0 on host-a"; its number among all workers, of which home is the last.
std::string name_of(const WorkerPlace& place);
int number_of(const WorkerPlace& place);
WorkerPlace place_of(int number, int ranks, int stages);
// The process of a job that a worker is. Home is process 0; ranks of a stage are neighbours, so
// that one host has them where it can.
constexpr int process_of(int number, int workers) {
  return workers - 1 - number;
}

}  // namespace invar
