// Workers that a launcher started, on any hosts: `mpirun -n N invar ...` runs the program N times.
// The first process is home; every other one is told by messages what to do.
#include "engine/mpi_workers.h"

#include <fmt/format.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <thread>

#include "base/fields.h"
#include "collectives/mpi/mpi_group.h"
#include "engine/remote_workers.h"
#include "engine/wires.h"

namespace invar {

namespace {

// Group and channels of one worker.
struct MpiLinks {
  MpiLinks(mpi::Job& job, const WorkerPlace& place) {
    const auto process = [&](int rank, int stage) {
      return process_of(number_of({rank, place.ranks, stage, place.stages}),
                        place.ranks * place.stages);
    };
    if (place.ranks > 1) {
      std::vector<int> peers;
      for (int rank = 0; rank < place.ranks; ++rank) peers.push_back(process(rank, place.stage));
      group = mpi::make_group(job, place.rank, std::move(peers));
    }
    if (place.stage > 0) before = mpi::make_channel(job, process(place.rank, place.stage - 1));
    if (place.stage + 1 < place.stages)
      after = mpi::make_channel(job, process(place.rank, place.stage + 1));
  }
  WorkerLinks links() const {
    return {group ? group.get() : &solo_group(), before.get(), after.get()};
  }

  std::unique_ptr<Group> group;
  std::unique_ptr<Channel> before, after;
};

// Cores of this process: those that the launcher bound it to, or its part of the host's.
struct Cores {
  Cores() {
    const int usable = static_cast<int>(ThreadPool::usable_cores().size());
    const mpi::Launch launch = mpi::launch();
    const bool is_bound = usable < static_cast<int>(std::thread::hardware_concurrency());
    if (is_bound || launch.local_size <= 1) {
      threads = usable;
    } else {
      threads = std::max(1, usable / launch.local_size);
      first = launch.local_rank * threads;
    }
  }
  int threads = 1, first = 0;
};

// Home's link to a worker, and the other way round. Messages go in pieces that the library takes
// before anybody reads them, the size in front of the first: a stage is told of a step while it
// computes the one before, and home does not wait for it.
class MpiLink final : public MessageLink {
 public:
  MpiLink(mpi::Job& job, int peer) : job_(job), peer_(peer) {}

  void send(std::string_view message) override {
    const mpi::Tag tag = job_.rank() == 0 ? mpi::Tag::order : mpi::Tag::answer;
    const uint64_t size = message.size();
    std::string all(reinterpret_cast<const char*>(&size), sizeof size);
    all += message;
    for (size_t at = 0; at < all.size(); at += kPiece)
      job_.send(peer_, tag, all.data() + at, std::min(kPiece, all.size() - at));
  }

  std::optional<std::string> receive() override {
    const mpi::Incoming incoming = job_.wait_for_any(peer_);
    std::string all(incoming.bytes, 0);
    job_.receive(peer_, incoming.tag, all.data(), incoming.bytes);
    is_job_over_ = incoming.tag == mpi::Tag::end_job;
    if (is_job_over_ || incoming.tag == mpi::Tag::end_model) return {};
    uint64_t size = 0;
    if (all.size() < sizeof size) fail("expected a message of MPI with its size, found none");
    std::memcpy(&size, all.data(), sizeof size);
    size_t at = all.size();
    for (all.resize(sizeof size + size); at < all.size(); at += kPiece)
      job_.receive(peer_, incoming.tag, all.data() + at, std::min(kPiece, all.size() - at));
    return all.substr(sizeof size);
  }
  bool is_job_over() const { return is_job_over_; }

 private:
  static constexpr size_t kPiece = 2048;  // below every transport's limit of eager messages

  mpi::Job& job_;
  const int peer_;
  bool is_job_over_ = false;
};

class MpiWorkers final : public RemoteWorkers {
 public:
  MpiWorkers(const ModelDescription& model, const TensorSource& source, ThreadPool& pool,
             const LoadProgress& progress)
      : RemoteWorkers(model, model.options.threads == 0 ? Cores().threads
                                                        : model.threads_of_rank(pool.size())),
        links_of_home_(job_, place_of(size() - 1, ranks_, stages_)) {
    if (size() != job_.size())
      fail_usage(
          "expected a launcher of as many processes as there are workers, found {} processes and "
          "{} ranks x {} stages (--tensor-parallel-size, --pipeline-parallel-size)",
          job_.size(), ranks_, stages_);
    for (int number = 0; number < size() - 1; ++number) {
      links_.push_back(std::make_unique<MpiLink>(job_, process_of(number, size())));
      LoadModel message = load_message(number);
      message.threads = model.options.threads == 0 ? 0 : threads_of_rank_;
      links_.back()->send(to_bytes(WorkerMessage(std::move(message))));
    }
    try {
      load_home(source, pool, progress);
      home_worker().join(links_of_home_.links());
      expect_done();
    } catch (...) {
      end_model();
      throw;
    }
  }
  ~MpiWorkers() override { end_model(); }

 private:
  // The launcher has ended the job if a process died; who only failed has ended it, too.
  void restart() override {
    fail("an MPI job that loses a rank ends: start it again, with the same --journal if any");
  }

  void end_model() {
    for (int number = 0; number < size() - 1; ++number)
      job_.send(process_of(number, size()), mpi::Tag::end_model, nullptr, 0);
  }

  mpi::Job& job_ = mpi::Job::join();
  const MpiLinks links_of_home_;
};

// One model after the other, until the first process has no more.
void serve_models(mpi::Job& job) {
  MpiLink home(job, 0);
  std::optional<MpiLinks> links;
  while (!home.is_job_over())
    serve_worker(home, [&](LoadModel& message) {
      if (message.threads == 0) {
        const Cores cores;
        message.threads = cores.threads;
        message.first_core = cores.first;
      }
      return links.emplace(job, message.place).links();
    });
}

}  // namespace

Launch launch_mpi() {
  return [](const ModelDescription& model, const TensorSource& source, ThreadPool& pool,
            const LoadProgress& progress) -> std::unique_ptr<Workers> {
    if (mpi::launch().size == 1 && model.options.ranks * model.stages() == 1)
      return launch_threads()(model, source, pool, progress);
    if (mpi::launch().size == 1)
      fail_usage(
          "expected a launcher for the executor mpi, as in mpirun -n {} invar ..., found none",
          model.options.ranks * model.stages());
    if (model.options.device != "cpu")
      fail_usage("workers of an MPI job compute on the CPU so far, and the device is {}",
                 model.options.device);
    return std::make_unique<MpiWorkers>(model, source, pool, progress);
  };
}

bool join_mpi_job() {
  if (mpi::launch().size > 1) mpi::Job::join();
  return mpi::launch().rank > 0;
}

void serve_mpi_workers() {
  // The launcher passes such signals on to everybody; the first process decides when to end.
  std::signal(SIGTERM, SIG_IGN);
  std::signal(SIGINT, SIG_IGN);
  mpi::Job& job = mpi::Job::join();
  try {
    serve_models(job);
    job.finish();
  } catch (const std::exception& error) {
    const mpi::Launch launch = mpi::launch();
    fmt::print(stderr, "invar: process {} of {} on {}: {}\n", launch.rank, launch.size, host_name(),
               error.what());
    std::fflush(stderr);
    job.abort();
  }
}

void end_mpi_job() {
  if (mpi::launch().size == 1) return;
  mpi::Job& job = mpi::Job::join();
  for (int process = 1; process < job.size(); ++process)
    job.send(process, mpi::Tag::end_job, nullptr, 0);
  job.finish();
}

}  // namespace invar
