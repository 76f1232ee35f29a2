// The highest rate at which a server keeps its promises.
#pragma once

#include <functional>
#include <vector>

#include "workload/load_run.h"

namespace invar {

struct CapacityPoint {
  double rate = 0;  // requests per second
  double scheduling_delay_p50 = 0, tbt_p99 = 0, requests_per_second = 0;
  bool is_saturated = false;  // LoadSummary::is_saturated
  bool is_within = false;     // the limits, and not saturated
};

struct Capacity {
  double rate = 0;  // the highest that was within the limits; 0: none was
  // Whether the limits were reached. A short load may never be beyond them, however fast it comes;
  // then `rate` is the throughput.
  bool is_bounded = true;
  std::vector<CapacityPoint> points;  // as they were tried
};

// A run at a rate, by the limits.
CapacityPoint point_of(const LatencyLimits& limits, double rate, const LoadSummary& run);

// Moves `first_rate` by `factor` up or down until the limits lie in between, then halves the
// distance until it is below 2.5 %; at most 20 runs. Gives up looking for the limits at 4 times the
// throughput. `run` answers the load at a rate.
Capacity find_capacity(const LatencyLimits& limits, double first_rate,
                       const std::function<LoadSummary(double rate)>& run, double factor = 2);

}  // namespace invar
