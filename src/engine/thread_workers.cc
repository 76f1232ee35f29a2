// Workers on threads of this process. One stage has a thread for each rank, the caller's for rank
// 0. Several stages have a thread for each worker but home, which the caller plays, so that stages
// before home can be a step ahead of it.
#include <algorithm>
#include <barrier>
#include <iterator>
#include <optional>
#include <thread>

#include "base/check.h"
#include "engine/devices.h"
#include "engine/wires.h"
#include "engine/worker_thread.h"
#include "engine/workers.h"

namespace invar {

namespace {

// Threads of the ranks from 1 on, which do what rank 0's caller does, each with a pool of its own.
class Team {
 public:
  Team(int ranks, int threads_of_rank) : start_(ranks), done_(ranks), failures_(ranks) {
    for (int r = 0; r < ranks; ++r)
      pools_.push_back(std::make_unique<ThreadPool>(threads_of_rank, r * threads_of_rank));
  }
  ~Team() {
    stopping_ = true;
    // For ranks that have no thread, since something before that could not be had.
    for (size_t rank = threads_.size() + 1; rank < pools_.size(); ++rank) (void)start_.arrive();
    start_.arrive_and_wait();
  }

  ThreadPool& pool(int rank) { return *pools_[rank]; }
  void start(bool pins) {
    for (int r = 1; r < std::ssize(pools_); ++r)
      threads_.emplace_back([this, r, pins] { serve(r, pins); });
  }

  // work(rank) on every rank's thread at the same time; returns when all are done. Throws what the
  // first that failed by itself has thrown; `work` lets the others know that it fails.
  void run(FunctionRef<void(int)> work) {
    std::ranges::fill(failures_, nullptr);
    work_ = &work;
    start_.arrive_and_wait();
    run_one(0);
    done_.arrive_and_wait();
    std::exception_ptr first;
    for (const std::exception_ptr& failure : failures_)
      if (failure && (!first || is_of_another(first))) first = failure;
    if (first) std::rethrow_exception(first);
  }

  // Whether it was thrown since another worker had failed.
  static bool is_of_another(const std::exception_ptr& failure) {
    try {
      std::rethrow_exception(failure);
    } catch (const PeerLeft&) {
      return true;
    } catch (...) {
      return false;
    }
  }

 private:
  // The life of a further rank's thread.
  void serve(int rank, bool pins) {
    if (pins) pools_[rank]->pin_caller();
    while (true) {
      start_.arrive_and_wait();
      if (stopping_) return;
      run_one(rank);
      done_.arrive_and_wait();
    }
  }

  void run_one(int rank) {
    try {
      (*work_)(rank);
    } catch (...) {
      failures_[rank] = std::current_exception();
    }
  }

  std::barrier<> start_, done_;
  std::vector<std::unique_ptr<ThreadPool>> pools_;
  std::vector<std::exception_ptr> failures_;
  const FunctionRef<void(int)>* work_ = nullptr;
  bool stopping_ = false;
  std::vector<std::jthread> threads_;
};

class ThreadWorkers final : public Workers {
 public:
  ThreadWorkers(const ModelDescription& model, const TensorSource& source, ThreadPool& pool,
                const LoadProgress& progress, MakeGroups make_groups, const PeerOptions& peers)
      : ranks_(model.options.ranks),
        stages_(model.stages()),
        make_groups_(std::move(make_groups)),
        peers_(model.options.exchange == "auto" ? peers : peer_options(model.options.exchange)),
        devices_(open_devices(model.options.device, ranks_ * stages_, model.options.first_gpu)) {
    make_pools(model.threads_of_rank(pool.size()));
    // Home comes last.
    for (int number = 0; number < ranks_ * stages_; ++number) {
      const WorkerPlace place = place_of(number, ranks_, stages_);
      const size_t device = static_cast<size_t>(place.stage * ranks_ + place.rank);
      workers_.push_back(std::make_unique<Worker>(model, place, devices_[device % devices_.size()],
                                                  pool, pool_of(number, pool), source, progress));
      here_.push_back(workers_.back().get());
    }
    join();
    const bool pins = home().device().is_host();
    if (team_) team_->start(pins);
    for (size_t i = 0; stages_ > 1 && i + 1 < here_.size(); ++i)
      threads_.push_back(
          std::make_unique<WorkerThread>(*here_[i], pins ? pools_[i].get() : nullptr));
  }
  ~ThreadWorkers() override {
    for (const auto& thread : threads_) (void)thread->wait();
  }

