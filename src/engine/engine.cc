#include "engine/engine.h"

#include <algorithm>

#include "base/error.h"

namespace invar {

namespace {

// Rows of a step are counted in 32 bits, those of drafts with them.
constexpr int kMostSequences = 1 << 20;

// Whether this model's requests may have adapters, or one sentence about why not.
void expect_adapters(Model& model, const AdapterLimits& limits, Proposer* proposer) {
  if (limits.most > AdapterLoad::kMostSlots || limits.most_rank < 1 ||
      limits.most_rank > kMostAdapterRank)
    fail_usage("expected up to {} adapters of rank 1 to {}, found {} of up to {}",
               AdapterLoad::kMostSlots, kMostAdapterRank, limits.most, limits.most_rank);
  if (model.arithmetic().is_baseline || model.arithmetic().chain > 0)
    fail_usage("adapters are not defined in the arithmetic {}; use portable, hopper or pair",
               model.options().arithmetic);
  if (proposer && proposer->layer_sharer())
    fail_usage(
        "a drafter that runs the model's first layers does not go with adapters; use another "
        "method");
}

}  // namespace

Engine::Engine(Model& model, const EngineOptions& options, ThreadPool* threads,
               std::unique_ptr<Proposer> proposer)
    : model_(model),
      pool_of_threads_(threads ? *threads : model.pool()),
      options_(options),
      proposer_(std::move(proposer)),
      adapters_(options.adapters),
      has_states_(has_states(model.spec())) {
  SchedulerOptions& s = options_.scheduler;
  const int longest = model.spec().max_positions;
  if (options_.block_size != 32 && options_.block_size != 64 && options_.block_size != 128)
    fail_usage("expected a block size of 32, 64 or 128 slots, found {}", options_.block_size);
  if (s.max_num_seqs < 1 || s.max_num_seqs > kMostSequences)
    fail_usage("expected max-num-seqs of 1 to {}, found {}", kMostSequences, s.max_num_seqs);
  if (s.max_num_batched_tokens < s.max_num_seqs || s.max_num_batched_tokens > kMostRows)
    fail_usage(
        "expected max-num-batched-tokens of at least max-num-seqs ({}) and at most {}, found {}",
        s.max_num_seqs, kMostRows, s.max_num_batched_tokens);
  if (s.max_model_len < 0 || s.max_model_len > longest)
    fail_usage("expected a max-model-len of at most {}, the model's last position, found {}",
               longest, s.max_model_len);
  if (sees_ahead(model.spec())) settle_whole_texts();
  if (s.max_model_len == 0) s.max_model_len = longest;
  if (has_states_ && proposer_ && proposer_->layer_sharer())
    fail_usage(
        "a drafter that runs the model's first layers does not go with layers that have states; "
        "use another method");
  if (options_.adapters.most > 0) expect_adapters(model, options_.adapters, proposer_.get());
  s.max_plans_in_flight = plans_in_flight();
  s.has_states = has_states_;
  s.splits_decodes = is_pipeline();
  settle_step_rows(threads);
  const int blocks = sized_blocks();
  settle_context(blocks);
  pool_ = std::make_unique<BlockPool>(blocks, options_.block_size);
  if (options_.prefix_caching) cache_ = make_cache(limits(blocks));
  scheduler_ = make_scheduler(s, *pool_, cache_.get());
  executor_ = std::make_unique<Executor>(model, limits(blocks), threads);
  make_steps(limits(blocks));
  if (LayerSharer* sharer = proposer_ ? proposer_->layer_sharer() : nullptr) {
    sharer->share(*executor_);
    shared_.emplace(*sharer, model_.spec().hidden);
  }
}

Engine::~Engine() {
  if (in_flight() == 0) return;
  wait_for_device();
  try {  // stages before home wait for it to take what they leave
    for (; committed_ < begun_ && nth(committed_).is_told; ++committed_) finish(nth(committed_));
  } catch (const Error&) {  // of workers that are gone
  }
}

// Snapshots lie behind the states of sequences and of draft paths.
std::unique_ptr<PrefixCache> Engine::make_cache(const RunnerLimits& limits) const {
  if (!has_states_) return std::make_unique<PrefixCache>(*pool_);
  return std::make_unique<PrefixCache>(
      *pool_, SnapshotCells{limits.cells + limits.draft_cells, limits.snapshots});
}

// Several ranks run ahead only where it was asked for.
bool Engine::may_run_ahead() const {
  return is_async() && !proposer_ && model_.stages() == 1 &&
         (model_.ranks() == 1 ||
          (options_.async_scheduling.value_or(false) && model_.workers().shares_tokens()));
}

bool Engine::is_pipeline() const {
  return model_.workers().runs_ahead() && !proposer_ && options_.async_scheduling.value_or(true);
}

int Engine::plans_in_flight() const {
  constexpr int kMost = 4;
  if (is_pipeline()) return std::min(kMost, model_.stages());
  return may_run_ahead() ? DeviceClock::kInFlight : 1;
}

// Each has a sampler of its own. Tokens stay on the device where that pays, and where the next step
// looks for them: on a host that runs ahead, too.
void Engine::make_steps(const RunnerLimits& limits) {
  const Decoder& decoder = executor_->decoder();
  const bool on_device = !model_.device().is_host() || may_run_ahead();
  if (!model_.device().is_host()) clock_.emplace(decoder.execution);
  steps_ = std::vector<StepInFlight>(std::max(2, plans_in_flight()));
  for (StepInFlight& step : steps_) {
    std::unique_ptr<DeviceSampler> sampler;
    if (on_device)
      sampler = std::make_unique<DeviceSampler>(decoder.kernels.sample, decoder.execution,
                                                limits.max_logit_rows, decoder.kernels.hash_logits);
    step.sampling = std::make_unique<SamplingStage>(
        model_.host_kernels(), pool_of_threads_, model_.spec().vocab, std::move(sampler),
        limits.max_logit_rows, proposer_ && proposer_->argmax_reader(), rejects());
    step.io.take_logits = [&step](int64_t first, std::span<const float> logits) {
      step.sampling->take_logits(first, logits, step.io.non_finite);
    };
  }
}

namespace {

void check_tokens(const Request& request, int64_t vocab) {
  for (const auto* tokens : {&request.prompt, &request.begun})
    for (const int32_t token : *tokens)
      if (token < 0 || token >= vocab)
        fail_usage("expected prompt tokens from 0 to {}, found {}", vocab - 1, token);
  const int64_t begun = std::ssize(request.begun);
  if (begun > 0 && begun >= request.params.max_tokens)
    fail_usage("expected fewer tokens that stand than max_tokens, {}, found {}",
               request.params.max_tokens, begun);
}

}  // namespace

void Engine::add(Request request) {
  const int64_t size = std::ssize(request.prompt);
  if (model_.asleep().any()) fail_usage("expected an engine that is awake, found one that sleeps");
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
  check_tokens(request, model_.spec().vocab);
  if (request.adapter) adapters_.expect_possible(*request.adapter);
  if (!request.pooled && model_.config().head != Head::tokens)
    fail_usage("the model has no head that predicts tokens: it makes {}, and no answers",
               model_.config().head == Head::none ? "embeddings" : "scores");
  if (request.pooled && !options_.embeddings)
    fail_usage("embeddings were not enabled when the engine started");
  if (request.params.prompt_logprobs && !options_.prompt_logprobs)
    fail_usage("prompt log-probabilities were not enabled when the engine started");
  if (request.routed_experts && routed_columns(model_.spec()) == 0)
    fail_usage("the {} model has no experts whose choice could be kept", model_.spec().family);
  if (request.routed_experts && model_.workers().home().place().stages > 1)
    fail_usage("routed experts are kept where all layers are of one stage, and there are {}",
               model_.workers().home().place().stages);
  constexpr int64_t kMostRouted = int64_t{1} << 23;
  const int64_t routed = (size + request.params.max_tokens) * routed_columns(model_.spec());
  if (request.routed_experts && routed > kMostRouted)
    fail_usage("expected at most {} routed experts of an answer, found up to {}", kMostRouted,
               routed);
  check_params(request, model_.spec().vocab);

  auto state = std::make_shared<RequestState>(std::move(request), model_.spec().vocab);
  if (state->request.pooled)
    state->pool = {model_.spec().hidden, state->prompt_size(), model_.config().pooling.kind};
  live_by_tokens_ += state->samples_by_tokens() ? 1 : 0;
  const auto added = states_.emplace(state->request.id, std::move(state)).first;
  if (!schedule(*added->second)) adapters_.waiting.push_back(added->first);
}

namespace {

// Only what was computed with the same adapter is shared.
std::string salt_of(const Request& request) {
  const std::string& own = request.cache_salt.get();
  if (request.adapter) return "+" + to_hex(request.adapter->digest) + own;
  return own.empty() ? own : "-" + own;
}

}  // namespace

bool Engine::schedule(RequestState& state) {
  if (state.request.adapter) {
    const auto slot = adapters_.take(*state.request.adapter);
    if (!slot) return false;
    state.adapter = *slot;
  }
  // A request that wants something of every position has every row computed.
  const bool shares = !state.request.params.prompt_logprobs && !state.request.pooled &&
                      !state.request.routed_experts;
  const bool decodes = !state.request.pooled;
  const bool runs_ahead = may_run_ahead() && decodes && !state.samples_by_tokens();
  scheduler_->add(
      {.id = state.request.id,
       .tokens = static_cast<int32_t>(state.tokens.size()),
       .drafts = proposer_ && decodes ? proposer_->most_nodes() : 0,
       .ahead_until = runs_ahead ? state.prompt_size() + state.request.params.max_tokens : 0,
       .prefix = shares ? &state.tokens : nullptr,
       .cache_salt = salt_of(state.request),
       .priority = state.request.priority,
       .owner = state.request.owner});
  return true;
}

void Engine::abort(int64_t id) {
  if (in_emission_) silenced_.push_back(id);
  scheduler_->remove(id);
  forget(id);
}

// Steps in flight see that it is over.
void Engine::forget(int64_t id) {
  const auto found = states_.find(id);
  if (found == states_.end()) return;
  found->second->is_over = true;
  live_by_tokens_ -= found->second->samples_by_tokens() ? 1 : 0;
  if (found->second->adapter >= 0)
    adapters_.give_back(found->second->adapter, found->second->has_failed);
  else if (found->second->request.adapter)
    std::erase(adapters_.waiting, id);
  forget_late(id);
  states_.erase(found);
  if (proposer_) proposer_->forget(id);
}

void Engine::expect_no_work() {
  finish_discarded();
  if (has_work())
    fail_usage("expected no live request while weights change or sleep, found {}", states_.size());
}

void Engine::take_weights(const TensorSource& source) {
  expect_no_work();
  clear_prefix_cache();
  model_.reload(source);
}

void Engine::take_checkpoint(const std::string& directory) {
  expect_no_work();
  clear_prefix_cache();
  model_.take(directory);
}

void Engine::sleep(const Sleep& what) {
  expect_no_work();
  clear_prefix_cache();
  model_.sleep(what);
}

void Engine::set_trace(Trace* trace) {
  if (trace && model_.workers().here().front()->place().stage > 0)
    fail_usage("a trace shows every stage, and with the executor mp some are in other processes");
  trace_ = trace;
}

void Engine::clear_prefix_cache() {
  if (cache_) cache_->clear();
}

std::string Engine::check_integrity() const {
  return scheduler_->check_integrity();
}

}  // namespace invar
