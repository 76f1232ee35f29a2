#include "workload/capacity.h"

namespace invar {

Capacity find_capacity(const LatencyLimits& limits, double first_rate,
                       const std::function<LoadSummary(double rate)>& run) {
  constexpr int kMostRuns = 20;
  constexpr double kPrecision = 0.025;
  Capacity capacity;
  double low = 0, high = 0;  // within and beyond the limits; 0: not known
  for (double rate = first_rate; std::ssize(capacity.points) < kMostRuns;) {
    const LoadSummary s = run(rate);
    const bool is_within =
        s.scheduling_delay.p50 <= limits.scheduling_delay_p50 && s.tbt.p99 <= limits.tbt_p99;
    capacity.points.push_back(
        {rate, s.scheduling_delay.p50, s.tbt.p99, s.requests_per_second, is_within});
    if (is_within && 4 * s.requests_per_second < rate) {
      capacity.is_bounded = false;
      capacity.rate = s.requests_per_second;
      return capacity;
    }
    (is_within ? low : high) = rate;
    if (low > 0 && high > 0 && high - low <= kPrecision * high) break;
    rate = high == 0 ? 2 * rate : low == 0 ? rate / 2 : (low + high) / 2;
  }
  capacity.rate = low;
  return capacity;
}

}  // namespace invar
