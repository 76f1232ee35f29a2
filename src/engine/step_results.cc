// The end of a step: what becomes of its samples, and what the sink is told.
#include <algorithm>
#include <cmath>
#include <utility>

#include "base/check.h"
#include "engine/engine.h"
#include "engine/layer_windows.h"
#include "engine/output_norm.h"

namespace invar {

namespace {

constexpr const char* kHiddenNotFinite = "a hidden state of the text was not finite";

bool has_failed(const StepInFlight& step, size_t entry) {
  const auto rows =
      step.io.non_finite.subspan(step.first_row[entry], step.plan.entries[entry].rows);
  return std::ranges::find(rows, true) != rows.end();
}

}  // namespace

// Results for requests that are over go nowhere.
void Engine::commit(StepInFlight& step) {
  results_.assign(step.plan.entries.size(), StepResult{});
  WindowRoom room;
  stats_ = {.rows = static_cast<int>(step.batch.rows.size()),
            .samples = std::exchange(late_samples_, 0),
            .sequences = static_cast<int>(step.plan.entries.size()),
            .work = work_of(step.plan, layer_windows(model_.spec(), room))};
  take_scores(step);
  if (step.batch.wants_experts) take_experts(step);
  take_walks(step);
  take_others(step);
  scheduler_->commit(step.plan, results_);
  ++committed_;
  count_step(step);
  for (size_t i = 0; i < results_.size(); ++i)
    if (results_[i].finished) forget(step.plan.entries[i].id);
  show_hidden(step);
  step.states.clear();
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
  outbox_.clear();
}

// Log-probabilities of prompts.
void Engine::take_scores(StepInFlight& step) {
  for (SamplingStage::Score& score : step.sampling->scores()) {
    const size_t entry = step.batch.rows[step.batch.logit_rows[score.logits]].sequence;
    if (score.state->is_over || has_failed(step, entry)) continue;
    score.state->prompt_logprobs_done = score.position + 1;
    outbox_.prompts.push_back({score.state->request.id, score.position, std::move(score.logprobs)});
  }
}

void Engine::take_walks(StepInFlight& step) {
  for (SamplingStage::Walk& walk : step.sampling->walks()) {
    if (walk.state->is_over) continue;
    CHECK(walk.is_over && walk.outputs.empty() == walk.drawn.has_value(), "a walk without its end");
    if (!walk.drawn) {
      take_walk(step, walk);
      continue;
    }
    const size_t entry = step.batch.rows[walk.root_row].sequence;
    results_[entry].is_late = true;
    late_.push_back({step.states[entry], *std::move(walk.drawn)});
  }
}

void Engine::take_walk(const StepInFlight& step, SamplingStage::Walk& walk) {
  StepResult& result = results_[step.batch.rows[walk.root_row].sequence];
  result.new_tokens =
      static_cast<int32_t>(std::ranges::count(walk.outputs, nullptr, &TokenOutput::error));
  result.finished = walk.outputs.back().finish != FinishReason::none;
  stats_.samples += result.new_tokens;
  count_drafts(walk, result.new_tokens - 1);
  if (result.finished && walk.state->request.routed_experts)
    walk.outputs.back().routed_experts = std::move(walk.state->routed);
  for (TokenOutput& output : walk.outputs) outbox_.tokens.push_back(std::move(output));
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
  if (!walk.argmax.empty()) proposer_->argmax_reader()->observe_argmax(id, walk.argmax);
  proposer_->observe(id, nodes, accepted);
}

// Takes the rows that are not sampled from: chunks that have failed, and pooled requests.
void Engine::take_others(StepInFlight& step) {
  for (size_t i = 0; i < step.plan.entries.size(); ++i) {
    const StepEntry& entry = step.plan.entries[i];
    RequestState& state = *step.states[i];
    if (state.is_over) continue;
    if (entry.samples && !state.request.pooled) continue;  // its walk said so
    if (has_failed(step, i)) {
      outbox_.tokens.push_back(state.fail(SamplingStage::kNotFinite));
      results_[i].finished = true;
    } else if (state.request.pooled) {
      results_[i].finished = pool_rows(step, i);
    }
  }
}

// Takes the hidden states of an entry's rows; whether the request is over.
bool Engine::pool_rows(const StepInFlight& step, size_t index) {
  const StepEntry& entry = step.plan.entries[index];
  const Batch& batch = step.batch;
  RequestState& state = *step.states[index];
  const auto width = static_cast<size_t>(model_.spec().hidden);
  const size_t row = (batch.aux_layers.size() - 1) * batch.rows.size() + step.first_row[index];
  const float* hidden = step.io.aux_hidden.data() + row * width;
  size_t stride = width;
  if (model_.config().pooling.final_norm) {
    stride = static_cast<size_t>(norm_output(
        model_, OutputNorm::model, {hidden, static_cast<size_t>(entry.rows) * width}, normed_));
    hidden = normed_.data();
  }
  for (int32_t r = std::max(0, state.pool.positions() - entry.start); r < entry.rows; ++r)
    state.pool.take({hidden + static_cast<size_t>(r) * stride, width});
  if (!entry.samples) return false;
  auto numbers = state.pool.finish();
  if (numbers) numbers = behind_modules(*std::move(numbers), model_.config().pooling);
  if (numbers)
    outbox_.pooled.push_back({state.request.id, std::move(*numbers)});
  else
    outbox_.tokens.push_back(state.fail(kHiddenNotFinite));
  return true;
}

// The planned ones, and of drafts those that the walk came by.
std::vector<std::vector<int32_t>> Engine::kept_rows(const StepInFlight& step) const {
  std::vector<std::vector<int32_t>> rows(step.plan.entries.size());
  for (size_t i = 0; i < rows.size(); ++i)
    for (int32_t r = 0; r < step.plan.entries[i].rows; ++r)
      rows[i].push_back(static_cast<int32_t>(step.first_row[i]) + r);
  for (const SamplingStage::Walk& walk : step.sampling->walks()) {
    std::vector<int32_t>& kept = rows[step.batch.rows[walk.root_row].sequence];
    const auto behind_root = kept.end() - kept.begin();
    for (int32_t node = walk.node; node >= 0; node = (*walk.tree)[node].parent)
      kept.insert(kept.begin() + behind_root, walk.root_row + 1 + node);
  }
  return rows;
}

// Which experts the kept rows went through, of requests that asked.
void Engine::take_experts(const StepInFlight& step) {
  const DecoderSpec& spec = model_.spec();
  const std::vector<std::vector<int32_t>> rows = kept_rows(step);
  const int64_t all = std::ssize(step.batch.rows), columns = routed_columns(spec);
  for (size_t i = 0; i < rows.size(); ++i) {
    RequestState& state = *step.states[i];
    if (state.is_over || !state.request.routed_experts) continue;
    int64_t position = step.plan.entries[i].start;
    for (const int32_t row : rows[i]) {
      if (position++ < std::ssize(state.routed) / columns) continue;
      int64_t before = 0;  // columns of the layers before
      for (const LayerSpec& layer : spec.layer_specs) {
        const int64_t chosen = layer.chosen_experts();
        const int32_t* ids = step.io.experts.data() + before * all + row * chosen;
        state.routed.insert(state.routed.end(), ids, ids + chosen);
        before += chosen;
      }
    }
  }
}

// To a proposer that drafts from them, the hidden states of what was kept, but of what has ended.
void Engine::show_hidden(StepInFlight& step) {
  const std::span<const int32_t> layers = aux_layers();
  if (layers.empty()) return;
  const std::vector<std::vector<int32_t>> rows = kept_rows(step);
  std::vector<KeptRows> all;
  for (size_t i = 0; i < rows.size(); ++i) {
    const RequestState& state = *step.states[i];
    if (state.is_over || state.request.pooled || results_[i].is_late) continue;
    all.push_back({.id = state.request.id,
                   .tokens = state.tokens,
                   .position = step.plan.entries[i].start,
                   .rows = rows[i]});
  }
  const size_t values = layers.size() * step.batch.rows.size() * model_.spec().hidden;
  hidden_reader()->take_hidden(all, step.io.aux_hidden.first(values), std::ssize(step.batch.rows));
}

void Engine::count_step(const StepInFlight& step) {
  const StepPlan& plan = step.plan;
  for (size_t i = 0; i < plan.entries.size(); ++i) {
    const StepEntry& entry = plan.entries[i];
    RequestState& state = *step.states[i];
    if (state.is_over) stats_.discarded += entry.rows;
    if (std::ranges::find(plan.admitted, entry.id) == plan.admitted.end()) continue;
    if (std::exchange(state.begun, true)) continue;  // it was preempted: counted once
    stats_.cached += entry.start;
    stats_.begun += state.prompt_size();
  }
  stats_.ahead = static_cast<int>(begun_ - step.number) - 1;
  stats_.running = scheduler_->num_running();
  stats_.waiting = scheduler_->num_waiting();
  stats_.preempted = static_cast<int>(plan.preempted.size());
  stats_.free_blocks = pool_->free_blocks();
  if (model_.workers().runs_ahead()) {
    const double before = std::exchange(waited_seconds_, executor_->waited_seconds());
    stats_.device_idle_seconds = waited_seconds_ - before;
  }
  if (!clock_) return;
  stats_.device_idle_seconds = clock_->idle_seconds_before(step.number);
  stats_.device_seconds = clock_->seconds_of(step.number);
}

}  // namespace invar
