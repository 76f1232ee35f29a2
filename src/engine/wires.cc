#include "engine/wires.h"

#include <poll.h>
#include <unistd.h>

#include "base/error.h"
#include "engine/devices.h"

namespace invar {

namespace {

// Whether the process at the other end of a socket on which nobody sends has ended.
bool has_hung_up(int socket) {
  pollfd end{.fd = socket, .events = POLLRDHUP, .revents = 0};
  return ::poll(&end, 1, 0) > 0;
}

}  // namespace

std::string host_name() {
  char name[256] = "";
  ::gethostname(name, sizeof name - 1);
  return name;
}

std::string name_of(const WorkerPlace& place) {
  return fmt::format("rank {} of stage {} on {}", place.rank, place.stage, host_name());
}

int number_of(const WorkerPlace& place) {
  return place.stage * place.ranks + place.ranks - 1 - place.rank;
}

WorkerPlace place_of(int number, int ranks, int stages) {
  return {ranks - 1 - number % ranks, ranks, number / ranks, stages};
}

ProcessLinks::ProcessLinks(const WorkerPlace& place, const Wires& wires,
                           const ModelOptions& options) {
  const bool is_on_gpu = options.device != "cpu";
  meet_neighbours(place, wires);
  const auto mapped = [](int file) {
    return file < 0 ? SharedMemory() : SharedMemory::of_file(file);
  };
  pulses_ = mapped(wires.pulses);
  std::vector<std::string> names;
  for (int i = 0; i < place.ranks * place.stages; ++i)
    names.push_back(name_of(place_of(i, place.ranks, place.stages)));
  watch_.emplace(pulses_, std::move(names));
  const Trouble trouble = [this, is_on_gpu] {
    return is_on_gpu ? found_trouble() : this->trouble();
  };
  group_memory_ = mapped(wires.group_memory);
  if (group_memory_.data())
    group_ = make_shared_group({place.rank, place.ranks, wires.spins, trouble}, group_memory_);
  else if (place.ranks > 1)
    group_ = make_socket_group(place.rank, {wires.peers.begin(), wires.peers.end()});
  const auto channel = [&](int socket, SharedMemory& memory, int file) {
    memory = mapped(file);
    if (memory.data()) return make_shared_channel(memory, trouble);
    return socket < 0 ? nullptr : make_socket_channel(socket);
  };
  before_ = channel(wires.before, before_memory_, wires.before_memory);
  after_ = channel(wires.after, after_memory_, wires.after_memory);
  if (!is_on_gpu) return;
  uint32_t* leaver = group_memory_.data() ? leaver_of(group_memory_) : nullptr;
  if (group_) peers_ = make_peer_group(*group_, {leaver, trouble}, peer_options(options.exchange));
  watcher_ = std::jthread([this](const std::stop_token& stop) {
    while (!stop.stop_requested()) {
      watch_for_gpu();
      std::this_thread::sleep_for(PulseWatch::kApart);
    }
  });
}

// Kernels that wait for one that has ended are told by the group's word.
void ProcessLinks::watch_for_gpu() {
  std::string wrong = trouble();
  if (wrong.empty()) return;
  {
    const std::lock_guard lock(mutex_);
    if (!found_.empty()) return;
    found_ = std::move(wrong);
  }
  if (group_) group_->leave();
}

std::string ProcessLinks::found_trouble() {
  const std::lock_guard lock(mutex_);
  return found_;
}

void ProcessLinks::meet_neighbours(const WorkerPlace& place, const Wires& wires) {
  const auto meet = [&](int socket, int rank, int stage) {
    if (socket >= 0)
      neighbours_.emplace_back(socket, name_of({rank, place.ranks, stage, place.stages}));
  };
  for (int rank = 0; rank < std::ssize(wires.peers); ++rank)
    meet(wires.peers[rank], rank, place.stage);
  meet(wires.before, place.rank, place.stage - 1);
  meet(wires.after, place.rank, place.stage + 1);
}

std::string ProcessLinks::trouble() {
  for (const auto& [socket, name] : neighbours_)
    if (has_hung_up(socket)) return name + " has ended";
  return watch_->trouble();
}

}  // namespace invar
