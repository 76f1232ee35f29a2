// `invar train` of a recipe with a table [drafter]: from its first step to its last, or on from
// where it was stopped.
#pragma once

#include <functional>

#include "train/drafter/drafter_trainer.h"
#include "train/run_control.h"

namespace invar {

struct DrafterProgress {
  DrafterReport report;
  int64_t steps = 0;             // in all
  double tokens_per_second = 0;  // of this run so far
  double seconds_left = 0;
  std::vector<LevelScore> held_out;  // when the step was evaluated
};

struct DrafterRunOptions : RunControl {
  std::function<void(const DrafterProgress&)> progress;
};

struct DrafterRunResult {
  int64_t steps = 0;  // done in all
  bool stopped = false;
  std::vector<LevelScore> held_out;
  std::string weights_digest;
};

// The loss of a level, by its mean.
double mean_loss(const LevelScore& score);
double agreement(const LevelScore& score);

// Writes under `output`: checkpoints/, metrics.jsonl, and model/ after the last step. Throws
// UsageError and Error.
DrafterRunResult run_drafter_training(const DrafterRecipe& recipe,
                                      const DrafterRunOptions& options);

}  // namespace invar
