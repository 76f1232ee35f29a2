// The engine: requests in, tokens out, one step at a time. Ids only; it never sees a string.
#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "engine/adapter_slots.h"
#include "engine/device_clock.h"
#include "engine/executor.h"
#include "engine/outbox.h"
#include "engine/request.h"
#include "engine/request_state.h"
#include "engine/shared_layers.h"
#include "engine/step_in_flight.h"
#include "kv/block_pool.h"
#include "kv/prefix_cache.h"
#include "scheduler/scheduler.h"
#include "speculative/proposer.h"

namespace invar {

struct EngineOptions {
  SchedulerOptions scheduler;  // max_model_len 0: the model's
  // Where the blocks do not hold one sequence of max_model_len: the context is what they hold.
  // Without it memory never decides how long an answer may be, and the engine refuses to start.
  bool fit_context = false;
  // Rows of a step that a stall-free policy gives to prompts and decodes; a step in which more
  // sequences decode has a row for each and a few for prompts. 0: max_num_batched_tokens, or what
  // the device does within `target_step_seconds`, which is measured, where that is not 0.
  int step_rows = 0;
  double target_step_seconds = 0;
  int block_size = 64;           // 32, 64 or 128
  int64_t kv_bytes = 0;          // memory for keys and values; 0: sized by profiling
  int engines_sharing = 1;       // engines that divide what is free among them, this one included
  bool prefix_caching = true;    // requests that begin alike share blocks
  bool prompt_logprobs = false;  // whether requests may ask for them
  // Whether a step begins before the one in flight has ended, so that the device has work while the
  // host commits, tells the sink and plans. Sampled tokens stay on the device. A sequence that ends
  // with one has been computed a row too far, which is discarded. A new request waits for the steps
  // that were begun. Requests whose samples depend on their tokens (structured output, penalties,
  // bad words) sit out every other step; unset, it is on where the device is not the host and no
  // such request is live. With a proposer, ranks or stages, or while a trace is recorded, a step
  // begins when the last one is committed, before the sink is told of it. A pipeline without a
  // proposer has as many steps in flight as stages, each of other sequences, unless it is false.
  std::optional<bool> async_scheduling;
  AdapterLimits adapters;   // that requests may have
  bool embeddings = false;  // whether requests may be pooled: room for a step's hidden states
  // Drafts are accepted by rejection. The model's options say it, and its identity then, but where
  // ways of one model are measured beside each other.
  bool rejection = false;
  // How often in a row a step whose workers fail is computed again by others; then the engine
  // fails.
  int retries = 2;
  // Steps that the forms of answers may take in one step of the engine. Tokens beyond them come
  // with a later one, the oldest first; no answer depends on it.
  int64_t form_work = Constraint::kMostOfStep;
};

// Counts and times of a step, for progress lines and metrics.
struct StepStats {
  int rows = 0;       // of all kinds
  int samples = 0;    // tokens sampled
  int sequences = 0;  // that had rows
  int running = 0, waiting = 0;
  int preempted = 0;
  int begun = 0;   // tokens of the prompts of requests that began in this step
  int cached = 0;  // tokens of requests that began in this step, taken from the prefix cache
  int free_blocks = 0;
  int discarded = 0;  // rows computed for requests that were over by then
  int ahead = 0;      // steps that had been begun by its end
  // Between the end of the device's work for the step before and the beginning of this one's; of
  // stages, what the last one waited for the one before it; else 0 on a host.
  double device_idle_seconds = 0;
  double device_seconds = 0;  // the device's work for this step, by its own clock; 0 on a host
  StepWork work;
  // Speculation: sequences that had drafts, nodes of their trees, tokens that were accepted, and
  // how many sequences accepted a token at level [i] below the root.
  int drafts = 0, draft_tokens = 0, accepted_tokens = 0;
  std::vector<int> accepted_at;
};

class Engine {
 public:
  // Takes the memory for blocks and activations. Throws Error, with the context that would fit,
  // when it does not suffice for one sequence of max_model_len. Several engines may share a model;
  // each but one then has threads of its own (null: the model's). With a proposer, sequences decode
  // along its drafts; no answer depends on it.
  Engine(Model& model, const EngineOptions& options, ThreadPool* threads = nullptr,
         std::unique_ptr<Proposer> proposer = nullptr);
  ~Engine();

