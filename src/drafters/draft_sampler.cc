#include "drafters/draft_sampler.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace invar {

namespace {

// Tokens with less probability than so many others are not worth their noise.
constexpr int32_t kCandidates = 64;

TokenHistory history_of(const DraftRequest& request, std::span<const int32_t> path) {
  TokenHistory history(request.tokens.first(request.prompt_size));
  for (const int32_t token : request.tokens.subspan(request.prompt_size)) history.push(token);
  for (const int32_t token : path) history.push(token);
  return history;
}

// The likeliest tokens with the sample among them: what each is preferred by, logit and noise.
std::vector<std::pair<double, int32_t>> preferences(LogitRow& row, const SampleInput& in,
                                                    int32_t count, int32_t sampled) {
  const SamplingParams& p = *in.params;
  const NoiseKey key{.seed = p.seed,
                     .position = static_cast<uint32_t>(in.position),
                     .choice = static_cast<uint32_t>(in.choice)};
  std::vector<std::pair<double, int32_t>> scored;
  const auto add = [&](float value, int32_t token) {
    const double noise =
        p.is_greedy() ? 0 : gumbel_of(random_bits(key, static_cast<uint32_t>(token)));
    scored.emplace_back(value + noise, token);
  };
  add(row.values()[static_cast<size_t>(sampled)], sampled);
  for (const Ranked& candidate : row.first(std::max(count, kCandidates)))
    if (candidate.token != sampled && candidate.value != kExcluded)
      add(candidate.value, candidate.token);
  std::sort(scored.begin() + 1, scored.end(), [](const auto& a, const auto& b) {
    return a.first > b.first || (a.first == b.first && a.second < b.second);
  });
  return scored;
}

// log(sum(exp)) of what the shares are shares of.
double log_sum_of(LogitRow& row, bool is_greedy,
                  std::span<const std::pair<double, int32_t>> scored) {
  double max = scored[0].first, sum = 0;
  for (const auto& [score, _] : scored) max = std::max(max, score);
  if (is_greedy)
    for (const float value : std::as_const(row).values()) sum += std::exp(value - max);
  else
    for (const auto& [score, _] : scored) sum += std::exp(score - max);
  return max + std::log(sum);
}

}  // namespace

DraftSampler::DraftSampler(int threads, const Kernels& kernels, double confidence)
    : kernels_(kernels),
      most_log_sum_(static_cast<float>(-std::log(confidence))),
      threads_(static_cast<size_t>(threads)) {}

bool DraftSampler::is_sure(std::span<const float> logits) const {
  if (std::isinf(most_log_sum_)) return true;
  int32_t argmax = 0;
  float max = 0, log_sum = 0;
  bool has_nan = false;
  kernels_.log_sum_exp({.logits = logits.data(),
                        .rows = 1,
                        .stride = std::ssize(logits),
                        .vocab = std::ssize(logits),
                        .argmax = &argmax,
                        .max = &max,
                        .log_sum = &log_sum,
                        .has_nan = &has_nan},
                       Execution{});
  return log_sum <= most_log_sum_;
}

void DraftSampler::sample(ThreadPool& pool, std::span<DraftPoint> points,
                          std::span<const float> logits) {
  if (points.empty()) return;
  const size_t vocab = logits.size() / points.size();
  if (points.size() == 1) {  // done sooner than a thread wakes
    const ScopedFlushToZero flush;
    return sample_one(points[0], logits, threads_[0]);
  }
  pool.run([&](Part part) {
    for (size_t i = part.index; i < points.size(); i += part.count)
      sample_one(points[i], logits.subspan(i * vocab, vocab), threads_[part.index]);
  });
}

void DraftSampler::sample_one(DraftPoint& point, std::span<const float> logits,
                              PerThread& thread) const {
  const DraftRequest& request = *point.request;
  const auto answer = request.tokens.subspan(request.prompt_size);
  SamplingParams greedy;
  if (request.wants_argmax) {
    greedy = *request.params;
    greedy.temperature = 0;
  }
  SampleInput in{.logits = logits,
                 .params = request.wants_argmax ? &greedy : request.params,
                 .position = static_cast<int32_t>(request.tokens.size() + point.path.size()),
                 .choice = request.choice,
                 .generated = static_cast<int32_t>(answer.size() + point.path.size())};
  TokenHistory history;
  if (request.params->has_penalties()) {
    history = history_of(request, point.path);
    in.history = &history;
  }
  if (!request.params->bad_words.empty()) {
    thread.answer.assign(answer.begin(), answer.end());
    thread.answer.insert(thread.answer.end(), point.path.begin(), point.path.end());
    in.answer = thread.answer;
  }
  point.tokens.clear();
  point.scores.clear();
  if (!is_sure(logits)) return;
  const Sampled sampled = thread.sampler.sample(in);
  if (sampled.error) return;  // then there is no draft
  point.tokens.push_back(sampled.token);
  if (point.count == 1 && !point.wants_scores) return;
  LogitRow& row = thread.sampler.processed();
  const auto scored = preferences(row, in, point.count, sampled.token);
  for (size_t i = 1; i < scored.size() && std::ssize(point.tokens) < point.count; ++i)
    point.tokens.push_back(scored[i].second);
  if (!point.wants_scores) return;
  const double log_sum = log_sum_of(row, in.params->is_greedy(), scored);
  for (size_t i = 0; i < point.tokens.size(); ++i)
    point.scores.push_back(static_cast<float>(std::min(scored[i].first - log_sum, 0.0)));
}

}  // namespace invar