  std::span<Worker* const> here() const override { return here_; }
  bool are_all_the_callers() const override { return here_.size() == 1; }
  bool shares_tokens() const override { return stages_ == 1; }
  bool runs_ahead() const override { return stages_ > 1; }

 private:
  // With several stages each worker has a pool of its own, home the first cores.
  void make_pools(int threads_of_rank) {
    if (stages_ == 1 && ranks_ > 1) team_.emplace(ranks_, threads_of_rank);
    const int workers = ranks_ * stages_;
    for (int i = 0; stages_ > 1 && i < workers; ++i)
      pools_.push_back(
          std::make_unique<ThreadPool>(threads_of_rank, (workers - 1 - i) * threads_of_rank));
  }
  ThreadPool& pool_of(int number, ThreadPool& callers) {
    if (!pools_.empty()) return *pools_[static_cast<size_t>(number)];
    return team_ ? team_->pool(place_of(number, ranks_, stages_).rank) : callers;
  }

  Worker& worker(int stage, int rank) { return *here_[stage * ranks_ + ranks_ - 1 - rank]; }

  // The rest of a step on another thread is done before.
  void order(const WorkerMessage&, AsWorker work) override {
    for (const auto& thread : threads_) (void)thread->wait();
    for (Worker* worker : here_) work(*worker);
  }

  void run(const WorkerMessage& message, AsWorker work) override {
    if (here_.size() == 1) return work(home());
    if (failure_) std::rethrow_exception(failure_);
    if (stages_ > 1) return run_stages(message, work);
    if (sampled_) record_tokens(std::get<RunBatch>(message));
    try {
      team_->run([&](int rank) { play_rank(rank, message, work); });
    } catch (...) {
      failure_ = std::current_exception();
      throw;
    }
  }

  void play_rank(int rank, const WorkerMessage& message, AsWorker work) {
    Worker& own = worker(0, rank);
    try {
      rank == 0 ? work(own) : play(own, message);
    } catch (...) {  // the others come to the end of the step without it
      own.leave();
      throw;
    }
  }

  bool send_ahead(const WorkerMessage& message) override {
    if (failure_) std::rethrow_exception(failure_);
    const auto copy = std::make_shared<const WorkerMessage>(message);
    for (const auto& thread : threads_)
      thread->post([copy](Worker& worker) { worker.handle(*copy); });
    told_.emplace_back();
    return true;
  }

  // The other stages have been told, or hear of it now, and then home waits for all of them.
  void run_stages(const WorkerMessage& message, AsWorker work) {
    try {
      const bool is_told = !told_.empty();
      if (!is_told)
        for (const auto& thread : threads_)
          thread->post([&](Worker& worker) {
            worker.place().rank == 0 ? work(worker) : worker.handle(message);
          });
      work(home());
      if (is_told) return told_.pop_front();
      for (const auto& thread : threads_)
        if (const std::exception_ptr failure = thread->wait()) std::rethrow_exception(failure);
    } catch (...) {
      give_up(std::current_exception());
      std::rethrow_exception(failure_);
    }
  }

  // As a rank beside home.
  void play(Worker& worker, const WorkerMessage& message) {
    if (!sampled_) return worker.handle(message);
    const auto& step = std::get<RunBatch>(message);
    worker.runner(step.runner).decoder().execution.stream->wait_for(*has_sampled_);
    ForwardIo io{.sampled = sampled_};
    worker.run(step.runner, step.batch, io);
  }

