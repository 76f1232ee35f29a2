// Answers that a policy samples to learn from: by the engine of an instance, in this process, with
// its scheduler, batches, blocks and sampling.
#pragma once

#include <algorithm>
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
  // The tokens that an environment said between turns; no policy sampled these. Empty: none.
  std::vector<uint8_t> given = {};
  bool ended = false;  // by itself, not by its length
  // Where the question asked: the experts of every token of both but the last, [.][layers][chosen].
  std::vector<int16_t> routed_experts = {};

  bool is_given(size_t token) const { return !given.empty() && given[token]; }
  int64_t sampled() const {
    return std::ranges::count(given, 0) + (given.empty() ? std::ssize(tokens) : 0);
  }
};

// Counts over all answers so far.
struct DraftCounts {
  int64_t tokens = 0, accepted = 0;
};

class Rollouts {
 public:
  // Answers are drawn as `sampling` says: temperature, filters, which log-probabilities are
  // returned, at most max_tokens tokens, ended by its stop tokens. Where something drafts they are
  // decoded along its drafts, and are the same.
  Rollouts(const InstanceOptions& options, const SamplingParams& sampling);

  const Model& model() { return instance_.model(); }
  // For tests: what a hand-over is made of.
  Engine& engine() { return instance_.engine(); }

  // Hands over the weights of the model that is trained; see Engine::take_weights.
  void take_weights(const TensorSource& weights) { engine().take_weights(weights); }
  // Hands over the adapter that is trained, as PEFT saves it: answers are the model's with it from
  // now on.
  void take_adapter(const std::string& directory);
  // Throws Error naming `step` and the question when one cannot be answered.
  std::vector<Answer> answer(std::span<const Question> questions, int64_t step);
  const DraftCounts& drafts() const { return drafts_; }

 private:
  Instance instance_;
  SamplingParams sampling_;
  std::shared_ptr<const RequestAdapter> adapter_;  // of every answer, or null
  DraftCounts drafts_;
};

}  // namespace invar::rl
