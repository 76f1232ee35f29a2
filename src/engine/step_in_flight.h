// A step from its plan to its commit. Two of them may be in flight on a device: while it computes
// one, the host plans the next, whose rows read from the device the tokens that the host does not
// know yet. In a pipeline whose stages are processes there may be one for each stage, of other
// sequences or of prompts.
#pragma once

#include <memory>
#include <vector>

#include "base/timer.h"
#include "engine/request_state.h"
#include "engine/sampling_stage.h"
#include "model/forward.h"
#include "scheduler/step_plan.h"

namespace invar {

struct StepInFlight {
  int64_t number = 0;  // of the engine's steps
  StepPlan plan;
  // By entry of the plan; who is over before the step is lives on here.
  std::vector<std::shared_ptr<RequestState>> states;
  std::vector<size_t> first_row;    // by entry, of the batch
  std::vector<DraftTree*> tree_of;  // by entry; null: no drafts
  Batch batch;
  ForwardIo io;
  std::unique_ptr<SamplingStage> sampling;
  Timer timer;
  bool is_told = false;  // stages before home have begun with it

  // The device has been given all of it, the sampling too. Else the host reads its logits.
  bool is_on_device() const { return io.keep_logits; }
  // Whether another step may be begun behind it.
  bool is_under_way() const { return is_on_device() || is_told; }
};

}  // namespace invar
