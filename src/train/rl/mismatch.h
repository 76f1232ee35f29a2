// How far the sampler's log-probabilities are from the trainer's, over the tokens of a step.
#pragma once

#include <cstdint>

namespace invar::rl {

// Estimates of KL(sampler || trainer) from the sampler's draws (Schulman 2020), with d = trainer's
// - sampler's log-probability and ratio = exp(d): means of -d, d^2 / 2 and ratio - 1 - d. When both
// are one policy, k1, k2, k3 and the differences are exactly 0 and every ratio is exactly 1.
struct Mismatch {
  int64_t tokens = 0;
  int64_t different = 0;  // whose log-probabilities are not equal
  double k1 = 0, k2 = 0, k3 = 0;
  double largest_difference = 0;
  double smallest_ratio = 1, largest_ratio = 1, ratio_deviation = 0;  // from 1
  double clip_fraction = 0;  // of ratios beyond 1 - clip or 1 + clip_high
  // For a model with experts: routes of a token in a layer, and those through other experts.
  int64_t routes = 0, different_routes = 0;
};

class MismatchMeter {
 public:
  explicit MismatchMeter(double clip) : MismatchMeter(clip, clip) {}
  MismatchMeter(double clip_low, double clip_high) : low_(clip_low), high_(clip_high) {}
  void add(float sampler, float trainer);
  Mismatch result() const;

 private:
  double low_, high_;
  int64_t clipped_ = 0;
  double squares_ = 0;
  Mismatch sums_;
};

}  // namespace invar::rl
