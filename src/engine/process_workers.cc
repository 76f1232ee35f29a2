// Workers in processes of this machine. The engine's process is home; it starts the others, each of
// which loads its share of the model, and sends them every message as bytes. Groups and stages
// exchange in shared memory (collectives/); sockets between neighbours say who has ended.
#include "engine/process_workers.h"

#include <sched.h>
#include <sys/wait.h>

#include <csignal>

#include "base/child_process.h"
#include "base/fields.h"
#include "engine/remote_workers.h"
#include "engine/wires.h"

namespace invar {

namespace {

constexpr int kSpins = 4000;  // some 100 us, as a thread pool waits

// The links of one worker, with its ends of them.
struct Ends {
  std::vector<Socket> peers;                                   // by rank of its group
  Socket before, after;                                        // stages
  std::shared_ptr<SharedMemory> group, from_before, to_after;  // null: over the sockets

  Wires wires(const SharedMemory& pulses, int spins) const {
    const auto file = [](const auto& memory) { return memory ? memory->file() : -1; };
    Wires wires{.before = before.number(),
                .after = after.number(),
                .group_memory = file(group),
                .before_memory = file(from_before),
                .after_memory = file(to_after),
                .pulses = pulses.file(),
                .spins = spins};
    for (const Socket& peer : peers) wires.peers.push_back(peer.number());
    return wires;
  }
};

// Every file of them.
std::vector<int> files_of(const Wires& wires) {
  std::vector<int> files = wires.peers;
  files.insert(files.end(), {wires.before, wires.after, wires.group_memory, wires.before_memory,
                             wires.after_memory, wires.pulses});
  std::erase(files, -1);
  return files;
}

class ProcessWorkers final : public RemoteWorkers {
 public:
  ProcessWorkers(const ModelDescription& model, const TensorSource& source, ThreadPool& pool,
                 const LoadProgress& progress)
      : RemoteWorkers(model, model.threads_of_rank(pool.size())),
        shares_memory_(model.options.executor == "mp") {
    ::sched_getaffinity(0, sizeof cores_, &cores_);
    if (size() * threads_of_rank_ <= std::ssize(ThreadPool::usable_cores())) spins_ = kSpins;
    start();  // they load while this process does
    load_home(source, pool, progress);
    join_home();
    expect_done();
  }
  ~ProcessWorkers() override { end(); }

 private:
  void restart() override {
    end();
    start();
    join_home();
    expect_done();
  }

  // Ends the processes that are left. They hold nothing that is worth a word.
  void end() {
    for (const pid_t process : processes_) ::kill(process, SIGKILL);
    for (const pid_t process : processes_) ::waitpid(process, nullptr, 0);
    processes_.clear();
    links_.clear();
  }

  // All processes but home, each of which begins to load.
  void start() {
    pulse_.reset();
    pulses_ = SharedMemory(pulse_bytes(size()));
    pulse_ = std::make_unique<Pulse>(pulses_, size() - 1);
    std::vector<std::string> names;
    for (int i = 0; i < size(); ++i) names.push_back(name_of(place_of(i, ranks_, stages_)));
    watch_ = std::make_shared<PulseWatch>(pulses_, std::move(names));
    std::vector<Ends> ends = connect();
    for (int number = 0; number < size() - 1; ++number)
      start(number, ends[number].wires(pulses_, spins_));
    own_ = std::move(ends.back());
  }

  std::vector<Ends> connect() const {
    std::vector<Ends> all(size());
    const auto end = [&](int stage, int rank) -> Ends& {
      return all[number_of({rank, ranks_, stage, stages_})];
    };
    const auto memory = [&](size_t bytes) {
      return shares_memory_ ? std::make_shared<SharedMemory>(bytes) : nullptr;
    };
    for (int stage = 0; stage < stages_; ++stage) {
      const auto group = ranks_ > 1 ? memory(shared_group_bytes(ranks_)) : nullptr;
      for (int rank = 0; rank < ranks_; ++rank) {
        Ends& one = end(stage, rank);
        one.peers.resize(ranks_);
        one.group = group;
        if (stage == 0) continue;
        Ends& previous = end(stage - 1, rank);
        std::tie(previous.after, one.before) = socket_pair();
        previous.to_after = one.from_before =
            memory(shared_channel_bytes(model_.options.device != "cpu"));
      }
      for (int a = 0; a < ranks_; ++a)
        for (const int b : socket_peers(a, ranks_))
          if (a < b) std::tie(end(stage, a).peers[b], end(stage, b).peers[a]) = socket_pair();
    }
    return all;
  }

  void start(int number, const Wires& wires) {
    auto [mine, its] = socket_pair();
    LoadModel message = load_message(number);
    message.first_core = (size() - 1 - number) * threads_of_rank_;  // home has the first ones
    message.wires = wires;
    std::vector<int> inherited = files_of(wires);
    inherited.push_back(its.number());
    const std::string command[] = {model_.options.worker, "worker", std::to_string(its.number())};
    processes_.push_back(invar::start({command, inherited, &cores_}));
    links_.push_back(
        make_socket_link(std::move(mine), [watch = watch_] { return watch->trouble(); }));
    links_.back()->send(to_bytes(WorkerMessage(std::move(message))));
  }

  void join_home() {
    home_links_ = std::make_unique<ProcessLinks>(place_of(size() - 1, ranks_, stages_),
                                                 own_.wires(pulses_, spins_), model_.options);
    home_worker().join(home_links_->links());
  }

  const bool shares_memory_;
  int spins_ = 0;
  cpu_set_t cores_{};  // of this process, whatever its threads are pinned to
  std::vector<pid_t> processes_;
  SharedMemory pulses_;
  std::unique_ptr<Pulse> pulse_;
  std::shared_ptr<PulseWatch> watch_;
  Ends own_;
  std::unique_ptr<ProcessLinks> home_links_;
};

}  // namespace

Launch launch_processes() {
  return [](const ModelDescription& model, const TensorSource& source, ThreadPool& pool,
            const LoadProgress& progress) -> std::unique_ptr<Workers> {
    if (model.options.ranks * model.stages() == 1)
      return launch_threads()(model, source, pool, progress);
    return std::make_unique<ProcessWorkers>(model, source, pool, progress);
  };
}

void serve_worker(int socket) {
  const auto link = make_socket_link(Socket(socket));
  std::unique_ptr<ProcessLinks> links;
  SharedMemory pulses;
  std::optional<Pulse> pulse;
  serve_worker(*link, [&](const LoadModel& message) {
    pulses = SharedMemory::of_file(message.wires.pulses);
    pulse.emplace(pulses, number_of(message.place));
    links = std::make_unique<ProcessLinks>(message.place, message.wires, message.options);
    return links->links();
  });
}

}  // namespace invar
