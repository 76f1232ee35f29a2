#include "engine/sampling_stage.h"

#include <algorithm>
#include <utility>

#include "base/timer.h"
#include "speculative/rejection.h"

namespace invar {

namespace {

// The walk has sampled `token`, of which the sink is told `output`.
void enter(SamplingStage::Walk& walk, TokenOutput output) {
  const bool ends = output.finish != FinishReason::none;
  const int32_t child = ends || !walk.tree ? -1 : child_with(*walk.tree, walk.node, output.token);
  walk.outputs.push_back(std::move(output));
  walk.is_over = child < 0;
  if (child >= 0) walk.node = child;
}

// Ends a walk that has come to a row that is not finite. A row that it has not reached may hold
// what it will.
bool fails_for_numbers(SamplingStage::Walk& walk, std::span<const bool> non_finite) {
  const int32_t from = walk.node < 0 ? walk.first_row : walk.row();
  const auto rows = non_finite.subspan(from, walk.row() + 1 - from);
  if (std::ranges::find(rows, true) == rows.end()) return false;
  enter(walk, walk.state->fail(SamplingStage::kNotFinite));
  return true;
}

}  // namespace

// The tools with which each thread of the team turns a row of logits into a token.
struct SamplingStage::PerThread {
  explicit PerThread(const Kernels& kernels) : logprobs(kernels) {}

