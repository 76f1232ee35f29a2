#include "engine/engine.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "base/error.h"
#include "base/timer.h"

namespace invar {

const char* name_of(FinishReason reason) {
  switch (reason) {
    case FinishReason::none:
      return "none";
    case FinishReason::stop:
      return "stop";
    case FinishReason::length:
      return "length";
    case FinishReason::failed:
      return "failed";
  }
  return "?";
}

// A live request: what it asked, its tokens so far, what its next sample depends on.
namespace {

constexpr const char* kNotFinite = "a key, a value or a logit was not finite";
constexpr const char* kHiddenNotFinite = "a hidden state of the text was not finite";
constexpr const char* kGrammarTooLarge = "the grammar has too many states along the answer";

}  // namespace

struct Engine::State {
  Request request;
  std::vector<int32_t> tokens;  // the prompt and the answer so far
  TokenHistory history;         // for penalties and constraints: a function of the tokens
  LogitsHash hash;
  Constraint::State constraint_state = 0;
  ConstraintTally constraint_tally;
  std::vector<uint64_t> allowed;  // by the constraint, for the token that is sampled next
  const char* constraint_error = nullptr;
  bool begun = false;  // a step has computed some of it
  int32_t prompt_logprobs_done =
      1;  // positions whose log-probability was given: after a preemption, not again

  // Room for the answer, which only those take that no longer wait.
  void reserve(int64_t max_model_len) {
    tokens.reserve(static_cast<size_t>(
        std::min(max_model_len, int64_t{prompt_size()} + request.params.max_tokens)));
  }
  std::vector<float> pool;       // of a pooled request: the sum of its hidden states
  int32_t pooled_positions = 0;  // that stand in it: after a preemption, not again

  int32_t prompt_size() const { return static_cast<int32_t>(request.prompt.size()); }
  int32_t answer_size() const { return static_cast<int32_t>(tokens.size()) - prompt_size(); }
};

// What each thread of the team needs to turn a row of logits into a token.
struct Engine::PerThread {
  explicit PerThread(const Kernels& kernels) : logprobs(kernels) {}