  // Throws UsageError, with one sentence, for a request that can never be answered.
  void add(Request request);
  // Ends a request without another word; unknown ids are ignored, since it may just have finished.
  // Its id is free.
  void abort(int64_t id);
  // Plans, computes, samples and answers once. False when there was nothing to do. A worker that
  // fails ends the step and not the engine: its sequences are computed again.
  bool step(OutputSink& sink);
  bool has_work() const { return !states_.empty() || in_flight() > 0; }

  // As they were settled: the context, the rows of a step.
  const EngineOptions& options() const { return options_; }
  const StepStats& last_step() const { return stats_; }
  int max_model_len() const { return options_.scheduler.max_model_len; }
  int step_rows() const { return options_.step_rows; }
  int num_blocks() const { return pool_->num_blocks(); }
  int64_t kv_bytes() const { return num_blocks() * block_bytes(); }
  // Beside these, of the side branches of drafts.
  int64_t branch_bytes() const { return scratch_blocks_ * block_bytes(); }
  // The states and chunks of sequences, drafts and snapshots, all workers together.
  int64_t cell_bytes() const;
  // Blocks that no sequence holds, and how many sequences do and wait, between steps.
  int free_blocks() const { return pool_->free_blocks(); }
  int num_running() const { return scheduler_->num_running(); }
  int num_waiting() const {
    return scheduler_->num_waiting() + static_cast<int>(adapters_.waiting.size());
  }
  Model& model() { return model_; }
  ThreadPool& threads() { return pool_of_threads_; }
  // Records every operation of the following steps; null stops it. Throws UsageError where stages
  // are in other processes.
  void set_trace(Trace* trace);
  // Adds up the time of each operation of the following steps; null stops it.
  void set_times(OperationTimes* times) { times_ = times; }
  // Throws UsageError while requests are live. Ends steps that were begun for requests which are
  // over.
  void expect_no_work();
  // Goes on with other weights of the same model: panels are written in place, blocks of the old
  // weights are forgotten. Throws UsageError while requests are live, since their blocks would be
  // of two models; Error as Model::reload does.
  void take_weights(const TensorSource& source);
  // The same with the checkpoint in `directory`. Throws as Model::take does.
  void take_checkpoint(const std::string& directory);
  // Model::sleep, without blocks of ended requests. Throws UsageError while requests are live; none
  // may be added before all is back.
  void sleep(const Sleep& what);
  // Forgets the blocks of ended requests: after the weights change.
  void clear_prefix_cache();
  // Empty when blocks and queues agree with each other; else what is wrong.
  std::string check_integrity() const;

 private:
  static constexpr int kMostRows = 1 << 24;  // of a step

  // A token that the constraints' work of its step did not reach. Its sequence sits out.
  struct LateToken {
    std::shared_ptr<RequestState> state;
    SamplingStage::Drawn drawn;
  };

  // For prompts, in a step in which more sequences decode than it should have rows.
  int prompt_rows() const { return has_states_ ? kBoundary : 32; }

  // A step. step.cc: from the plan to what the device is given; waiting for that, and the samples.
  // step_results.cc: what becomes of them; what the sink is told.
  bool run_step(OutputSink& sink);
  bool begin(OutputSink& sink, int64_t work);
  void finish(StepInFlight& step);
  void commit(StepInFlight& step);
  void emit(OutputSink& sink);

  int in_flight() const { return static_cast<int>(begun_ - committed_); }
  StepInFlight& nth(int64_t number) { return steps_[number % std::ssize(steps_)]; }
  bool may_begin();
  void finish_discarded();
  void start_admitted(StepInFlight& step, OutputSink& sink);
  void propose(StepInFlight& step);
  void build_batch(StepInFlight& step);
  void add_rows(StepInFlight& step, size_t entry);
  void add_drafts(StepInFlight& step, DraftTree& tree);
  bool take_scratch(Batch& batch);
  void want_last_hidden(Batch& batch) const;
  void launch(StepInFlight& step);
  void begin_trace(const StepInFlight& step);
  void run_with_host_logits(StepInFlight& step);
  void run_layers(StepInFlight& step);
  void keep_accepted(StepInFlight& step);
  void keep_accepted_cells(StepInFlight& step);
  void take_scores(StepInFlight& step);
  void take_walks(StepInFlight& step);
  void take_experts(const StepInFlight& step);
  // For every entry, the rows that were kept, positions ascending.
  std::vector<std::vector<int32_t>> kept_rows(const StepInFlight& step) const;
  void take_walk(const StepInFlight& step, SamplingStage::Walk& walk);
  // late_tokens.cc: enters tokens that are late, the oldest first, as far as the work of a step
  // goes; what is left of that.
  int64_t settle_late();
  void settle(LateToken late, int64_t& work);
  void emit_late(OutputSink& sink);
  void forget_late(int64_t id);
  void take_others(StepInFlight& step);
  bool pool_rows(const StepInFlight& step, size_t entry);
  void count_drafts(const SamplingStage::Walk& walk, int32_t accepted);
  void count_step(const StepInFlight& step);
  void show_hidden(StepInFlight& step);
  void forget(int64_t id);
  // Gives a request to the scheduler, if it needs no adapter or there is a slot for that.
  bool schedule(RequestState& state);

