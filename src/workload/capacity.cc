#include "workload/capacity.h"

namespace invar {

CapacityPoint point_of(const LatencyLimits& limits, double rate, const LoadSummary& run) {
  const bool is_within = !run.is_saturated() &&
                         run.scheduling_delay.p50 <= limits.scheduling_delay_p50 &&
                         run.tbt.p99 <= limits.tbt_p99;
  return {
      rate,     run.scheduling_delay.p50, run.tbt.p99, run.requests_per_second, run.is_saturated(),
      is_within};
}

Capacity find_capacity(const LatencyLimits& limits, double first_rate,
                       const std::function<LoadSummary(double rate)>& run, double factor) {
  constexpr int kMostRuns = 20;
  constexpr double kPrecision = 0.025;
  Capacity capacity;
  double low = 0, high = 0;  // within and beyond the limits; 0: not known
  for (double rate = first_rate; std::ssize(capacity.points) < kMostRuns;) {
    const LoadSummary s = run(rate);
    capacity.points.push_back(point_of(limits, rate, s));
    const bool is_within = capacity.points.back().is_within;
    if (is_within && 4 * s.requests_per_second < rate) {
      capacity.is_bounded = false;
      capacity.rate = s.requests_per_second;
      return capacity;
    }
    (is_within ? low : high) = rate;
    if (low > 0 && high > 0 && high - low <= kPrecision * high) break;
    rate = high == 0 ? factor * rate : low == 0 ? rate / factor : (low + high) / 2;
  }
  capacity.rate = low;
  return capacity;
}

}  // namespace invar
