// A step of the engine: plan, propose, build the batch, forward, sample, keep, commit and emit.
#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "base/timer.h"
#include "engine/engine.h"

namespace invar {

namespace {

constexpr const char* kHiddenNotFinite = "a hidden state of the text was not finite";

}  // namespace

bool Engine::step(OutputSink& sink) {
  if (!is_begun_ && !begin(sink)) return false;
  finish();
  commit();
  if (options_.async_scheduling.value_or(!model_.device().is_host())) begin(sink);
  emit(sink);
  return true;
}

// Plans the next step and gives it to the device, if that can do all of it. False when there is
// nothing to do.
bool Engine::begin(OutputSink& sink) {
  scheduler_->plan(budget(), plan_);
  if (plan_.entries.empty()) return false;
  is_begun_ = true;
  start_admitted(sink);
  propose();
  build_batch();
  launch();
  return true;
}

// Everybody who decodes gets a row in every step, and prompts go on.
int32_t Engine::budget() const {
  return std::max(options_.step_rows, scheduler_->num_running() + kPromptRows);
}

void Engine::start_admitted(OutputSink& sink) {
  for (const int64_t id : plan_.admitted) {
    states_.at(id)->reserve(max_model_len());
    sink.on_start(id);
  }
}

// Trees for the sequences that the plan gives draft rows, none deeper than its answer may be.
void Engine::propose() {
  tree_of_.assign(plan_.entries.size(), nullptr);
  if (!proposer_) return;
  draft_requests_.clear();
  for (const StepEntry& entry : plan_.entries) {
    if (entry.drafts == 0) continue;
    const RequestState& state = *states_.at(entry.id);
    draft_requests_.push_back({.id = entry.id,
                               .tokens = state.tokens,
                               .prompt_size = state.prompt_size(),
                               .params = &state.request.params,
                               .choice = state.request.choice,
                               .most = entry.drafts,
                               .corpus = state.request.cache_salt,
                               .prediction = state.request.prediction});
  }
  trees_.resize(std::max(trees_.size(), draft_requests_.size()));
  const std::span<DraftTree> trees = std::span(trees_).first(draft_requests_.size());
  for (DraftTree& tree : trees) tree.clear();
  proposer_->propose(draft_requests_, trees);
  for (size_t i = 0, next = 0; i < plan_.entries.size(); ++i) {
    const StepEntry& entry = plan_.entries[i];
    if (entry.drafts == 0) continue;
    const RequestState& state = *states_.at(entry.id);
    DraftTree& tree = trees[next++];
    const std::string wrong = check_tree(tree, model_.spec().vocab);
    CHECK(wrong.empty(), "a proposer's tree is malformed");
    prune(tree, entry.drafts,
          std::min(entry.drafts, state.request.params.max_tokens - state.answer_size() - 1));
    tree_of_[i] = &tree;
  }
}

// Rows of every planned sequence, and which of them need logits.
void Engine::build_batch() {
  batch_.rows.clear();
  batch_.logit_rows.clear();
  const std::span<const int32_t> aux = aux_layers();
  batch_.aux_layers.assign(aux.begin(), aux.end());
  batch_.scratch_blocks.clear();
  batch_.sequences.resize(plan_.entries.size());
  first_row_.clear();
  sampling_->begin();
  for (size_t i = 0; i < plan_.entries.size(); ++i) {
    const auto blocks = scheduler_->blocks(plan_.entries[i].sequence);
    batch_.sequences[i].blocks.assign(blocks.begin(), blocks.end());
    first_row_.push_back(batch_.rows.size());
    add_rows(i);
  }
}

void Engine::add_rows(size_t index) {
  const StepEntry& entry = plan_.entries[index];
  RequestState& state = *states_.at(entry.id);
  for (int32_t position = entry.start; position < entry.start + entry.rows; ++position) {
    if (state.wants_logprob_of(position + 1)) {
      batch_.logit_rows.push_back(static_cast<int32_t>(batch_.rows.size()));
      sampling_->add_score(state, position + 1);
    }
    batch_.rows.push_back({state.tokens[position], position, static_cast<int32_t>(index)});
  }
  if (state.request.pooled) {
    want_last_hidden();
  } else if (entry.samples) {
    const int32_t root = static_cast<int32_t>(batch_.rows.size()) - 1;
    if (tree_of_[index]) add_drafts(*tree_of_[index]);
    for (int32_t row = root; row < std::ssize(batch_.rows); ++row) batch_.logit_rows.push_back(row);
    sampling_->add_walk(state, static_cast<int32_t>(first_row_[index]), root, tree_of_[index]);
  }
}

// The last of aux_layers then.
void Engine::want_last_hidden() {
  const int32_t last = model_.spec().layers - 1;
  if (batch_.aux_layers.empty() || batch_.aux_layers.back() != last)
    batch_.aux_layers.push_back(last);
}

// Below the batch's last row. Without scratch blocks for its side branches the tree is its trunk.
void Engine::add_drafts(DraftTree& tree) {
  tree_rows_.assign(1, batch_.rows.back());
  append_rows(tree, tree_rows_);
  const int32_t used = static_cast<int32_t>(batch_.scratch_blocks.size());
  const int32_t needed = scratch_blocks_needed(tree_rows_, options_.block_size);
  if (used + needed > scratch_blocks_)
    keep_trunk(tree);
  else
    for (int32_t i = used; i < used + needed; ++i)
      batch_.scratch_blocks.push_back(num_blocks() + i);
  append_rows(tree, batch_.rows);
}

void Engine::launch() {
  if (io_.trace) begin_trace();
  step_timer_ = Timer();
  io_.keep_logits = batch_.aux_layers.empty() && sampling_->samples_on_device();
  if (!io_.keep_logits) return;
  executor_->run(batch_, io_);
  sampling_->start_on_device(io_.device_logits);
}

// Of a step whose logits the host reads, everything happens here.
void Engine::finish() {
  if (io_.keep_logits)
    sampling_->finish_on_device(io_.non_finite);
  else
    executor_->run(batch_, io_);
  if (proposer_ && work_of(plan_).prompt_rows == 0)
    proposer_->observe_step(std::ssize(batch_.rows), step_timer_.seconds());
  keep_accepted();
}

void Engine::begin_trace() {
  std::vector<TracedRow> rows;
  for (const BatchRow& row : batch_.rows)
    rows.push_back({plan_.entries[row.sequence].id, row.position, row.token});
  io_.trace->begin_step(rows);
}

// Keys and values of accepted side branches move into their sequences' own blocks, before anybody
// uses the scratch blocks, or those of a sequence that ends, again.
void Engine::keep_accepted() {
  if (batch_.scratch_blocks.empty()) return;
  copies_.clear();
  placement_.build(batch_.rows, batch_.sequences, batch_.scratch_blocks, options_.block_size);
  for (const SamplingStage::Walk& walk : sampling_->walks())
    placement_.accept(batch_.rows, walk.row(),
                      batch_.sequences[batch_.rows[walk.row()].sequence].blocks, copies_);
  if (!copies_.empty()) timed(io_.times, "copy_slots", [&] { executor_->copy_slots(copies_); });
}

void Engine::commit() {
  results_.assign(plan_.entries.size(), StepResult{});
  stats_ = {.rows = static_cast<int>(batch_.rows.size()), .work = work_of(plan_)};
  outbox_.clear();
  take_scores();
  take_walks();
  take_others();
  scheduler_->commit(plan_, results_);
  count_step();
  is_begun_ = false;
  for (const int64_t id : aborted_) forget(id);
  for (size_t i = 0; i < results_.size(); ++i)
    if (results_[i].finished) forget(plan_.entries[i].id);
  aborted_.clear();
  show_hidden();
}

// A sink that aborts a request hears nothing more of it.
void Engine::emit(OutputSink& sink) {
  silenced_.clear();
  in_emission_ = true;
  const auto hears = [&](int64_t id) {
    return std::ranges::find(silenced_, id) == silenced_.end();
  };
  for (const PromptOutput& output : outbox_.prompts)
    if (hears(output.request)) sink.on_prompt(output);
  for (const TokenOutput& output : outbox_.tokens)
    if (hears(output.request)) sink.on_token(output);
  for (const PooledOutput& output : outbox_.pooled)
    if (hears(output.request)) sink.on_pooled(output);
  in_emission_ = false;
}

// Log-probabilities of prompts.
void Engine::take_scores() {
  for (SamplingStage::Score& score : sampling_->scores()) {
    const size_t entry = batch_.rows[batch_.logit_rows[score.logits]].sequence;
    const int64_t id = plan_.entries[entry].id;
    if (has_failed(entry) || is_aborted(id)) continue;
    score.state->prompt_logprobs_done = score.position + 1;
    outbox_.prompts.push_back({id, score.position, std::move(score.logprobs)});
  }
}

void Engine::take_walks() {
  for (SamplingStage::Walk& walk : sampling_->walks()) {
    CHECK(walk.is_over && !walk.outputs.empty(), "a walk without its end");
    StepResult& result = results_[batch_.rows[walk.root_row].sequence];
    result.new_tokens =
        static_cast<int32_t>(std::ranges::count(walk.outputs, nullptr, &TokenOutput::error));
    result.finished = walk.outputs.back().finish != FinishReason::none;
    stats_.samples += result.new_tokens;
    count_drafts(walk, result.new_tokens - 1);
    if (is_aborted(walk.state->request.id)) continue;
    for (TokenOutput& output : walk.outputs) outbox_.tokens.push_back(std::move(output));
  }
}

void Engine::count_drafts(const SamplingStage::Walk& walk, int32_t accepted) {
  if (!walk.tree || walk.tree->empty()) return;
  accepted = std::max(accepted, 0);
  const int32_t nodes = static_cast<int32_t>(walk.tree->size());
  ++stats_.drafts;
  stats_.draft_tokens += nodes;
  stats_.accepted_tokens += accepted;
  if (std::ssize(stats_.accepted_at) < accepted) stats_.accepted_at.resize(accepted);
  for (int32_t level = 0; level < accepted; ++level) ++stats_.accepted_at[level];
  const int64_t id = walk.state->request.id;
  if (!walk.likeliest.empty()) proposer_->observe_likeliest(id, walk.likeliest);
  proposer_->observe(id, nodes, accepted);
}

// Of what does not sample: chunks that have failed, and pooled requests.
void Engine::take_others() {
  for (size_t i = 0; i < plan_.entries.size(); ++i) {
    const StepEntry& entry = plan_.entries[i];
    RequestState& state = *states_.at(entry.id);
    if (entry.samples && !state.request.pooled) continue;  // its walk said so
    if (is_aborted(entry.id)) continue;
    if (has_failed(i)) {
      outbox_.tokens.push_back(state.fail(SamplingStage::kNotFinite));
      results_[i].finished = true;
    } else if (state.request.pooled) {
      results_[i].finished = pool_rows(state, i);
    }
  }
}

bool Engine::has_failed(size_t entry) const {
  const auto rows = io_.non_finite.subspan(first_row_[entry], plan_.entries[entry].rows);
  return std::ranges::find(rows, true) != rows.end();
}

bool Engine::is_aborted(int64_t id) const {
  return std::ranges::find(aborted_, id) != aborted_.end();
}

// Adds the hidden states of an entry's rows; whether the request is over.
bool Engine::pool_rows(RequestState& state, size_t index) {
  const StepEntry& entry = plan_.entries[index];
  const size_t width = state.pool.size();
  for (int32_t r = std::max(0, state.pooled_positions - entry.start); r < entry.rows; ++r) {
    const size_t row = (batch_.aux_layers.size() - 1) * batch_.rows.size() + first_row_[index] +
                       static_cast<size_t>(r);
    const float* hidden = io_.aux_hidden.data() + row * width;
    for (size_t d = 0; d < width; ++d) state.pool[d] += hidden[d];
    state.pooled_positions = entry.start + r + 1;
  }
  if (!entry.samples) return false;
  bool finite = true;
  for (float& value : state.pool) {
    value /= static_cast<float>(state.prompt_size());
    finite &= std::isfinite(value);
  }
  if (finite)
    outbox_.pooled.push_back({state.request.id, std::move(state.pool)});
  else
    outbox_.tokens.push_back(state.fail(kHiddenNotFinite));
  return true;
}

// To a proposer that drafts from them, the hidden states of what was kept, but of what has ended.
void Engine::show_hidden() {
  const std::span<const int32_t> layers = aux_layers();
  if (layers.empty()) return;
  std::vector<std::vector<int32_t>> rows(plan_.entries.size());
  for (size_t i = 0; i < rows.size(); ++i)
    for (int32_t r = 0; r < plan_.entries[i].rows; ++r)
      rows[i].push_back(static_cast<int32_t>(first_row_[i]) + r);
  for (const SamplingStage::Walk& walk : sampling_->walks()) {
    std::vector<int32_t>& kept = rows[batch_.rows[walk.root_row].sequence];
    const auto behind_root = kept.end() - kept.begin();
    for (int32_t node = walk.node; node >= 0; node = (*walk.tree)[node].parent)
      kept.insert(kept.begin() + behind_root, walk.root_row + 1 + node);
  }
  std::vector<KeptRows> all;
  for (size_t i = 0; i < rows.size(); ++i) {
    const auto state = states_.find(plan_.entries[i].id);
    if (state == states_.end() || state->second->request.pooled) continue;
    all.push_back({.id = state->first,
                   .tokens = state->second->tokens,
                   .position = plan_.entries[i].start,
                   .rows = rows[i]});
  }
  const size_t values = layers.size() * batch_.rows.size() * model_.spec().hidden;
  proposer_->take_hidden(all, io_.aux_hidden.first(values), std::ssize(batch_.rows));
}

void Engine::count_step() {
  for (const StepEntry& entry : plan_.entries) {
    if (std::ranges::find(plan_.admitted, entry.id) == plan_.admitted.end()) continue;
    RequestState& state = *states_.at(entry.id);
    if (std::exchange(state.begun, true)) continue;  // it was preempted: counted once
    stats_.cached += entry.start;
    stats_.begun += state.prompt_size();
  }
  stats_.running = scheduler_->num_running();
  stats_.waiting = scheduler_->num_waiting();
  stats_.preempted = static_cast<int>(plan_.preempted.size());
  stats_.free_blocks = pool_->free_blocks();
}

}  // namespace invar
