// Workers on any hosts that meet over sockets; on GPUs their partial sums are NCCL's to carry.
#include "engine/host_workers.h"

#include <algorithm>
#include <csignal>
#include <thread>

#include "base/cores.h"
#include "base/fields.h"
#include "collectives/channel.h"
#include "engine/devices.h"
#include "engine/host_job.h"
#include "engine/remote_workers.h"
#include "engine/wires.h"

namespace invar {

namespace {

using hosts::Job;
using hosts::Kind;

// Group and channels of one worker, for one model.
class HostLinks {
 public:
  HostLinks(Job& job, const WorkerPlace& place, const ModelOptions& options) {
    const auto process = [&](int rank, int stage) {
      return process_of(number_of({rank, place.ranks, stage, place.stages}),
                        place.ranks * place.stages);
    };
    std::vector<int> wanted;
    for (const int peer : socket_peers(place.rank, place.ranks))
      wanted.push_back(process(peer, place.stage));
    const int before = place.stage > 0 ? process(place.rank, place.stage - 1) : -1;
    const int after = place.stage + 1 < place.stages ? process(place.rank, place.stage + 1) : -1;
    for (const int stage : {before, after})
      if (stage >= 0) wanted.push_back(stage);
    sockets_ = job.meet(wanted);
    std::vector<std::shared_ptr<SecretSocket>> peers(static_cast<size_t>(place.ranks));
    for (const int peer : socket_peers(place.rank, place.ranks))
      peers[peer] = sockets_[process(peer, place.stage)];
    if (place.ranks > 1) group_ = make_secret_group(place.rank, std::move(peers));
    if (before >= 0) before_ = make_secret_channel(sockets_[before]);
    if (after >= 0) after_ = make_secret_channel(sockets_[after]);
    if (group_ && options.device != "cpu") on_gpus_ = group_on_gpus(options);
  }
  WorkerLinks links() const {
    Group* group = on_gpus_ ? on_gpus_.get() : group_ ? group_.get() : &solo_group();
    return {group, before_.get(), after_.get()};
  }

 private:
  // GPUs of several hosts do not see each other's memory.
  std::unique_ptr<Group> group_on_gpus(const ModelOptions& options) {
    PeerOptions peers = peer_options(options.exchange);
    if (peers.way == PeerOptions::Way::automatic) peers.way = PeerOptions::Way::nccl;
    return make_peer_group(*group_, {nullptr, [this] { return trouble(); }}, peers);
  }
  std::string trouble() const {
    for (size_t process = 0; process < sockets_.size(); ++process)
      if (sockets_[process] && sockets_[process]->has_hung_up())
        return fmt::format("process {} of the job, at {}, has ended", process,
                           sockets_[process]->address());
    return {};
  }

  std::vector<std::shared_ptr<SecretSocket>> sockets_;  // by process
  std::unique_ptr<Group> group_, on_gpus_;              // on_gpus_: around it
  std::unique_ptr<Channel> before_, after_;
};

class HostLink final : public MessageLink {
 public:
  HostLink(Job& job, int process) : job_(job), process_(process) {}

  void send(std::string_view message) override {
    const Kind kind = hosts::launch().rank == 0 ? Kind::order : Kind::answer;
    if (!job_.send(process_, kind, message)) fail("process {} of the job has ended", process_);
  }
  std::optional<std::string> receive() override {
    auto [kind, bytes] = job_.receive(process_);
    is_job_over_ = kind == Kind::end_job;
    if (is_job_over_ || kind == Kind::end_model) return {};
    return std::move(bytes);
  }
  bool is_job_over() const { return is_job_over_; }

 private:
  Job& job_;
  const int process_;
  bool is_job_over_ = false;
};

// This process's turn among those of this host.
DeviceTurn turn_here() {
  return {hosts::launch().local_rank, hosts::launch().local_size};
}

int threads_here(const ModelOptions& options) {
  const int usable = static_cast<int>(ThreadPool::usable_cores().size());
  return options.threads > 0 ? options.threads : usable;
}

class HostWorkers final : public RemoteWorkers {
 public:
  HostWorkers(const ModelDescription& model, const TensorSource& source, ThreadPool& pool,
              const LoadProgress& progress)
      : RemoteWorkers(model, threads_here(model.options), turn_here()) {
    if (size() != hosts::launch().size)
      fail_usage(
          "expected as many processes as there are workers, found {} processes and {} ranks x {} "
          "stages (--tensor-parallel-size, --pipeline-parallel-size)",
          hosts::launch().size, ranks_, stages_);
    for (int number = 0; number < size() - 1; ++number) {
      links_.push_back(std::make_unique<HostLink>(job_, process_of(number, size())));
      LoadModel message = load_message(number);
      message.threads = model.options.threads;
      links_.back()->send(to_bytes(WorkerMessage(std::move(message))));
    }
    try {
      links_of_home_.emplace(job_, place_of(size() - 1, ranks_, stages_), model.options);
      load_home(source, pool, progress);
      home_worker().join(links_of_home_->links());
      expect_done();
    } catch (...) {
      end_model();
      throw;
    }
  }
  ~HostWorkers() override { end_model(); }

 private:
  void restart() override {
    fail(
        "a job over several hosts that loses a rank ends: start it again, with the same --journal "
        "if any");
  }
  void end_model() {
    for (int process = 1; process < size(); ++process) job_.send(process, Kind::end_model, {});
  }

  Job& job_ = Job::join();
  std::optional<HostLinks> links_of_home_;
};

}  // namespace

Launch launch_hosts() {
  return [](const ModelDescription& model, const TensorSource& source, ThreadPool& pool,
            const LoadProgress& progress) -> std::unique_ptr<Workers> {
    const int workers = model.options.ranks * model.stages();
    if (hosts::launch().size == 1 && workers == 1)
      return launch_threads()(model, source, pool, progress);
    if (hosts::launch().size == 1)
      fail_usage(
          "expected {} processes for the executor hosts, as torchrun or --nnodes start them, and "
          "INVAR_SECRET, found one process",
          workers);
    return std::make_unique<HostWorkers>(model, source, pool, progress);
  };
}

bool join_host_job() {
  const hosts::Launch& launch = hosts::launch();
  if (launch.size == 1) return false;
  if (launch.local_size > 1) keep_part_of_cores(launch.local_rank, launch.local_size);
  Job::join();
  return launch.rank > 0;
}

void serve_host_workers() {
  // A launcher may pass such signals on to everybody; the first process decides when to end.
  std::signal(SIGTERM, SIG_IGN);
  std::signal(SIGINT, SIG_IGN);
  Job& job = Job::join();
  HostLink home(job, 0);
  while (!home.is_job_over()) {
    std::optional<HostLinks> links;  // one model after the other
    const auto connect = [&](LoadModel& message) {
      message.threads = threads_here(message.options);
      message.first_core = 0;
      return links.emplace(job, message.place, message.options).links();
    };
    serve_worker(home, connect, turn_here());
  }
}

void end_host_job() {
  for (int process = 1; process < hosts::launch().size; ++process)
    Job::join().send(process, Kind::end_job, {});
}

}  // namespace invar
