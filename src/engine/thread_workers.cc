// Workers on threads of this process: a thread for each rank, the caller's for rank 0. The stages
// of a rank follow one another on its thread, as long as one step is in flight at a time.
#include <algorithm>
#include <barrier>
#include <iterator>
#include <optional>
#include <thread>

#include "base/check.h"
#include "engine/devices.h"
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

  static bool is_of_another(const std::exception_ptr& failure) {
    try {
      std::rethrow_exception(failure);
    } catch (const PeerLeft&) {
      return true;
    } catch (...) {
      return false;
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
    if (ranks_ > 1) team_.emplace(ranks_, model.threads_of_rank(pool.size()));
    // Home comes last.
    for (int stage = 0; stage < stages_; ++stage)
      for (int rank = ranks_ - 1; rank >= 0; --rank) {
        const size_t number = stage * ranks_ + rank;
        workers_.push_back(std::make_unique<Worker>(
            model, WorkerPlace{rank, ranks_, stage, stages_}, devices_[number % devices_.size()],
            pool, team_ ? team_->pool(rank) : pool, source, progress));
        here_.push_back(workers_.back().get());
      }
    join();
    if (team_) team_->start(home().device().is_host());
  }

  std::span<Worker* const> here() const override { return here_; }
  bool are_all_the_callers() const override { return !team_; }
  bool shares_tokens() const override { return stages_ == 1; }

 private:
  Worker& worker(int stage, int rank) { return *here_[stage * ranks_ + ranks_ - 1 - rank]; }

  void order(const WorkerMessage&, AsWorker work) override {
    for (Worker* worker : here_) work(*worker);
  }

  void run(const WorkerMessage& message, AsWorker work) override {
    if (here_.size() == 1) return work(home());
    if (failure_) std::rethrow_exception(failure_);
    if (sampled_) record_tokens(std::get<RunBatch>(message));
    const auto play = [&](int rank) { play_stages(rank, message, work); };
    try {
      team_ ? team_->run(play) : play(0);
    } catch (...) {
      failure_ = std::current_exception();
      throw;
    }
  }

  void play_stages(int rank, const WorkerMessage& message, AsWorker work) {
    try {
      for (int stage = 0; stage < stages_; ++stage)
        rank == 0 ? work(worker(stage, rank)) : play(worker(stage, rank), message);
    } catch (...) {  // the others come to the end of the step without it
      for (int stage = 0; stage < stages_; ++stage) worker(stage, rank).leave();
      throw;
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
    channels_.clear();
    for (int i = 0; i < (stages_ - 1) * ranks_; ++i) channels_.push_back(make_inproc_channel());
    for (int stage = 0; stage < stages_; ++stage) {
      const size_t first = groups_.size();
      if (ranks_ > 1) std::ranges::move(make_groups_(ranks_), std::back_inserter(groups_));
      for (int rank = 0; rank < ranks_; ++rank)
        worker(stage, rank)
            .join({.group = ranks_ > 1 ? group_on(worker(stage, rank).device(), first + rank)
                                       : &solo_group(),
                   .before = channel(stage - 1, rank),
                   .after = channel(stage, rank)});
    }
  }

  // Of a rank on a GPU, whose operands the host's group does not see.
  Group* group_on(const Device& device, size_t index) {
    if (device.is_host()) return groups_[index].get();
    return groups_.emplace_back(make_peer_group(*groups_[index], peers_)).get();
  }

  // From a stage to the one behind it.
  Channel* channel(int stage, int rank) {
    return stage < 0 || stage == stages_ - 1 ? nullptr : channels_[stage * ranks_ + rank].get();
  }

  void give_up(const std::exception_ptr& why) override {
    if (failure_) return;
    failure_ = why;
    for (Worker* worker : here_) worker->leave();
  }

  void restart() override {
    if (!failure_) return;
    failure_ = nullptr;
    join();
  }

  const int ranks_, stages_;
  const MakeGroups make_groups_;
  const PeerOptions peers_;
  const std::vector<std::shared_ptr<Device>>
      devices_;  // outlive the groups, whose memory is theirs
  std::vector<std::unique_ptr<Group>> groups_;
  std::vector<std::unique_ptr<Channel>> channels_;  // by the stage before them, then by rank
  std::optional<Team> team_;
  std::vector<std::unique_ptr<Worker>> workers_;
  std::vector<Worker*> here_;   // by stage, in each the last rank first
  std::exception_ptr failure_;  // of the last step
  std::unique_ptr<Event> has_sampled_;
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
