// Answers that a policy draws to learn from: by the engine, in this process, with its scheduler,
// batches, blocks and sampling.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/engine.h"

namespace invar::rl {

// One request of a rollout.
struct Question {
  std::vector<int32_t> prompt;
  uint64_t seed = 0;
  int32_t choice = 0;  // which of the answers to one prompt
};

struct Answer {
  std::vector<int32_t> tokens;           // with the end-of-sequence token when `ended`
  std::vector<float> log_probabilities;  // of the tokens, as the sampling code returned them
  bool ended = false;                    // by itself, not by its length
};

class Rollouts {
 public:
  // Answers have at most `max_tokens` tokens, and end with one of `ends`.
  Rollouts(const ModelOptions& model, const EngineOptions& engine, int max_tokens,
           std::vector<int32_t> ends);

  const Model& model() const { return model_; }
  // For tests: what a hand-over is made of.
  Engine& engine() { return engine_; }

  // Hands over the weights of the model that is trained; see Engine::take_weights.
  void take_weights(const TensorSource& weights) { engine_.take_weights(weights); }
  // Answers at temperature 1 without filters: draws from the model itself. Throws Error naming
  // `step` and the question when one cannot be answered.
  std::vector<Answer> answer(std::span<const Question> questions, int64_t step);

 private:
  Model model_;
  Engine engine_;
  int max_tokens_;
  std::vector<int32_t> ends_;
};

}  // namespace invar::rl
