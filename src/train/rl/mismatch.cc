#include "train/rl/mismatch.h"

#include <algorithm>
#include <cmath>

namespace invar::rl {

// libm will do: nothing here reaches a weight.
void MismatchMeter::add(float sampler, float trainer) {
  const double d = double{trainer} - double{sampler};
  const double over = std::expm1(d);  // ratio - 1
  ++sums_.tokens;
  sums_.different += sampler != trainer;
  sums_.k1 -= d;
  sums_.k2 += d * d / 2;
  sums_.k3 += over - d;
  sums_.largest_difference = std::max(sums_.largest_difference, std::abs(d));
  sums_.smallest_ratio = std::min(sums_.smallest_ratio, 1 + over);
  sums_.largest_ratio = std::max(sums_.largest_ratio, 1 + over);
  squares_ += over * over;
  clipped_ += over > high_ || over < -low_;
}

Mismatch MismatchMeter::result() const {
  Mismatch m = sums_;
  if (m.tokens == 0) return m;
  const auto count = static_cast<double>(m.tokens);
  m.k1 /= count, m.k2 /= count, m.k3 /= count;
  m.ratio_deviation = std::sqrt(squares_ / count);
  m.clip_fraction = static_cast<double>(clipped_) / count;
  return m;
}

}  // namespace invar::rl