  // recovery.cc: workers have failed.
  void recover(OutputSink& sink);
  void wait_for_device();
  void discard(StepInFlight& step);

  RunnerLimits limits(int blocks) const;
  int64_t block_bytes() const;
  int64_t block_bytes_of(const Shard& shard) const;
  int64_t cell_bytes_of(const Shard& shard) const;
  std::vector<StateShape> shapes_of(const Shard& shard) const;
  void settle_cells();
  int sized_blocks();
  int64_t blocks_beside_a_step();
  int64_t adapter_bytes() const;
  void settle_context(int blocks);
  void settle_step_rows(ThreadPool* threads);
  void settle_whole_texts();
  bool is_async() const { return options_.async_scheduling.value_or(!model_.device().is_host()); }
  // Rows whose tokens are not known yet.
  bool may_run_ahead() const;
  // Steps of other sequences, one for each stage.
  bool is_pipeline() const;
  int plans_in_flight() const;
  bool rejects() const { return model_.options().rejection || options_.rejection; }
  std::unique_ptr<PrefixCache> make_cache(const RunnerLimits& limits) const;
  void make_steps(const RunnerLimits& limits);
  int32_t budget() const;
  // The proposer's, or null.
  HiddenReader* hidden_reader() const { return proposer_ ? proposer_->hidden_reader() : nullptr; }
  // That it wants of the next step.
  std::span<const int32_t> aux_layers() const {
    HiddenReader* reader = hidden_reader();
    return reader ? reader->aux_layers() : std::span<const int32_t>();
  }

  Model& model_;
  ThreadPool& pool_of_threads_;
  EngineOptions options_;
  std::unique_ptr<BlockPool> pool_;
  std::unique_ptr<PrefixCache> cache_;  // or null
  std::unique_ptr<Scheduler> scheduler_;
  std::unique_ptr<Executor> executor_;
  std::unique_ptr<Proposer> proposer_;  // or null
  std::optional<SharedLayers> shared_;  // of a proposer that runs the target's first layers
  std::optional<DeviceClock> clock_;
  std::unordered_map<int64_t, std::shared_ptr<RequestState>> states_;
  AdapterSlots adapters_;
  std::deque<LateToken> late_;  // the oldest first
  int late_samples_ = 0;        // that were entered since the last commit
  int live_by_tokens_ = 0;      // of them, those whose samples depend on their tokens
  // Beyond the pool's blocks: for side branches of draft trees, within a step.
  int32_t scratch_blocks_ = 0;
  const bool has_states_;
  int32_t draft_cells_ = 0, snapshots_ = 0;

  // Step n is steps_[n % size]; in flight are those from committed_ to begun_.
  std::vector<StepInFlight> steps_;
  int64_t begun_ = 0, committed_ = 0;
  int failures_ = 0;  // of steps, in a row
  Trace* trace_ = nullptr;
  OperationTimes* times_ = nullptr;

  // Drafts of a step, which is in flight alone.
  std::vector<DraftRequest> draft_requests_;
  std::vector<DraftTree> trees_;  // one for each of them
  std::vector<BatchRow> tree_rows_;
  std::vector<SlotCopy> copies_;
  ScratchCells used_cells_;  // by the trees of the step that is built
  // The next step begins with these copies of accepted drafts.
  std::vector<CellCopy> chunk_copies_, state_copies_;

  // Results of the last committed step.
  std::vector<StepResult> results_;
  StepStats stats_;
  Outbox outbox_;
  double waited_seconds_ = 0;  // by the last stage, up to it
  std::vector<float> normed_;  // hidden states to be pooled, of one request
  bool in_emission_ = false;
  std::vector<int64_t> silenced_;  // aborted during the emission
};

}  // namespace invar
