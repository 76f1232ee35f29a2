// The work of a step where not every layer sees all of a context.
#pragma once

#include <span>

#include "scheduler/step_plan.h"

namespace invar {

// Layers that see the last `window` slots; 0: all.
struct LayerWindow {
  int window = 0, layers = 1;
};

// As the other, with what a layer sees in the mean of all layers as the slots.
StepWork work_of(const StepPlan& plan, std::span<const LayerWindow> windows);

}  // namespace invar