  // Home's stream has all of the step before, its tokens too. They are not overwritten before the
  // ranks have read them: home needs what the ranks compute behind that.
  void record_tokens(const RunBatch& step) {
    if (!has_sampled_) has_sampled_ = home().device().make_event();
    home().runner(step.runner).decoder().execution.stream->record(*has_sampled_);
  }

  // New groups and channels, without those who have left the old ones.
  void join() {
    groups_.clear();
    make_links();
    for (int stage = 0; stage < stages_; ++stage) {
      const size_t first = groups_.size();
      if (ranks_ > 1) std::ranges::move(make_groups_(ranks_), std::back_inserter(groups_));
      for (int rank = 0; rank < ranks_; ++rank)
        worker(stage, rank)
            .join({.group = ranks_ > 1 ? group_on(worker(stage, rank).device(), first + rank)
                                       : &solo_group(),
                   .before = stage == 0 ? nullptr : link(stage - 1, rank).receiver.get(),
                   .after = stage == stages_ - 1 ? nullptr : link(stage, rank).sender.get()});
    }
  }

  // On GPUs an end each, over memory from which and to which they copy.
  void make_links() {
    links_.clear();
    for (int i = 0; i < (stages_ - 1) * ranks_; ++i) {
      StageLink& link = links_.emplace_back();
      if (home().device().is_host()) {
        link.sender = link.receiver = make_inproc_channel();
        continue;
      }
      link.memory = SharedMemory(shared_channel_bytes(true));
      link.sender = make_shared_channel(link.memory, {});
      link.receiver = make_shared_channel(link.memory, {});
    }
  }

  // The group of a rank on a GPU, whose operands the host's group does not see.
  Group* group_on(const Device& device, size_t index) {
    if (device.is_host()) return groups_[index].get();
    return groups_.emplace_back(make_peer_group(*groups_[index], peers_)).get();
  }

  // From a stage to the one behind it.
  struct StageLink {
    SharedMemory memory;  // of its ends, or none
    std::shared_ptr<Channel> sender, receiver;
  };
  StageLink& link(int stage, int rank) { return links_[stage * ranks_ + rank]; }

  // Keeps what the first that failed by itself has thrown.
  void give_up(const std::exception_ptr& why) override {
    if (failure_) return;
    failure_ = why;
    if (threads_.empty())
      for (Worker* worker : here_) worker->leave();
    for (const auto& thread : threads_) thread->abandon();
    if (!threads_.empty()) home().leave();
    for (const auto& thread : threads_)
      if (const std::exception_ptr failure = thread->wait();
          failure && Team::is_of_another(failure_))
        failure_ = failure;
  }

  void restart() override {
    if (!failure_) return;
    failure_ = nullptr;
    for (const auto& thread : threads_) thread->recover();
    join();
  }

  const int ranks_, stages_;
  const MakeGroups make_groups_;
  const PeerOptions peers_;
  const std::vector<std::shared_ptr<Device>>
      devices_;  // outlive the groups, whose memory is theirs
  std::vector<std::unique_ptr<Group>> groups_;
  std::vector<StageLink> links_;                    // by the stage before them, then by rank
  std::optional<Team> team_;                        // of one stage of several ranks
  std::vector<std::unique_ptr<ThreadPool>> pools_;  // of several stages: as here_
  std::vector<std::unique_ptr<Worker>> workers_;
  std::vector<Worker*> here_;   // by stage, in each the last rank first
  std::exception_ptr failure_;  // of the last step
  std::unique_ptr<Event> has_sampled_;
  std::vector<std::unique_ptr<WorkerThread>> threads_;  // of several stages: all but home
};

}  // namespace

Launch launch_threads(MakeGroups make_groups, const PeerOptions& peers) {
  return [make_groups = std::move(make_groups), peers](
             const ModelDescription& model, const TensorSource& source, ThreadPool& pool,
             const LoadProgress& progress) -> std::unique_ptr<Workers> {
    if (model.options.executor != "threads")
      fail_usage("the executor {} needs another launch; see launch_of", model.options.executor);
    return std::make_unique<ThreadWorkers>(model, source, pool, progress, make_groups, peers);
  };
}

}  // namespace invar
