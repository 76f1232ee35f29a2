// Answers that a policy samples to learn from: by the engine of an instance, in this process, with
// its scheduler, batches, blocks and sampling.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "session/instance.h"

namespace invar::rl {

// One request of a rollout.
struct Question {
  std::vector<int32_t> prompt;
  uint64_t seed = 0;
  int32_t choice = 0;  // which of the answers to one prompt
  bool routed_experts = false;
};

struct Answer {
  std::vector<int32_t> tokens;           // with the end-of-sequence token when `ended`
  std::vector<float> log_probabilities;  // of the tokens, as the sampling code returned them
  bool ended = false;                    // by itself, not by its length
  // Where the question asked: the experts of every token of both but the last, [.][layers][chosen].
  std::vector<int16_t> routed_experts = {};
};

// Of all answers so far.
struct DraftCounts {
  int64_t tokens = 0, accepted = 0;
};

class Rollouts {
 public:
  // Answers have at most `max_tokens` tokens, and end with one of `ends`. Where something drafts
  // they are decoded along its drafts, and are the same.
  Rollouts(const InstanceOptions& options, int max_tokens, std::vector<int32_t> ends);

  const Model& model() { return instance_.model(); }
  // For tests: what a hand-over is made of.
  Engine& engine() { return instance_.engine(); }

  // Hands over the weights of the model that is trained; see Engine::take_weights.
  void take_weights(const TensorSource& weights) { engine().take_weights(weights); }
  // Answers at temperature 1 without filters: samples of the model itself. Throws Error naming
  // `step` and the question when one cannot be answered.
  std::vector<Answer> answer(std::span<const Question> questions, int64_t step);
  const DraftCounts& drafts() const { return drafts_; }

 private:
  Instance instance_;
  int max_tokens_;
  std::vector<int32_t> ends_;
  DraftCounts drafts_;
};

}  // namespace invar::rl
