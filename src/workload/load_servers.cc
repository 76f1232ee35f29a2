#include <deque>
#include <random>

#include "base/error.h"
#include "workload/load_run.h"

namespace invar {

namespace {

class InstanceServer final : public LoadServer {
 public:
  InstanceServer(const std::shared_ptr<Model>& model, const EngineOptions& options)
      : instance_({.model = model->options(), .engine = options}, model) {}

  void add(int64_t id, const LoadRequest& request) override {
    std::mt19937 random(static_cast<uint32_t>(id) + 1);
    Request r{.id = id, .hash_logits = false};
    const int vocab = engine_.model().spec().vocab;
    for (int i = 0; i < request.prompt; ++i)
      r.prompt.edit().push_back(static_cast<int32_t>(random() % static_cast<uint32_t>(vocab)));
    r.params.max_tokens = request.answer;
    r.params.temperature = 0;
    engine_.add(std::move(r));
  }
  bool step(OutputSink& sink) override { return engine_.step(sink); }
  bool has_work() const override { return engine_.has_work(); }
  const StepStats& last_step() const override { return engine_.last_step(); }

 private:
  Instance instance_;
  Engine& engine_ = instance_.engine();
};

class SchedulerServer final : public LoadServer {
 public:
  SchedulerServer(const SchedulerOptions& options, int blocks, int block_size,
                  std::vector<LayerWindow> windows)
      : options_(options),
        windows_(std::move(windows)),
        pool_(blocks, block_size),
        scheduler_(make_scheduler(options, pool_)) {}

  void add(int64_t id, const LoadRequest& request) override {
    if (request.prompt + request.answer > options_.max_model_len)
      fail_usage("expected requests of at most {} tokens, found {}", options_.max_model_len,
                 request.prompt + request.answer);
    const bool runs_ahead = options_.max_plans_in_flight > 1;
    scheduler_->add({.id = id,
                     .tokens = request.prompt,
                     .ahead_until = runs_ahead ? request.prompt + request.answer : 0});
    left_[id] = request.answer;
  }
  bool has_work() const override { return !left_.empty(); }
  const StepStats& last_step() const override { return stats_; }

  // As Engine::run_step: begins what may be in flight, then commits the oldest of it.
  bool step(OutputSink& sink) override {
    while (std::ssize(in_flight_) < options_.max_plans_in_flight && begin(sink)) {
    }
    if (in_flight_.empty()) return false;
    commit(in_flight_.front(), sink);
    in_flight_.pop_front();
    if (options_.max_plans_in_flight > 1 && in_flight_.empty()) begin(sink);
    return true;
  }

 private:
  bool begin(OutputSink& sink) {
    StepPlan plan;
    scheduler_->plan(options_.max_num_batched_tokens, plan);
    if (plan.entries.empty()) return false;
    for (const int64_t id : plan.preempted) sink.on_preempt(id);
    for (const int64_t id : plan.admitted) sink.on_start(id, 0);
    in_flight_.push_back(std::move(plan));
    return true;
  }

  void commit(const StepPlan& plan, OutputSink& sink) {
    results_.clear();
    for (const StepEntry& entry : plan.entries) {
      StepResult& result = results_.emplace_back();
      if (!entry.samples) continue;
      result = {.new_tokens = 1, .finished = --left_.at(entry.id) == 0};
      sink.on_token({.request = entry.id,
                     .finish = result.finished ? FinishReason::length : FinishReason::none});
      if (result.finished) left_.erase(entry.id);
    }
    scheduler_->commit(plan, results_);
    stats_ = {.rows = plan.rows(),
              .sequences = static_cast<int>(plan.entries.size()),
              .running = scheduler_->num_running(),
              .waiting = scheduler_->num_waiting(),
              .preempted = static_cast<int>(plan.preempted.size()),
              .free_blocks = pool_.free_blocks(),
              .work = work_of(plan, windows_)};
  }

  SchedulerOptions options_;
  std::vector<LayerWindow> windows_;
  BlockPool pool_;
  std::unique_ptr<Scheduler> scheduler_;
  std::unordered_map<int64_t, int> left_;  // tokens of the answer
  std::deque<StepPlan> in_flight_;
  std::vector<StepResult> results_;
  StepStats stats_;
};

}  // namespace

std::unique_ptr<LoadServer> make_instance_server(const std::shared_ptr<Model>& model,
                                                 const EngineOptions& options) {
  return std::make_unique<InstanceServer>(model, options);
}

std::unique_ptr<LoadServer> make_scheduler_server(const SchedulerOptions& options, int blocks,
                                                  int block_size,
                                                  std::vector<LayerWindow> windows) {
  return std::make_unique<SchedulerServer>(options, blocks, block_size, std::move(windows));
}

}  // namespace invar
