// A step of the engine: plan, propose, build the batch, forward, sample, keep; then
// step_results.cc: commit and emit.
#include <algorithm>
#include <utility>

#include "base/check.h"
#include "engine/engine.h"

namespace invar {

bool Engine::step(OutputSink& sink) {
  try {
    if (!run_step(sink)) return false;
    failures_ = 0;
  } catch (const WorkerFailed& failure) {
    if (++failures_ > options_.retries) failure.rethrow();
    recover(sink);
  }
  return true;
}

// Begins what may be in flight, then waits for the oldest of it.
bool Engine::run_step(OutputSink& sink) {
  while (!adapters_.waiting.empty() && schedule(*states_.at(adapters_.waiting.front())))
    adapters_.waiting.pop_front();
  const bool was_late = !late_.empty();
  const int64_t work = settle_late();
  while (begin(sink, work)) {
  }
  if (in_flight() == 0) {
    if (was_late) {
      emit_late(sink);
      return true;
    }
    if (!states_.empty())
      fail("the scheduler plans no step and {} requests are not answered", states_.size());
    return false;
  }
  StepInFlight& oldest = nth(committed_);
  finish(oldest);
  timed(times_, kHostParts.commit, [&] { commit(oldest); });
  if (is_pipeline() || (is_async() && in_flight() == 0)) begin(sink, options_.form_work);
  timed(times_, kHostParts.emit, [&] { emit(sink); });
  return true;
}

// Plans the next step and gives it to the device, if that can do all of it. False when there is
// nothing to do, or nothing before a step in flight is committed. `work`: of constraints that is
// left to it.
bool Engine::begin(OutputSink& sink, int64_t work) {
  if (!may_begin()) return false;
  StepInFlight& step = nth(begun_);
  timed(times_, kHostParts.plan, [&] { scheduler_->plan(budget(), step.plan); });
  if (step.plan.entries.empty()) return false;
  step.number = begun_++;
  step.states.clear();
  for (const StepEntry& entry : step.plan.entries) step.states.push_back(states_.at(entry.id));
  step.sampling->begin(work);
  start_admitted(step, sink);
  timed(times_, kHostParts.draft, [&] { propose(step); });
  timed(times_, kHostParts.rows, [&] { build_batch(step); });
  launch(step);
  return true;
}

// Behind another one only if the device or the stages before home have all of that one, and nobody
// would have to sit out, if nobody asked for that.
bool Engine::may_begin() {
  if (in_flight() == 0) return true;
  const bool may_leave_out = is_pipeline() || options_.async_scheduling.value_or(false);
  const StepInFlight& last = nth(begun_ - 1);
  return in_flight() < options_.scheduler.max_plans_in_flight && !trace_ &&
         (may_leave_out || live_by_tokens_ == 0) &&
         (is_pipeline() ? last.is_told : last.is_under_way());
}

// Steps in which nobody is left, and of which nobody hears.
void Engine::finish_discarded() {
  while (states_.empty() && in_flight() > 0) {
    StepInFlight& step = nth(committed_);
    finish(step);
    commit(step);
  }
}

// Everybody who decodes gets a row in every step, and prompts go on.
int32_t Engine::budget() const {
  return std::max(options_.step_rows, scheduler_->num_running() + prompt_rows());
}

void Engine::start_admitted(StepInFlight& step, OutputSink& sink) {
  for (const int64_t id : step.plan.preempted) {
    sink.on_preempt(id);
    forget_late(id);
  }
  for (const int64_t id : step.plan.admitted) {
    states_.at(id)->reserve(max_model_len());
    const auto entry = std::ranges::find(step.plan.entries, id, &StepEntry::id);
    sink.on_start(id, entry == step.plan.entries.end() ? 0 : entry->start);
  }
}

// Trees for the sequences that the plan gives draft rows, none deeper than its answer may be.
void Engine::propose(StepInFlight& step) {
  const std::span<const StepEntry> entries = step.plan.entries;
  step.tree_of.assign(entries.size(), nullptr);
  if (!proposer_) return;
  draft_requests_.clear();
  for (size_t i = 0; i < entries.size(); ++i) {
    const StepEntry& entry = entries[i];
    if (entry.drafts == 0) continue;
    const RequestState& state = *step.states[i];
    draft_requests_.push_back({.id = entry.id,
                               .tokens = state.tokens,
                               .prompt_size = state.prompt_size(),
                               .params = &state.request.params,
                               .choice = state.request.choice,
                               .wants_argmax = rejects(),
                               .most = entry.drafts,
                               .corpus = state.request.cache_salt.get(),
                               .prediction = state.request.prediction.get(),
                               .blocks = scheduler_->blocks(entry.sequence),
                               .computed = entry.start});
  }
  trees_.resize(std::max(trees_.size(), draft_requests_.size()));
  const std::span<DraftTree> trees = std::span(trees_).first(draft_requests_.size());
  for (DraftTree& tree : trees) tree.clear();
  proposer_->propose(draft_requests_, trees);
  for (size_t i = 0, next = 0; i < entries.size(); ++i) {
    const StepEntry& entry = entries[i];
    if (entry.drafts == 0) continue;
    const RequestState& state = *step.states[i];
    DraftTree& tree = trees[next++];
    const std::string wrong = check_tree(tree, model_.spec().vocab);
    CHECK(wrong.empty(), "a proposer's tree is malformed");
    prune(tree, entry.drafts,
          std::min(entry.drafts, state.request.params.max_tokens - state.answer_size() - 1));
    step.tree_of[i] = &tree;
  }
}

// Rows of every planned sequence, and which of them need logits.
void Engine::build_batch(StepInFlight& step) {
  Batch& batch = step.batch;
  batch.rows.clear();
  batch.logit_rows.clear();
  const std::span<const int32_t> aux = aux_layers();
  batch.aux_layers.assign(aux.begin(), aux.end());
  batch.wants_experts = std::ranges::any_of(
      step.states, [](const auto& state) { return state->request.routed_experts; });
  batch.scratch_blocks.clear();
  used_cells_ = {};
  batch.adapters.clear();
  batch.chunk_copies = std::exchange(chunk_copies_, {});
  batch.state_copies = std::exchange(state_copies_, {});
  const std::vector<CellCopy>& planned = step.plan.state_copies;
  batch.state_copies.insert(batch.state_copies.end(), planned.begin(), planned.end());
  batch.sequences.resize(step.plan.entries.size());
  step.first_row.clear();
  for (size_t i = 0; i < step.plan.entries.size(); ++i) {
    const auto blocks = scheduler_->blocks(step.plan.entries[i].sequence);
    batch.sequences[i].blocks.assign(blocks.begin(), blocks.end());
    const int32_t adapter = batch.sequences[i].adapter = step.states[i]->adapter;
    if (adapter >= 0) adapters_.load(adapter, batch.adapters);
    if (has_states_) batch.sequences[i].cell = scheduler_->cell(step.plan.entries[i].sequence);
    step.first_row.push_back(batch.rows.size());
    add_rows(step, i);
  }
}

// A token that is not known yet is one that the step in flight samples.
void Engine::add_rows(StepInFlight& step, size_t index) {
  const StepEntry& entry = step.plan.entries[index];
  RequestState& state = *step.states[index];
  DraftTree* tree = step.tree_of[index];
  Batch& batch = step.batch;
  const int32_t end = entry.start + entry.rows;
  for (int32_t position = entry.start; position < end; ++position) {
    if (state.wants_logprob_of(position + 1)) {
      batch.logit_rows.push_back(static_cast<int32_t>(batch.rows.size()));
      step.sampling->add_score(state, position + 1);
    }
    const bool is_known = position < std::ssize(state.tokens);
    CHECK(is_known || (position == std::ssize(state.tokens) && in_flight() == 2),
          "a row of a token that no step in flight samples");
    batch.rows.push_back({is_known ? state.tokens[position] : ~state.sampled_at, position,
                          static_cast<int32_t>(index)});
  }
  if (state.request.pooled) {
    want_last_hidden(batch);
  } else if (entry.samples) {
    const int32_t root = static_cast<int32_t>(batch.rows.size()) - 1;
    if (tree) add_drafts(step, *tree);
    for (int32_t row = root; row < std::ssize(batch.rows); ++row) batch.logit_rows.push_back(row);
    step.sampling->add_walk(state, end, static_cast<int32_t>(step.first_row[index]), root, tree);
  }
}

// The last of aux_layers then.
void Engine::want_last_hidden(Batch& batch) const {
  const int32_t last = model_.spec().layers - 1;
  if (batch.aux_layers.empty() || batch.aux_layers.back() != last) batch.aux_layers.push_back(last);
}

// Below the batch's last row. Without scratch memory for its side branches the tree is its trunk. A
// state moves along trunks, so where layers have states the trunk is a side branch, too.
void Engine::add_drafts(StepInFlight& step, DraftTree& tree) {
  Batch& batch = step.batch;
  if (!has_states_ && trunk_size(tree) == std::ssize(tree)) return append_rows(tree, batch.rows);
  tree_rows_.assign(1, batch.rows.back());
  append_rows(tree, tree_rows_, has_states_);
  if (!take_scratch(batch)) {
    keep_trunk(tree);
    tree_rows_.resize(1);
    append_rows(tree, tree_rows_, has_states_);
    if (has_states_ && !take_scratch(batch)) tree.clear();
  }
  append_rows(tree, batch.rows, has_states_);
}

namespace {

// The root comes first.
bool have_branches(std::span<const BatchRow> rows) {
  for (int32_t t = 2; t < std::ssize(rows); ++t)
    if (rows[t].parent != t - 1) return true;
  return false;
}

}  // namespace

// Takes what the rows of a tree need, if there is so much left. Where trunks need some, too,
// branches leave enough for those of the sequences behind: a path is in at most two blocks or
// chunks, as long as it is no longer than these.
bool Engine::take_scratch(Batch& batch) {
  const int32_t used = static_cast<int32_t>(batch.scratch_blocks.size());
  const int32_t behind =
      static_cast<int32_t>(std::ssize(batch.sequences)) - 1 - tree_rows_[0].sequence;
  const int32_t kept = has_states_ && have_branches(tree_rows_) ? 2 * behind : 0;
  const int32_t needed = scratch_blocks_needed(tree_rows_, options_.block_size);
  const ScratchCells cells = has_states_ ? scratch_cells_needed(tree_rows_) : ScratchCells{};
  if (used + needed + kept > scratch_blocks_ ||
      used_cells_.chunks + cells.chunks + kept > draft_cells_ ||
      used_cells_.states + cells.states + kept > draft_cells_)
    return false;
  for (int32_t i = used; i < used + needed; ++i) batch.scratch_blocks.push_back(num_blocks() + i);
  used_cells_.chunks += cells.chunks;
  used_cells_.states += cells.states;
  return true;
}

namespace {

// Gives the device all of a step. Home of a pipeline does that last of all: until the stages before
// it have done their part it would only wait.
void start_on_device(Executor& executor, std::optional<DeviceClock>& clock, StepInFlight& step) {
  if (clock) clock->begin(step.number);
  executor.run(step.batch, step.io);
  step.sampling->start_on_device(step.io.device_logits);
  if (clock) clock->end(step.number);
}

}  // namespace

void Engine::launch(StepInFlight& step) {
  ForwardIo& io = step.io;
  if (trace_) begin_trace(step);
  step.timer = Timer();
  step.sampling->set_times(times_);
  io.trace = trace_;
  io.times = times_;
  const StepInFlight* before = in_flight() > 1 ? &nth(step.number - 1) : nullptr;
  io.sampled = before && before->is_on_device() ? before->sampling->tokens_on_device() : nullptr;
  io.keep_logits = step.batch.aux_layers.empty() && !step.batch.wants_experts &&
                   step.sampling->samples_on_device();
  step.is_told = is_pipeline() && !trace_ && executor_->tell(step.batch);
  if (io.keep_logits && !is_pipeline()) start_on_device(*executor_, clock_, step);
}

void Engine::finish(StepInFlight& step) {
  if (step.is_on_device()) {
    if (is_pipeline()) start_on_device(*executor_, clock_, step);
    step.sampling->wait_for_device();
    executor_->expect_whole();
    step.sampling->finish_on_device(step.io.non_finite);
  } else {
    run_with_host_logits(step);
  }
  if (proposer_ && work_of(step.plan).prompt_rows == 0)
    proposer_->observe_step(std::ssize(step.batch.rows), step.timer.seconds());
  keep_accepted(step);
}

// Every step before it is committed by now: all tokens are known, but of who has ended.
void Engine::run_with_host_logits(StepInFlight& step) {
  for (BatchRow& row : step.batch.rows) {
    if (row.token >= 0) continue;
    const RequestState& state = *step.states[row.sequence];
    row.token = state.is_over ? 0 : state.tokens[row.position];
  }
  if (clock_) clock_->begin(step.number);
  run_layers(step);
  if (clock_) clock_->end(step.number);
}

// Rows that the proposer has computed are not computed again, but for a trace, which shows every
// operation.
void Engine::run_layers(StepInFlight& step) {
  if (!shared_ || trace_ || step.batch.wants_experts) return executor_->run(step.batch, step.io);
  shared_->begin(std::ssize(step.batch.rows));
  for (size_t i = 0; i < step.tree_of.size(); ++i) {
    const StepEntry& entry = step.plan.entries[i];
    if (!step.tree_of[i] || step.tree_of[i]->empty() || entry.rows != 1) continue;
    shared_->take(entry.id, step.batch, step.first_row[i], 1 + step.tree_of[i]->size());
  }
  shared_->run(*executor_, step.batch, step.io);
}

void Engine::begin_trace(const StepInFlight& step) {
  std::vector<TracedRow> rows;
  for (const BatchRow& row : step.batch.rows)
    rows.push_back({step.plan.entries[row.sequence].id, row.position, row.token});
  trace_->begin_step(rows);
}

// Keys and values of accepted side branches move into their sequences' own blocks, before anybody
// uses the scratch blocks, or those of a sequence that ends, again.
void Engine::keep_accepted(StepInFlight& step) {
  const Batch& batch = step.batch;
  if (has_states_) keep_accepted_cells(step);
  if (batch.scratch_blocks.empty()) return;
  copies_.clear();
  const Placement& placement = executor_->placement();
  for (const SamplingStage::Walk& walk : step.sampling->walks())
    placement.accept(batch.rows, walk.row(),
                     batch.sequences[batch.rows[walk.row()].sequence].blocks, copies_);
  if (!copies_.empty()) timed(step.io.times, "copy_slots", [&] { executor_->copy_slots(copies_); });
}

// The same of chunks and states, before the rows of the next step.
void Engine::keep_accepted_cells(StepInFlight& step) {
  const Batch& batch = step.batch;
  for (const SamplingStage::Walk& walk : step.sampling->walks())
    executor_->cell_placement().accept(batch.rows, walk.row(),
                                       batch.sequences[batch.rows[walk.row()].sequence].cell,
                                       chunk_copies_, state_copies_);
}

}  // namespace invar
