// What a step costs on this machine, fitted to steps that were measured, so that a load can be
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

// Seconds = rows(number) + per sample + per slot that a prompt's or a decode's row sees.
struct StepCost {
  std::vector<std::pair<int, double>> rows;  // ascending numbers; straight lines in between
  double per_sample = 0, per_prompt_slot = 0, per_decode_slot = 0;
  int64_t steps = 0;  // that it was fitted to
  double error = 0;   // of a step, in the mean, as a share of what was measured

  double seconds(const StepWork& work) const;
  json::Value to_json() const;
};

// The costs, none below 0, with the least sum of squared errors by measured seconds; then
// without the steps that are 5 times as far off as the median one, which others' work disturbed.
// Throws Error where there are no steps.
StepCost fit_step_cost(std::span<const MeasuredStep> steps);

// A clock that every step moves by what it costs, and nothing else does.
std::unique_ptr<LoadClock> make_model_clock(const StepCost& cost);

}  // namespace invar
