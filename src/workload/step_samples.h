// Steps as a load has them, measured: what a cost model is fitted to.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "session/instance.h"
#include "workload/load_clock.h"
#include "workload/requests.h"
#include "workload/step_cost.h"

namespace invar {

struct StepSampling {
  std::vector<EngineOptions> engines;  // those that will answer the load
  std::vector<LoadRequest> requests;   // of the load; when they arrive does not matter
  double seconds = 1;                  // of each kind of steps, at most; of the load's own 12 times
};

// Chunks of many sizes along prompts, batches of many sizes that decode behind short and long
// contexts, and the load itself under every engine, all requests there from the beginning: steps
// that are mixed and ragged. Throws Error when they do not fit into memory.
std::vector<MeasuredStep> measure_steps(const std::shared_ptr<Model>& model,
                                        const std::function<std::unique_ptr<LoadClock>()>& clock,
                                        const StepSampling& sampling);

// Seconds of a step of `sequences` that decode behind `context` tokens each, and nothing else: the
// median of a few. Throws Error when they do not fit into memory.
double decode_step_seconds(Model& model, int sequences, int context);

}  // namespace invar
