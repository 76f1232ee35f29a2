// The rollout of a step, and the rows whose cross-entropy is the policy's loss of it.
#pragma once

#include <span>
#include <vector>

#include "train/rl/packing.h"
#include "train/rl/policy.h"
#include "train/rl/problems.h"
#include "train/rl/rollouts.h"

namespace invar::rl {

// Problems and the answers to each, those to one problem side by side.
struct Rollout {
  std::vector<Problem> problems;
  std::vector<std::vector<int32_t>> prompts;  // one per problem
  std::vector<Answer> answers;
  std::vector<double> rewards;  // one per answer
  size_t answers_each = 1;

  const std::vector<int32_t>& prompt_of(size_t answer) const {
    return prompts[answer / answers_each];
  }
};

// A trainer's judgement of each answer's tokens.
struct TokenScores {
  std::vector<std::vector<float>> log_probabilities;  // of each token
  double entropy = 0;                                 // mean over the sampled tokens
};

std::vector<double> advantages_of(const Rollout& rollout, Method method);

// The rollout from which a step learns.
struct Lesson {
  const Rollout& rollout;
  const TokenScores& scores;     // of the trainer now
  const TokenScores* reference;  // of the first weights, or null
  std::vector<double> advantages;
  double most_tokens;  // that an answer may have

  // Answers that teach something; one at least, since the optimizer's step is one all the same.
  std::vector<size_t> chosen() const;
};

// Gives the rows of those answers the weights that are the policy's loss.
void weigh(const Lesson& lesson, const PolicyOptions& policy, std::span<const size_t> chosen,
           PackedAnswers& rows);

}  // namespace invar::rl
