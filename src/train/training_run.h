// `invar train`: a recipe from its first step to its last, or on from where it was stopped.
#pragma once

#include <functional>

#include "train/recipe.h"
#include "train/run_control.h"

namespace invar {

struct RunProgress {
  StepReport report;
  int64_t steps = 0;             // in all
  double tokens_per_second = 0;  // of this run so far
  double seconds_left = 0;
  double held_out_loss = -1;  // when the step was evaluated
  MtpScore held_out_mtp;      // likewise, of a model with a module that predicts further
};

struct RunOptions : RunControl {
  std::function<void(const RunProgress&)> progress;
};

struct RunResult {
  int64_t steps = 0;  // done in all
  bool stopped = false;
  double held_out_loss = 0;
  MtpScore held_out_mtp;
  std::string weights_digest;  // where ranks are processes, on the first
};

// Writes under `output`: checkpoints/, metrics.jsonl, curves.svg, and model/ or adapter/ after the
// last step.
// Throws UsageError and Error.
RunResult run_training(Recipe recipe, const RunOptions& options);

}  // namespace invar
