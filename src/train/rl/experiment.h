// Several runs of one recipe that differ in their sampler, and one picture of them (after He et
// al., "Defeating Nondeterminism in LLM Inference", 2025).
#pragma once

#include <functional>

#include "train/rl/rl_run.h"

namespace invar::rl {

// One of `recipe.runs` as a recipe of its own.
RlRecipe recipe_of(const RlRecipe& recipe, const Variant& variant);

struct VariantResult {
  std::string name;
  RlResult result;
  // Over the run's steps.
  double last_reward = 0;  // mean of the last tenth of the steps
  double mean_k3 = 0, largest_difference = 0;
  double different_routes = -1;  // share, of a model with experts
  double clip_fraction = 0;      // mean
};

// Runs each of `recipe.runs` under output/NAME, or goes on with it, and draws
// output/experiment.svg: reward and KL over steps. `started` is told each run's name. Empty when
// options.stop ended it.
std::vector<VariantResult> run_experiment(const RlRecipe& recipe, const RlOptions& options,
                                          const std::function<void(const std::string&)>& started);

}  // namespace invar::rl
