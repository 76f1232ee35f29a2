// `invar rl`: a model from its first weights along a recipe's rewards, or on from where it was
// stopped.
#pragma once

#include <functional>

#include "train/rl/mismatch.h"
#include "train/rl/rl_recipe.h"
#include "train/rl/rollouts.h"
#include "train/run_control.h"

namespace invar::rl {

struct RlProgress {
  StepReport report;
  int64_t steps = 0;                                     // in all
  double reward = 0;                                     // mean over the step's answers
  std::array<double, kTaskNames.size()> task_rewards{};  // NaN: no such problem in the step
  double entropy = 0;                                    // mean over tokens, nats, as sampled
  double answer_tokens = 0;                              // mean
  double ended = 0;                                      // part of the answers
  Mismatch mismatch;
  Mismatch last_update;  // of several: before the last one, the sampler beside the trainer
  DraftCounts drafts;    // of this run so far
  double rollout_seconds = 0, training_seconds = 0;
  double tokens_per_second = 0;  // rows of prompts and answers, of this run so far
  double seconds_left = 0;
  double evaluation = -1;  // mean reward over the held-out problems, when they were asked
};

struct RlOptions : RunControl {
  // The sampler's drafts. They show in the time alone, and so only where the sampler's bits do not
  // depend on its batches: a recipe whose sampler computes by `control` is refused.
  SpeculativeConfig speculation;
  std::function<void(const RlProgress&)> progress;
};

struct RlResult {
  int64_t steps = 0;  // done in all
  bool stopped = false;
  double first_evaluation = 0, last_evaluation = 0;
  std::string weights_digest;
};

// Writes under `output`: checkpoints/, metrics.jsonl, curves.svg, and model/ or adapter/ after the
// last step.
// Throws UsageError and Error; among them, where the sampler is the trained policy, one that names
// the step, sequence and position at which its log-probability is not the trainer's.
RlResult run_rl(const RlRecipe& recipe, const RlOptions& options);

}  // namespace invar::rl
