#include "drafters/draft_sampler.h"

#include <algorithm>

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

// Adds what comes after the sample: the next by logit and noise.
void add_runners_up(LogitRow& row, const SampleInput& in, int32_t count,
                    std::vector<int32_t>& tokens) {
  const SamplingParams& p = *in.params;
  const int32_t sampled = tokens[0];
  std::vector<std::pair<double, int32_t>> scored;
  for (const Ranked& candidate : row.first(std::max(count, kCandidates))) {
    if (candidate.token == sampled || candidate.value == kExcluded) continue;
    const NoiseKey key{.seed = p.seed,
                       .position = static_cast<uint32_t>(in.position),
                       .choice = static_cast<uint32_t>(in.choice)};
    const double noise =
        p.is_greedy() ? 0 : gumbel_of(random_bits(key, static_cast<uint32_t>(candidate.token)));
    scored.emplace_back(-(candidate.value + noise), candidate.token);
  }
  std::ranges::sort(scored);
  for (const auto& [score, token] : scored)
    if (std::ssize(tokens) < count) tokens.push_back(token);
}

}  // namespace

void DraftSampler::sample(ThreadPool& pool, std::span<DraftPoint> points,
                          std::span<const float> logits) {
  if (points.empty()) return;
  const size_t vocab = logits.size() / points.size();
  pool.run([&](Part part) {
    for (size_t i = part.index; i < points.size(); i += part.count)
      sample_one(points[i], logits.subspan(i * vocab, vocab), threads_[part.index]);
  });
}

void DraftSampler::sample_one(DraftPoint& point, std::span<const float> logits, PerThread& thread) {
  const DraftRequest& request = *point.request;
  const auto answer = request.tokens.subspan(request.prompt_size);
  SampleInput in{.logits = logits,
                 .params = request.params,
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
  const Sampled sampled = thread.sampler.sample(in);
  if (sampled.error) return;  // then there is no draft
  point.tokens.push_back(sampled.token);
  if (point.count > 1) add_runners_up(thread.sampler.processed(), in, point.count, point.tokens);
}

}  // namespace invar
