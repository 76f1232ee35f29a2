#include <limits>

#include "kernels/reference/reference.h"
#include "numerics/noise.h"

namespace invar::reference {

namespace {

int32_t sample_row(const float* logits, int64_t vocab, const SampledRow& row) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const NoiseKey key{.seed = row.seed, .position = row.position, .choice = row.choice};
  const bool is_greedy = row.temperature == 0.0f;
  int32_t best = -1;
  double best_score = 0;
  for (int64_t i = 0; i < vocab; ++i) {
    const float value = is_greedy ? logits[i] : logits[i] / row.temperature;
    if (!(value < kInfinity)) return kSampledNotANumber;
    if (value == -kInfinity) continue;
    const int32_t token = static_cast<int32_t>(i);
    double score = value;
    if (!is_greedy) score = score + gumbel_of(random_bits(key, static_cast<uint32_t>(token)));
    if (best < 0 || score > best_score) best = token, best_score = score;
  }
  return best < 0 ? kSampledNothingAllowed : best;
}

}  // namespace

void sample(const SampleParams& p, const Execution& on) {
  const auto [begin, end] = on.share.of(p.rows);
  for (int64_t t = begin; t < end; ++t)
    p.tokens[t] = sample_row(p.logits + t * p.vocab, p.vocab, p.of[t]);
}

}  // namespace invar::reference
