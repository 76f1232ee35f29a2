#include "train/rl/policy.h"

#include <algorithm>

#include "base/check.h"
#include "base/thread_pool.h"
#include "numerics/math.h"

namespace invar::rl {

namespace {

double exp_of_difference(float a, float b) {
  ScopedFlushToZero flush;
  return math::exp(a - b);
}

}  // namespace

std::vector<double> advantages(Method method, std::span<const double> rewards) {
  CHECK(rewards.size() >= 2, "a baseline needs another answer");
  const auto count = static_cast<double>(rewards.size());
  double sum = 0, squares = 0;
  for (const double r : rewards) sum += r;
  const double mean = sum / count;
  for (const double r : rewards) squares += (r - mean) * (r - mean);
  const double deviation = __builtin_sqrt(squares / (count - 1));
  std::vector<double> result;
  for (const double r : rewards)
    if (method == Method::reinforce || method == Method::rloo)
      result.push_back(r - (sum - r) / (count - 1));
    else if (method == Method::dr_grpo)
      result.push_back(r - mean);
    else
      result.push_back(deviation > 0 ? (r - mean) / deviation : 0.0);
  return result;
}

double token_share(Method method, double tokens, double most, double mean) {
  switch (method) {
    case Method::reinforce:
    case Method::rloo:
      break;
    case Method::grpo:
      return 1.0 / tokens;
    case Method::dr_grpo:
      return 1.0 / most;
    case Method::dapo:
      return 1.0 / mean;
  }
  return 1.0;
}

double importance_ratio(float sampler, float trainer) {
  return exp_of_difference(trainer, sampler);
}

double correction_weight(const PolicyOptions& options, double advantage, double ratio) {
  switch (options.correction) {
    case Correction::none:
      break;
    case Correction::truncated:
      return advantage * std::min(ratio, options.cap);
    case Correction::clipped: {
      const bool is_clipped =
          advantage > 0 ? ratio > 1 + options.clip_high : ratio < 1 - options.clip;
      return is_clipped ? 0.0 : advantage * ratio;
    }
  }
  return advantage;
}

double reference_weight(const PolicyOptions& options, float reference, float trainer) {
  if (options.reference == 0) return 0;
  return options.reference * (exp_of_difference(reference, trainer) - 1);
}

}  // namespace invar::rl
