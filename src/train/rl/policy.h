// From rewards to the loss of a policy: advantages, importance ratios, the weight of each token.
//
// Each loss here has a gradient of the form sum of weight * gradient(-log-probability), so that one
// pass of the trainer's cross-entropy with these weights is its gradient. Methods: REINFORCE with a
// leave-one-out baseline, RLOO (Kool et al. 2019; Ahmadian et al. 2024, arXiv 2402.14740), GRPO
// (Shao et al. 2024, arXiv 2402.03300), Dr. GRPO (Liu et al. 2025, arXiv 2503.20783) and DAPO (Yu
// et al. 2025, arXiv 2503.14476). ratio = exp(trainer's log-probability - sampler's).
#pragma once

#include <span>
#include <string>
#include <vector>

namespace invar::rl {

enum class Method {
  reinforce,  // advantage: reward - mean of the others'; an answer's tokens are added
  grpo,       // advantage: (reward - mean) / deviation; an answer's tokens are averaged
  rloo,       // reinforce by its other name
  dr_grpo,    // advantage: reward - mean; an answer's tokens are added, divided by the most it has
  dapo,       // GRPO's advantage; the tokens of all answers of a step are averaged
};

// How the sampler's being another policy than the trainer's is made up for.
enum class Correction {
  none,       // not at all
  truncated,  // min(ratio, cap), taken as a constant (Yao et al. 2025)
  clipped,    // PPO's: min(ratio * A, clip(ratio, 1 - clip, 1 + clip_high) * A)
};

struct PolicyOptions {
  Method method = Method::reinforce;
  Correction correction = Correction::none;
  double clip = 0.2, clip_high = 0.2;
  double cap = 2.0;
  double reference = 0;  // weight of the KL to the first weights, by k3; 0: none
  int updates = 1;       // steps of the optimizer on the answers of one rollout (PPO's epochs)
};

// The advantages of the answers to one prompt, at least two. Equal rewards have advantages of 0.
// The deviation is the sample's, over n - 1.
std::vector<double> advantages(Method method, std::span<const double> rewards);

// exp(trainer - sampler), exactly 1 where they are equal.
double importance_ratio(float sampler, float trainer);

// The factor of the weights of an answer of `tokens` tokens. `most`: tokens that an answer
// may have; `mean`: that the step's answers have, on average.
double token_share(Method method, double tokens, double most, double mean);

// Weight of a token for its answer's advantage, before the method's average over tokens.
double correction_weight(const PolicyOptions& options, double advantage, double ratio);
// The addition of k3 = exp(d) - 1 - d, where d = reference's - trainer's log-probability.
double reference_weight(const PolicyOptions& options, float reference, float trainer);

}  // namespace invar::rl
