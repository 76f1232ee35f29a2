#include "workload/cost_check.h"

#include <algorithm>
#include <cmath>

namespace invar {

namespace {

constexpr double kTolerance = 0.1;

bool is_near(double model, double measured, double least = 0) {
  return std::abs(model - measured) <= std::max(kTolerance * measured, least);
}

}  // namespace

bool CostCheck::Point::agrees() const {
  return is_near(model.requests_per_second, measured.requests_per_second) &&
         is_near(model.scheduling_delay.p50, measured.scheduling_delay.p50, measured.mean_step) &&
         is_near(model.tbt.p99, measured.tbt.p99);
}

bool CostCheck::agrees() const {
  return std::ranges::all_of(points, &Point::agrees);
}

}  // namespace invar