  Sampler sampler;
  LogprobReader logprobs;
  PositionHasher hasher;
};

Engine::Engine(Model& model, const EngineOptions& options, ThreadPool* threads)
    : model_(model), pool_of_threads_(threads ? *threads : model.pool()), options_(options) {
  SchedulerOptions& s = options_.scheduler;
  const int longest = model.spec().max_positions;
  if (options_.block_size != 32 && options_.block_size != 64 && options_.block_size != 128)
    fail_usage("expected a block size of 32, 64 or 128 slots, found {}", options_.block_size);
  if (s.max_num_seqs < 1)
    fail_usage("expected max-num-seqs of 1 or more, found {}", s.max_num_seqs);
  if (s.max_num_batched_tokens < s.max_num_seqs)
    fail_usage("expected max-num-batched-tokens of at least max-num-seqs ({}), found {}",
               s.max_num_seqs, s.max_num_batched_tokens);
  if (s.max_model_len < 0 || s.max_model_len > longest)
    fail_usage("expected a max-model-len of at most {}, the model's last position, found {}",
               longest, s.max_model_len);
  for (int i = 0; i < pool_of_threads_.size(); ++i)
    per_thread_.push_back(std::make_unique<PerThread>(model.host_kernels()));

  if (s.max_model_len == 0) s.max_model_len = longest;
  settle_step_rows(threads);
  const int blocks = sized_blocks();
  settle_context(blocks);
  pool_ = std::make_unique<BlockPool>(blocks, options_.block_size);
  if (options_.prefix_caching) cache_ = std::make_unique<PrefixCache>(*pool_);
  scheduler_ = make_scheduler(s, *pool_, cache_.get());
  runner_ = std::make_unique<ModelRunner>(model, limits(blocks), threads);
  if (!model.device().is_host())
    device_sampler_ = std::make_unique<DeviceSampler>(runner_->decoder().kernels.sample,
                                                      runner_->decoder().execution,
                                                      limits(blocks).max_logit_rows);
  io_.take_logits = [this](int64_t first, std::span<const float> logits) { sample(first, logits); };
}

Engine::~Engine() = default;

// Everybody who decodes gets a row in every step, and prompts go on.
int32_t Engine::budget() const {
  return std::max(options_.step_rows, scheduler_->num_running() + kPromptRows);
}

void Engine::add(Request request) {
  const int64_t size = std::ssize(request.prompt);
  if (states_.contains(request.id)) fail_usage("request id {} is in use", request.id);
  if (size == 0) fail_usage("expected a prompt of at least one token, found none");
  if (request.pooled && size > max_model_len())
    fail_usage("the text has {} tokens; the context holds {} (max-model-len)", size,
               max_model_len());
  if (!request.pooled && size >= max_model_len())
    fail_usage(
        "the prompt has {} tokens; at most {} fit with one token of answer (max-model-len {})",
        size, max_model_len() - 1, max_model_len());
  if (!request.pooled && request.params.max_tokens > max_model_len() - size)
    fail_usage(
        "the prompt has {} tokens and max_tokens is {}: together they exceed the context of {} "
        "(max-model-len); at most {} tokens of answer fit",
        size, request.params.max_tokens, max_model_len(), max_model_len() - size);
  for (const int32_t token : request.prompt)
    if (token < 0 || token >= model_.spec().vocab)
      fail_usage("expected prompt tokens from 0 to {}, found {}", model_.spec().vocab - 1, token);
  if (request.pooled && !options_.embeddings)
    fail_usage("embeddings were not enabled when the engine started");
  if (request.params.prompt_logprobs && !options_.prompt_logprobs)
    fail_usage("prompt log-probabilities were not enabled when the engine started");
  request.params = checked(std::move(request.params), model_.spec().vocab);

  auto state = std::make_unique<State>();
  state->tokens = request.prompt;
  if (request.params.has_penalties()) state->history = TokenHistory(request.prompt);
  state->request = std::move(request);
  if (state->request.pooled) state->pool.assign(model_.spec().hidden, 0.0F);
  // Whoever wants something of every position computes every row.
  const bool shares = !state->request.params.prompt_logprobs && !state->request.pooled;
  scheduler_->add({.id = state->request.id,
                   .tokens = static_cast<int32_t>(size),
                   .prefix = shares ? &state->tokens : nullptr,
                   .cache_salt = state->request.cache_salt,
                   .priority = state->request.priority});
  states_.emplace(state->request.id, std::move(state));
}

void Engine::abort(int64_t id) {
  if (in_step_) {  // from a sink: the step still uses the request
    aborted_.push_back(id);
    return;
  }
  scheduler_->remove(id);
  states_.erase(id);
}

bool Engine::step(OutputSink& sink) {
  scheduler_->plan(budget(), plan_);
  if (plan_.entries.empty()) return false;
  in_step_ = true;
  for (const int64_t id : plan_.admitted) {
    states_.at(id)->reserve(max_model_len());
    sink.on_start(id);
  }
  in_step_ = false;
  build_batch();
  if (io_.trace) begin_trace();
  io_.keep_logits = samples_on_device();
  if (!io_.keep_logits) prepare_constraints();
  sampled_.resize(wanted_.size());
  runner_->run(batch_, io_);
  if (io_.keep_logits) sample_on_device();
  in_step_ = true;
  commit_and_emit(sink);
  in_step_ = false;
  for (const int64_t id : aborted_) abort(id);
  aborted_.clear();
  return true;
}

// Rows of every planned sequence, and which of them need logits.
void Engine::build_batch() {
  batch_.rows.clear();
  batch_.logit_rows.clear();
  batch_.aux_layers.clear();
  batch_.sequences.resize(plan_.entries.size());
  wanted_.clear();
  for (size_t i = 0; i < plan_.entries.size(); ++i) {
    const StepEntry& entry = plan_.entries[i];
    State& state = *states_.at(entry.id);
    const bool pooled = state.request.pooled;
    const auto blocks = scheduler_->blocks(entry.sequence);
    batch_.sequences[i].blocks.assign(blocks.begin(), blocks.end());
    if (pooled) batch_.aux_layers = {model_.spec().layers - 1};
    for (int32_t r = 0; r < entry.rows; ++r) {
      const int32_t position = entry.start + r;
      const bool samples = entry.samples && r == entry.rows - 1 && !pooled;
      const bool scores = state.request.params.prompt_logprobs &&
                          position + 1 >= state.prompt_logprobs_done &&
                          position + 1 < state.prompt_size();
      if (samples || scores) {
        batch_.logit_rows.push_back(static_cast<int32_t>(batch_.rows.size()));
        wanted_.push_back({&state, position + 1, samples});
      }
      batch_.rows.push_back({state.tokens[position], position, static_cast<int32_t>(i)});
    }
  }
}

void Engine::begin_trace() {
  std::vector<TracedRow> rows;
  for (const BatchRow& row : batch_.rows)
    rows.push_back({plan_.entries[row.sequence].id, row.position, row.token});
  io_.trace->begin_step(rows);
}

// Before the threads, which share the constraints.
void Engine::prepare_constraints() {
  for (const Wanted& want : wanted_) {
    State& state = *want.state;
    Constraint* constraint = state.request.constraint.get();
    if (!constraint || !want.samples || state.constraint_error) continue;
    try {
      state.constraint_tally.add(*constraint, state.constraint_state);
      const auto allowed = constraint->allowed(state.constraint_state);
      state.allowed.assign((model_.spec().vocab + 63) / 64, 0);
      std::copy_n(allowed.begin(), std::min(allowed.size(), state.allowed.size()),
                  state.allowed.begin());
    } catch (const Error&) {
      state.constraint_error = kGrammarTooLarge;
      continue;
    }
    // A stop token ends the answer where it may end, and nowhere else.
    for (const int32_t token : state.request.params.stop_token_ids) {
      const uint64_t bit = uint64_t{1} << (token % 64);
      uint64_t& word = state.allowed[token / 64];
      word = constraint->accepts(state.constraint_state) ? word | bit : word & ~bit;
    }
  }
}

// What a row samples, but for the logits.
SampleInput Engine::input_of(const Wanted& want) const {
  const State& state = *want.state;
  return {.params = &state.request.params,
          .position = want.position,
          .choice = state.request.choice,
          .generated = state.answer_size(),
          .history = &state.history,
          .answer = std::span(state.tokens).subspan(state.request.prompt.size()),
          .allowed = state.allowed};
}

// Whether nobody but the sampler wants the step's logits and it can sample where they are.
bool Engine::samples_on_device() {
  inputs_.clear();
  if (!device_sampler_ || !batch_.aux_layers.empty()) return false;
  for (const Wanted& want : wanted_) {
    const Request& request = want.state->request;
    if (!want.samples || request.hash_logits || request.params.logprobs || request.constraint)
      return false;
    inputs_.push_back(input_of(want));
    if (!DeviceSampler::can(inputs_.back())) return false;
  }
  return true;
}

void Engine::sample_on_device() {
  const auto sampled = device_sampler_->sample(io_.device_logits, model_.spec().vocab, inputs_);
  sampled_.clear();
  for (const Sampled& d : sampled) sampled_.push_back({.token = d.token, .error = d.error});
}

// Wanted rows from `first` on, as many as there are logits of. Every row by one thread; rows do not
// touch each other.
void Engine::sample(int64_t first, std::span<const float> logits) {
  const Timer timer;
  const size_t vocab = static_cast<size_t>(model_.spec().vocab), count = logits.size() / vocab;
  pool_of_threads_.run([&](Part part) {
    for (size_t row = part.index; row < count; row += part.count)
      sample_row(static_cast<size_t>(first) + row, logits.subspan(row * vocab, vocab),
                 *per_thread_[part.index]);
  });
  if (io_.times) io_.times->add("sample", timer.seconds());
}

void Engine::sample_row(size_t row, std::span<const float> logits, PerThread& thread) {
  const Wanted& want = wanted_[row];
  const State& state = *want.state;
  const SamplingParams& params = state.request.params;
  RowResult& result = sampled_[row];
  result = RowResult{};
  if (!want.samples) {
    result.token = state.tokens[want.position];
  } else {
    SampleInput input = input_of(want);
    input.logits = logits;
    const Sampled sampled = thread.sampler.sample(input);
    result.error = state.constraint_error ? state.constraint_error : sampled.error;
    result.token = sampled.token;
    if (state.request.hash_logits) result.digest = thread.hasher(logits);
  }
  const std::optional<int32_t> top = want.samples ? params.logprobs : params.prompt_logprobs;
  if (top && !result.error && !thread.logprobs.read(logits, result.token, *top, result.logprobs))
    result.error = sampling::kNotANumber;
}

void Engine::commit_and_emit(OutputSink& sink) {
  results_.assign(plan_.entries.size(), StepResult{});
  stats_ = {.rows = static_cast<int>(batch_.rows.size()), .work = work_of(plan_)};
  size_t next = 0;  // of wanted_
  for (size_t i = 0, row = 0; i < plan_.entries.size(); ++i) {
    const StepEntry& entry = plan_.entries[i];
    State& state = *states_.at(entry.id);
    const auto non_finite = io_.non_finite.subspan(row, entry.rows);
    const size_t first_row = std::exchange(row, row + entry.rows);
    const bool failed = std::find(non_finite.begin(), non_finite.end(), true) != non_finite.end();
    for (; next < wanted_.size() && wanted_[next].state == &state; ++next) {
      if (failed) continue;
      if (wanted_[next].samples) {
        results_[i] = take_token(state, sampled_[next], sink);
        ++stats_.samples;
      } else {
        state.prompt_logprobs_done = wanted_[next].position + 1;
        sink.on_prompt({state.request.id, wanted_[next].position, sampled_[next].logprobs});
      }
    }
    if (failed)
      results_[i] = take_token(state, RowResult{.error = kNotFinite}, sink);
    else if (state.request.pooled)
      results_[i] = pool_rows(state, entry, first_row, sink);
  }
  scheduler_->commit(plan_, results_);
  for (const StepEntry& entry : plan_.entries) {
    if (std::find(plan_.admitted.begin(), plan_.admitted.end(), entry.id) == plan_.admitted.end())
      continue;
    State& state = *states_.at(entry.id);
    if (std::exchange(state.begun, true)) continue;  // it was preempted: counted once
    stats_.cached += entry.start;
    stats_.begun += state.prompt_size();
  }
  for (size_t i = 0; i < results_.size(); ++i)
    if (results_[i].finished) states_.erase(plan_.entries[i].id);
  stats_.running = scheduler_->num_running();
  stats_.waiting = scheduler_->num_waiting();
  stats_.preempted = static_cast<int>(plan_.preempted.size());
  stats_.free_blocks = pool_->free_blocks();
}

StepResult Engine::take_token(State& state, const RowResult& sampled, OutputSink& sink) {
  TokenOutput output{
      .request = state.request.id, .token = sampled.token, .index = state.answer_size()};
  if (sampled.error) {
    output.finish = FinishReason::failed;
    output.error = sampled.error;
  } else {
    state.tokens.push_back(sampled.token);
    follow_constraint(state, sampled.token);
    if (state.request.params.has_penalties()) state.history.push(sampled.token);
    if (state.request.hash_logits) {
      state.hash.add(sampled.digest);
      output.logits_hash = state.hash.value();
    }
    if (state.request.params.logprobs) output.logprobs = sampled.logprobs;
    output.finish = finish_reason(state, sampled.token);
  }
  sink.on_token(output);
  return {.new_tokens = sampled.error ? 0 : 1, .finished = output.finish != FinishReason::none};
}

// Adds the hidden states of an entry, whose rows stand from `first_row` on in the batch.
StepResult Engine::pool_rows(State& state, const StepEntry& entry, size_t first_row,
                             OutputSink& sink) {
  const size_t width = state.pool.size();
  for (int32_t r = std::max(0, state.pooled_positions - entry.start); r < entry.rows; ++r) {
    const float* hidden = io_.aux_hidden.data() + (first_row + static_cast<size_t>(r)) * width;
    for (size_t d = 0; d < width; ++d) state.pool[d] += hidden[d];
    state.pooled_positions = entry.start + r + 1;
  }
  if (!entry.samples) return {};
  bool finite = true;
  for (float& value : state.pool) {
    value /= static_cast<float>(state.prompt_size());
    finite &= std::isfinite(value);
  }
  if (!finite) return take_token(state, RowResult{.error = kHiddenNotFinite}, sink);
  sink.on_pooled({state.request.id, std::move(state.pool)});
  return {.finished = true};
}

void Engine::follow_constraint(State& state, int32_t token) {
  Constraint* constraint = state.request.constraint.get();
  if (!constraint || is_stop(state.request.params, token)) return;
  try {
    state.constraint_state = constraint->next(state.constraint_state, token);
  } catch (const Error&) {
    state.constraint_error = kGrammarTooLarge;  // what is sampled next ends the answer
    return;
  }
  CHECK(state.constraint_state != Constraint::kDead, "only allowed tokens are sampled");
}

FinishReason Engine::finish_reason(const State& state, int32_t token) const {
  const SamplingParams& params = state.request.params;
  if (is_stop(params, token)) return FinishReason::stop;
  const Constraint* constraint = state.request.constraint.get();
  if (constraint && !constraint->goes_on(state.constraint_state)) return FinishReason::stop;
  return state.answer_size() >= params.max_tokens ? FinishReason::length : FinishReason::none;
}

void Engine::expect_no_work() const {
  if (has_work())
    fail_usage("expected no live request while weights change, found {}", states_.size());
}

void Engine::take_weights(const TensorSource& source) {
  expect_no_work();
  clear_prefix_cache();
  model_.reload(source);
}

Digest Engine::take_checkpoint(const std::string& directory) {
  expect_no_work();
  clear_prefix_cache();
  return model_.take(directory);
}

void Engine::clear_prefix_cache() {
  if (cache_) cache_->clear();
}

std::string Engine::check_integrity() const {
  return scheduler_->check_integrity();
}

}  // namespace invar
