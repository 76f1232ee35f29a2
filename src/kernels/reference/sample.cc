#include "kernels/sample.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <vector>

#include "kernels/reference/reference.h"
#include "numerics/logits_hash.h"
#include "numerics/noise.h"

namespace invar::reference {

namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
using Row = std::vector<float>;

// Tokens that are not excluded, most preferred first.
std::vector<int32_t> ranked(std::span<const float> x) {
  std::vector<int32_t> tokens;
  for (int32_t i = 0; i < std::ssize(x); ++i)
    if (x[i] != -kInfinity) tokens.push_back(i);
  std::stable_sort(tokens.begin(), tokens.end(), [&](int32_t a, int32_t b) { return x[a] > x[b]; });
  return tokens;
}

// Steps 1 to 4 of numerics 6.
void edit(const SampleRowsParams& p, const SampledRow& of, Row& x) {
  if (of.mask >= 0)
    for (size_t i = 0; i < x.size(); ++i)
      if (!(p.masks[of.mask * ((x.size() + 63) / 64) + i / 64] >> i % 64 & 1)) x[i] = -kInfinity;
  for (int32_t i = of.bias_begin; i < of.bias_end; ++i)
    x[p.biases[i].token] = x[p.biases[i].token] + p.biases[i].bias;
  for (int32_t i = of.count_begin; i < of.count_end; ++i) {
    float& value = x[p.counts[i].token];
    value = value > 0.0f ? value / of.repetition_penalty : value * of.repetition_penalty;
    if (p.counts[i].generated == 0) continue;
    value = value - of.frequency_penalty * static_cast<float>(p.counts[i].generated);
    value = value - of.presence_penalty;
  }
  if (of.temperature != 0.0f)
    for (float& value : x) value = value / of.temperature;
}

// Step 5.
void filter(const SampledRow& of, float max, Row& x) {
  if (of.min_p != 0.0f)
    for (float& value : x)
      if (!(math::exp(value - max) >= of.min_p)) value = -kInfinity;
  if (of.top_k > 0) {
    const auto tokens = ranked(x);
    for (size_t i = of.top_k; i < tokens.size(); ++i) x[tokens[i]] = -kInfinity;
  }
  if (of.top_p == 1.0) return;
  const auto tokens = ranked(x);
  const auto weight = [&](int32_t token) {
    return static_cast<uint64_t>(math::exp(x[token] - max) * 0x1p40f);
  };
  uint64_t total = 0, before = 0;
  for (const int32_t token : tokens) total += weight(token);
  const uint64_t limit = static_cast<uint64_t>(of.top_p * static_cast<double>(total));
  for (const int32_t token : tokens) {
    const uint64_t own = weight(token);
    if (before >= limit && token != tokens[0]) x[token] = -kInfinity;
    before += own;
  }
}

// The row's token, or why there is none; `x` becomes what numerics calls processed.
int32_t sample_row(const SampleRowsParams& p, const SampledRow& of, Row& x) {
  edit(p, of, x);
  const float max = *std::max_element(x.begin(), x.end());
  if (max == kInfinity) return kSampledNotANumber;
  if (max == -kInfinity) return kSampledNothingAllowed;
  if (of.temperature == 0.0f) return of.given < 0 ? ranked(x)[0] : of.given;
  filter(of, max, x);
  if (of.given >= 0) return of.given;
  const NoiseKey key{.seed = of.seed, .position = of.position, .choice = of.choice};
  int32_t best = -1;
  double best_score = 0;
  for (int32_t i = 0; i < std::ssize(x); ++i) {
    if (x[i] == -kInfinity) continue;
    const double score = static_cast<double>(x[i]) + gumbel_of(random_bits(key, i));
    if (best < 0 || score > best_score) best = i, best_score = score;
  }
  return best;
}

void add_logprobs(const SampledRow& of, std::span<const float> logits, SampledToken& sampled,
                  TopToken* top) {
  const orders::LogSumExp sum =
      of.as_logits ? orders::LogSumExp{.max = 0.0f, .log_sum = 0.0f} : orders::log_sum_exp(logits);
  const auto tokens = ranked(logits);
  sampled.logprob = sum.log_probability(logits[sampled.token]);
  sampled.rank = 1;
  for (int32_t i = 0; i < std::ssize(logits); ++i) {
    const float value = logits[sampled.token];
    sampled.rank += logits[i] > value || (logits[i] == value && i < sampled.token);
  }
  for (int32_t i = 0; i < of.top; ++i)
    top[i] = i < std::ssize(tokens) ? TopToken{tokens[i], sum.log_probability(logits[tokens[i]])}
                                    : TopToken{-1, 0.0f};
}

}  // namespace

void sample(const SampleRowsParams& p, const Execution& on) {
  const auto [begin, end] = on.share.of(p.rows);
  for (int64_t t = begin; t < end; ++t) {
    const SampledRow& of = p.of[t];
    const std::span<const float> logits(p.logits + t * p.vocab, static_cast<size_t>(p.vocab));
    SampledToken& sampled = p.tokens[t];
    sampled = {.token = of.given, .logprob = 0.0f, .rank = 0};
    Row row(logits.begin(), logits.end());
    if (std::any_of(logits.begin(), logits.end(), [](float x) { return x != x; }))
      sampled.token = kSampledNotANumber;
    else if (of.given < 0 || of.of_processed)
      sampled.token = sample_row(p, of, row);
    if (p.ids) p.ids[t] = std::max(0, sampled.token);
    if (sampled.token >= 0 && of.top >= 0)
      add_logprobs(of, of.of_processed ? std::span<const float>(row) : logits, sampled,
                   of.top > 0 ? p.top + t * kMostTop : nullptr);
  }
}

void hash_logits(const HashLogitsParams& p, const Execution& on) {
  const auto [begin, end] = on.share.of(p.count);
  PositionHasher hash;
  for (int64_t i = begin; i < end; ++i) {
    const Digest digest = hash({p.logits + p.rows[i] * p.vocab, static_cast<size_t>(p.vocab)});
    std::memcpy(p.digests + i * std::ssize(digest), digest.data(), digest.size());
  }
}

}  // namespace invar::reference
