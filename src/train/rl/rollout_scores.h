// Scores of a rollout's answers by the trainer, beside the sampler's.
#pragma once

#include <span>

#include "train/rl/policy_rows.h"
#include "train/rl/rl_run.h"

namespace invar::rl {

class RolloutScores {
 public:
  // `columns`: experts that a token goes through, in all layers. REQUIRES: the recipe outlives
  // this.
  RolloutScores(const RlRecipe& recipe, int64_t columns) : recipe_(recipe), columns_(columns) {}

  // Those answers in rows of the context, with their routes where the recipe replays them.
  PackedAnswers pack(const Rollout& rollout, std::span<const size_t> chosen) const;
  // Counts the sampler's routes that the trainer's routers would not have chosen, in a model with
  // experts.
  void compare_routes(int64_t step, const Rollout& rollout, Trainer& trainer, RlProgress& p) const;
  // The trainer's log-probability of each answer's tokens.
  TokenScores score(const Rollout& rollout, Trainer& trainer) const;
  // Where the sampler is the trained policy they agree to the bit.
  void expect_one_policy(int64_t step, const Rollout& rollout, const TokenScores& scores) const;
  // The sampler beside the trainer.
  Mismatch mismatch(const Rollout& rollout, const TokenScores& scores) const;

 private:
  // Where the answer's first position stands in its row.
  int64_t first_position(const Rollout& rollout, size_t answer,
                         const PackedAnswers::Place& place) const;
  // The sampler's experts of all tokens but the last of each answer, which it did not compute.
  void replay_routes(const Rollout& rollout, std::span<const size_t> chosen,
                     PackedAnswers& packed) const;

  const RlRecipe& recipe_;
  const int64_t columns_;
};

}  // namespace invar::rl