  Sampler sampler;
  LogprobReader logprobs;
  PositionHasher hasher;
};

SamplingStage::SamplingStage(const Kernels& host_kernels, ThreadPool& threads, int32_t vocab,
                             std::unique_ptr<DeviceSampler> device_sampler, int32_t device_rows,
                             bool wants_argmax, bool rejects)
    : threads_(threads),
      kernels_(host_kernels),
      vocab_(static_cast<size_t>(vocab)),
      wants_argmax_(wants_argmax),
      rejects_(rejects),
      device_sampler_(std::move(device_sampler)),
      device_rows_(device_rows) {
  for (int i = 0; i < threads.size(); ++i)
    per_thread_.push_back(std::make_unique<PerThread>(host_kernels));
}

SamplingStage::~SamplingStage() = default;

void SamplingStage::begin(int64_t work) {
  work_ = work;
  num_walks_ = 0;
  num_logits_ = 0;
  scores_.clear();
}

void SamplingStage::add_score(RequestState& state, int32_t position) {
  scores_.push_back({.state = &state, .position = position, .logits = num_logits_++});
}

void SamplingStage::add_walk(RequestState& state, int32_t position, int32_t first_row,
                             int32_t root_row, const DraftTree* tree) {
  if (num_walks_ == walks_.size()) walks_.emplace_back();
  Walk& walk = walks_[num_walks_++];
  walk.state = &state;
  walk.first_row = first_row;
  walk.root_row = root_row;
  walk.root_logits = state.sampled_at = num_logits_;
  walk.position = position;
  walk.tree = tree;
  walk.node = -1;
  walk.is_over = false;
  walk.outputs.clear();
  walk.drawn.reset();
  walk.argmax.assign(wants_argmax_ && tree ? 1 + tree->size() : 0, 0);
  num_logits_ += 1 + (tree ? static_cast<int32_t>(tree->size()) : 0);
}

bool SamplingStage::samples_on_device() {
  if (!device_sampler_ || wants_argmax_ || rejects_ || num_logits_ > device_rows_) return false;
  inputs_.resize(static_cast<size_t>(num_logits_));
  for (const Score& score : scores_) {
    SampleInput& input = inputs_[static_cast<size_t>(score.logits)];
    input = score.state->sample_input(score.position);
    input.logprobs = score.state->request.params.prompt_logprobs;
    input.given = score.state->tokens[static_cast<size_t>(score.position)];
    if (!DeviceSampler::can(input)) return false;
  }
  for (Walk& walk : walks()) {
    const Request& request = walk.state->request;
    SampleInput& root = inputs_[static_cast<size_t>(walk.root_logits)];
    root = walk.state->sample_input(walk.position);
    root.allowed = walk.state->constraint.allowed(request.params);
    root.logprobs = request.params.logprobs;
    root.wants_hash = request.hash_logits;
    if (!DeviceSampler::can(root)) return false;
    if (!walk.tree || walk.tree->empty()) continue;
    if (walk.state->samples_by_tokens()) return false;
    for (size_t node = 0; node < walk.tree->size(); ++node) {
      const int32_t above = walk.root_logits + 1 + (*walk.tree)[node].parent;
      SampleInput& input = inputs_[static_cast<size_t>(walk.root_logits) + 1 + node];
      input = inputs_[static_cast<size_t>(above)];
      ++input.position;
      ++input.generated;
    }
  }
  return true;
}

void SamplingStage::start_on_device(const float* logits) {
  device_sampler_->start(logits, static_cast<int64_t>(vocab_), inputs_);
}

void SamplingStage::wait_for_device() {
  device_sampler_->wait();
}

void SamplingStage::finish_on_device(std::span<const bool> non_finite) {
  const std::span<const DeviceSampled> sampled = device_sampler_->finish(inputs_);
  for (Score& score : scores_) score.logprobs = sampled[static_cast<size_t>(score.logits)].logprobs;
  for (Walk& walk : walks())
    while (!walk.is_over && !walk.state->is_over && !fails_for_numbers(walk, non_finite)) {
      take(walk, sampled[static_cast<size_t>(walk.next_logits())]);
      settle(walk);
    }
}

TokenOutput SamplingStage::settle(RequestState& state, Drawn drawn, int64_t& work) {
  const int64_t before = state.constraint.work();
  TokenOutput output = state.take(drawn.token, drawn.digest);
  output.logprobs = std::move(drawn.logprobs);
  if (output.finish == FinishReason::none && state.request.constraint)
    (void)state.constraint.allowed(state.request.params);
  work -= state.constraint.work() - before;
  return output;
}

// A walk has drawn a token.
void SamplingStage::draw(Walk& walk, Drawn drawn) {
  int64_t none = 0;
  if (walk.state->request.constraint)
    walk.drawn = std::move(drawn);
  else
    enter(walk, settle(*walk.state, std::move(drawn), none));
}

// Goes on with what a walk has drawn, if work is left. Else it is over; behind a draft as if it had
// not come there, since the next step samples there again.
void SamplingStage::settle(Walk& walk) {
  if (!walk.drawn) return;
  if (work_ > 0) {
    enter(walk, settle(*walk.state, *std::exchange(walk.drawn, std::nullopt), work_));
    return;
  }
  walk.is_over = true;
  if (walk.outputs.empty()) return;
  walk.drawn.reset();
  walk.node = (*walk.tree)[walk.node].parent;
}

// Takes the device's sample at the place where the walk stands.
void SamplingStage::take(Walk& walk, const DeviceSampled& sampled) {
  RequestState& state = *walk.state;
  if (const char* error = state.constraint.error()) return enter(walk, state.fail(error));
  if (sampled.error) return enter(walk, state.fail(sampled.error));
  Drawn drawn{.token = sampled.token, .digest = sampled.digest};
  if (state.request.params.logprobs) drawn.logprobs = sampled.logprobs;
  draw(walk, std::move(drawn));
}

// A walk by one thread; rows and walks do not touch each other.
void SamplingStage::take_logits(int64_t first, std::span<const float> logits,
                                std::span<const bool> non_finite) {
  const Timer timer;
  const int64_t end = first + static_cast<int64_t>(logits.size() / vocab_);
  open_.clear();
  for (Walk& walk : walks())
    if (!walk.is_over && !walk.state->is_over && walk.next_logits() < end) open_.push_back(&walk);
  const auto number = [](const Score& score) { return int64_t{score.logits}; };
  const auto from = std::ranges::lower_bound(scores_, first, {}, number);
  const std::span<Score> scores(from,
                                std::ranges::lower_bound(from, scores_.end(), end, {}, number));
  threads_.run([&](Part part) {
    PerThread& thread = *per_thread_[part.index];
    for (size_t i = part.index; wants_argmax_ && i < num_walks_; i += part.count)
      read_argmax(walks_[i], first, logits);
    for (size_t i = part.index; i < scores.size(); i += part.count)
      read_score(scores[i], logits.subspan((scores[i].logits - first) * vocab_, vocab_), thread);
  });
  while (!open_.empty()) {
    threads_.run([&](Part part) {
      for (size_t i = part.index; i < open_.size(); i += part.count)
        go_on(*open_[i], first, logits, non_finite, *per_thread_[part.index]);
    });
    std::erase_if(open_, [](const Walk* walk) { return !walk->drawn; });
    for (Walk* walk : open_) settle(*walk);
    std::erase_if(open_,
                  [&](const Walk* walk) { return walk->is_over || walk->next_logits() >= end; });
  }
  if (times_) times_->add("sample", timer.seconds());
}

// As far as these logits reach.
void SamplingStage::go_on(Walk& walk, int64_t first, std::span<const float> logits,
                          std::span<const bool> non_finite, PerThread& thread) const {
  while (!walk.is_over && !walk.drawn && !fails_for_numbers(walk, non_finite)) {
    const size_t begin = static_cast<size_t>(walk.next_logits() - first) * vocab_;
    if (begin >= logits.size()) return;
    sample(walk, logits.subspan(begin, vocab_), thread);
  }
}

void SamplingStage::sample(Walk& walk, std::span<const float> logits, PerThread& thread) const {
  RequestState& state = *walk.state;
  const SamplingParams& params = state.request.params;
  SampleInput input = state.sample_input();
  input.logits = logits;
  input.allowed = state.constraint.allowed(params);
  if (const char* error = state.constraint.error()) return enter(walk, state.fail(error));
  Sampled sampled = thread.sampler.sample(input);
  if (sampled.error) return enter(walk, state.fail(sampled.error));
  if (rejects_ && !params.is_greedy())
    sampled.token = sample_by_rejection(thread.sampler, input, walk.tree, walk.node);
  // Rejection has changed the row, and filters what is shown of the one before them.
  const LogprobsMode mode = params.logprobs_mode;
  if (params.logprobs && is_processed(mode) &&
      (rejects_ || (is_scaled(mode) && params.has_filters())))
    (void)make_row(input, thread);
  TokenLogprobs logprobs;
  if (params.logprobs &&
      !read_logprobs(params, logits, sampled.token, *params.logprobs, thread, logprobs))
    return enter(walk, state.fail(sampling::kNotANumber));
  Drawn drawn{.token = sampled.token,
              .digest = state.request.hash_logits ? thread.hasher(logits) : Digest{}};
  if (params.logprobs) drawn.logprobs = std::move(logprobs);
  draw(walk, std::move(drawn));
}

// Reads the argmax of those of these rows that are the walk's. A row with a NaN has token 0.
void SamplingStage::read_argmax(Walk& walk, int64_t first, std::span<const float> logits) const {
  const int64_t count = static_cast<int64_t>(logits.size() / vocab_);
  const int64_t begin = std::max<int64_t>(first, walk.root_logits);
  const int64_t end = std::min(first + count, walk.root_logits + std::ssize(walk.argmax));
  for (int64_t row = begin; row < end; ++row) {
    float max = 0;
    bool has_nan = false;
    kernels_.log_sum_exp({.logits = logits.data() + (row - first) * static_cast<int64_t>(vocab_),
                          .rows = 1,
                          .stride = static_cast<int64_t>(vocab_),
                          .vocab = static_cast<int64_t>(vocab_),
                          .argmax = &walk.argmax[row - walk.root_logits],
                          .max = &max,
                          .log_sum = nullptr,
                          .has_nan = &has_nan},
                         Execution{});
  }
}

void SamplingStage::read_score(Score& score, std::span<const float> logits,
                               PerThread& thread) const {
  const RequestState& state = *score.state;
  const SamplingParams& params = state.request.params;
  const int32_t token = state.tokens[static_cast<size_t>(score.position)];
  if (is_processed(params.logprobs_mode)) {
    SampleInput input = state.sample_input(score.position);
    input.logits = logits;
    input.given = token;
    if (make_row(input, thread)) return;
  }
  // Where a logit is NaN the row says so, and the request fails.
  (void)read_logprobs(params, logits, token, *params.prompt_logprobs, thread, score.logprobs);
}

// The row of which processed or scaled log-probabilities are, by the thread's sampler; why there is
// none, a sentence.
const char* SamplingStage::make_row(const SampleInput& input, PerThread& thread) {
  return is_scaled(input.params->logprobs_mode) ? thread.sampler.scale(input)
                                                : thread.sampler.process(input);
}

// Reads the logits, or the row that the thread's sampler has made of them.
bool SamplingStage::read_logprobs(const SamplingParams& params, std::span<const float> logits,
                                  int32_t token, int32_t top, PerThread& thread,
                                  TokenLogprobs& out) {
  const std::span<const float> row = is_processed(params.logprobs_mode)
                                         ? std::as_const(thread.sampler.processed()).values()
                                         : logits;
  return thread.logprobs.read(row, token, top, out, is_logits(params.logprobs_mode));
}

}  // namespace invar
