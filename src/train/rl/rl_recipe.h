// A recipe of reinforcement learning: everything that the weights depend on, as a TOML file.
#pragma once

#include <string>
#include <vector>

#include "engine/engine.h"
#include "train/recipe.h"
#include "train/rl/own_problems.h"
#include "train/rl/policy.h"

namespace invar::rl {

// The policy that draws. Another arithmetic than the trainer's with exact weights is another policy
// than the one that is trained, whose bits promise nothing under `control`.
struct SamplerOptions {
  std::string arithmetic = "portable";  // "portable", "hopper" or "control"
  std::string weights = "exact";        // "exact", or rounded to a format of rounding.h
  // For a model with experts: the trainer computes with those that the sampler's tokens went
  // through.
  bool replays_routes = false;
};

// One run of an experiment: what it does differently.
struct Variant {
  std::string name;
  SamplerOptions sampler;
  Correction correction = Correction::none;
};

struct RlRecipe {
  std::string path;
  std::string name;
  uint64_t seed = 1;
  std::string model;  // a model directory: the first weights, the tokenizer
  Tasks tasks = kAllTasks;
  OwnTasks own;          // in their place, where it names a file
  int prompts = 16;      // of a step
  int answers = 8;       // to each
  int max_tokens = 128;  // of an answer, or a turn of it
  int turns = 1;         // of the model in a conversation, at most
  PolicyOptions policy;
  SamplerOptions sampler;
  TrainerOptions
      trainer;  // its model is filled when it is loaded; `sampled` is how answers are drawn

  // Nothing below shows in the weights while the sampler is the trained policy.
  EngineOptions engine;
  int64_t evaluation_problems = 128;
  int64_t evaluate_every = 0,
          save_every = 20;    // steps; 0: only before the first and after the last
  std::vector<Variant> runs;  // of an experiment; empty: one run

  bool samples_trained_policy() const {
    return sampler.arithmetic == name_of(trainer.order) && sampler.weights == "exact";
  }
  // All that shows in the weights; `model_digest` is that of the first weights.
  json::Value identity(const std::string& model_digest) const;
};

// As read_recipe.
RlRecipe read_rl_recipe(const std::string& path);

}  // namespace invar::rl
