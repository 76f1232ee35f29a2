#include "sample_reference.h"

#include <algorithm>
#include <numeric>

namespace invar {

namespace {

using Row = std::vector<float>;

// Tokens that are not excluded, most preferred first.
std::vector<int32_t> ranked(const Row& x) {
  std::vector<int32_t> tokens;
  for (int32_t i = 0; i < std::ssize(x); ++i)
    if (x[i] != kExcluded) tokens.push_back(i);
  std::stable_sort(tokens.begin(), tokens.end(), [&](int32_t a, int32_t b) { return x[a] > x[b]; });
  return tokens;
}

void forbid(Row& x, const SampleInput& in) {
  if (!in.allowed.empty() && in.looks_back())
    for (size_t i = 0; i < x.size(); ++i)
      if (!(in.allowed[i / 64] >> i % 64 & 1)) x[i] = kExcluded;
  const std::vector<int32_t>& only = in.params->allowed_token_ids;
  if (!only.empty())
    for (int32_t i = 0; i < std::ssize(x); ++i)
      if (std::find(only.begin(), only.end(), i) == only.end()) x[i] = kExcluded;
  if (!in.looks_back()) return;
  for (const std::vector<int32_t>& word : in.params->bad_words)
    if (sampling::is_begun(word, in.answer)) x[word.back()] = kExcluded;
  if (in.generated < in.params->min_tokens)
    for (const int32_t token : in.params->stop_token_ids) x[token] = kExcluded;
}

void penalise(Row& x, const SampleInput& in) {
  const SamplingParams& p = *in.params;
  if (!p.has_penalties() || !in.looks_back()) return;
  for (const auto& [token, generated] : in.history->entries()) {
    x[token] = sampling::repetition_penalised(x[token], static_cast<float>(p.repetition_penalty));
    x[token] = sampling::count_penalised(x[token], generated, p);
  }
}

void min_p(Row& x, float least) {
  if (least == 0.0f) return;
  const float max = *std::max_element(x.begin(), x.end());
  for (float& value : x)
    if (!(math::exp(value - max) >= least)) value = kExcluded;
}

void top_k(Row& x, int32_t k) {
  if (k == 0) return;
  const std::vector<int32_t> tokens = ranked(x);
  for (size_t i = k; i < tokens.size(); ++i) x[tokens[i]] = kExcluded;
}

// Keeps a token while the integer sum before it is below the limit, and always the first.
void top_p(Row& x, double p) {
  if (p == 1.0) return;
  const std::vector<int32_t> tokens = ranked(x);
  const float max = x[tokens[0]];
  uint64_t total = 0, before = 0;
  for (const int32_t token : tokens) total += sampling::top_p_weight(x[token] - max);
  const uint64_t limit = static_cast<uint64_t>(p * static_cast<double>(total));
  for (const int32_t token : tokens) {
    const uint64_t weight = sampling::top_p_weight(x[token] - max);
    if (before >= limit && token != tokens[0]) x[token] = kExcluded;
    before += weight;
  }
}

int32_t sample(const Row& x, const NoiseKey& key) {
  int32_t best = -1;
  double best_score = 0;
  for (int32_t i = 0; i < std::ssize(x); ++i) {
    if (x[i] == kExcluded) continue;
    const double score = static_cast<double>(x[i]) + gumbel_of(random_bits(key, i));
    if (best < 0 || score > best_score) best = i, best_score = score;
  }
  return best;
}

}  // namespace

Sampled sample_reference(const SampleInput& in, std::vector<float>* processed) {
  const SamplingParams& p = *in.params;
  Row x(in.logits.begin(), in.logits.end());
  for (const float value : x)
    if (value != value) return {.error = sampling::kNotANumber};
  forbid(x, in);
  for (const auto& [token, bias] : p.logit_bias) x[token] = x[token] + static_cast<float>(bias);
  penalise(x, in);
  if (!p.is_greedy())
    for (float& value : x) value = value / static_cast<float>(p.temperature);
  const float max = *std::max_element(x.begin(), x.end());
  if (max == -kExcluded) return {.error = sampling::kNotANumber};
  if (max == kExcluded) return {.error = sampling::kNothingAllowed};
  min_p(x, static_cast<float>(p.min_p));
  top_k(x, p.top_k);
  top_p(x, p.top_p);

  const NoiseKey key{.seed = p.seed,
                     .position = static_cast<uint32_t>(in.position),
                     .choice = static_cast<uint32_t>(in.choice)};
  Sampled sampled{.token = in.given};
  if (in.looks_back()) sampled.token = p.is_greedy() ? ranked(x)[0] : sample(x, key);
  if (processed) *processed = std::move(x);
  return sampled;
}

}  // namespace invar
