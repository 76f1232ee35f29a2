// The cost of a step on this machine, fitted to steps that were measured, so that a load can be
// tried without computing it.
#pragma once

#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "base/json.h"
#include "scheduler/step_plan.h"
#include "workload/load_clock.h"

namespace invar {

struct MeasuredStep {
  StepWork work;
  double seconds = 0;
};

// Seconds by a number: points with ascending numbers, straight lines in between and beyond the
// last one.
using CostCurve = std::vector<std::pair<double, double>>;

// Seconds = those of the rows, of the samples, of the slots that prompts' and that decodes' rows
// see, and what it takes to have both kinds of rows.
struct StepCost {
  CostCurve rows, prompt_slots, decode_slots;
  double per_sample = 0, mixed = 0;
  int64_t steps = 0;  // that it was fitted to
  double error = 0;   // of a step, in the mean, as a share of what was measured

  double seconds(const StepWork& work) const;
  json::Value to_json() const;
};

// The costs, none below 0, with the least sum of squared relative errors; then
// without the steps that are 5 times as far off as the median one, which others' work disturbed.
// Throws Error where there are no steps.
StepCost fit_step_cost(std::span<const MeasuredStep> steps);

// A clock that only steps move, each by its cost.
std::unique_ptr<LoadClock> make_model_clock(const StepCost& cost);

}  // namespace invar
