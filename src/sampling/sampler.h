// Chooses the next token of one row of logits (numerics 6).
//
// In this order: tokens that a grammar, allowed_token_ids, bad_words or min_tokens forbids are
// excluded; logit bias; penalties; temperature; min-p, top-k, top-p exclude the unlikely; the token
// sampled is the one with the largest sum of logit and Gumbel noise, which is a sample from the
// softmax of what is left. Ties go to the lower id. The noise depends on (seed, position, choice,
// token) alone.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "numerics/noise.h"
#include "sampling/history.h"
#include "sampling/params.h"
#include "sampling/row.h"

namespace invar {

struct SampleInput {
  std::span<const float> logits;           // [V]
  const SamplingParams* params = nullptr;  // as `checked` returned them
  int32_t position = 0;                    // of the token sampled
  int32_t choice = 0;                      // which of the n answers
  int32_t generated = 0;                   // tokens of the answer so far
  const TokenHistory* history = nullptr;   // not null when params->has_penalties()
  std::span<const int32_t> answer;         // its tokens so far, for params->bad_words
  std::span<const uint64_t> allowed;       // bit i of word i / 64: token i may come; empty: all may
  // A DeviceSampler gives these beside the token: log-probabilities of the token and of this many
  // most likely ones, as params->logprobs_mode says, and the hash of the position.
  std::optional<int32_t> logprobs = {};
  bool wants_hash = false;
  // The token is this one, of a prompt: only the others are wanted. Rules that look at an answer so
  // far (grammar, penalties, bad words, min_tokens) change nothing.
  int32_t given = -1;

  bool looks_back() const { return given < 0; }
};

struct Sampled {
  int32_t token = -1;
  const char* error = nullptr;  // when there is no token: a sentence
};

// Gives the bits of the definition (numerics 6, tests/sampling/sample_reference.h), fast. One
// object per thread; allocates only for a larger vocabulary than before.
class Sampler {
 public:
  // Expects flush-to-zero mode.
  Sampled sample(const SampleInput& input);

  // Makes the processed row alone. Returns why there is none, a sentence, or null.
  const char* process(const SampleInput& input);
  // The same without filters: the row after the temperature.
  const char* scale(const SampleInput& input);
  // The row that sample_reference calls processed, or the one that `scale` made; valid until the
  // next row.
  LogitRow& processed() { return row_; }
  // A sample of the processed row with this noise. REQUIRES: some token is not excluded.
  int32_t sample(const NoiseKey& key) const;

 private:
  bool prepare(const SampleInput& input);
  void edit(const SampleInput& input);
  void exclude(const SampleInput& input);
  void apply_min_p(float min_p);
  void apply_top_p(double top_p);

  LogitRow row_;
  std::vector<uint64_t> bucket_weights_;  // of top-p
  std::vector<Ranked> edge_tokens_;
};

namespace sampling {

// Parts of the definition that both implementations use.

// The weight of a token in top-p, for its distance below the largest logit.
inline uint64_t top_p_weight(float below_max) {
  return static_cast<uint64_t>(math::exp(below_max) * 0x1p40f);
}
// Whether the next token, were it the word's last one, would complete the word: the answer ends
// with the tokens before it.
inline bool is_begun(std::span<const int32_t> word, std::span<const int32_t> answer) {
  const size_t before = word.size() - 1;
  return answer.size() >= before &&
         std::equal(word.begin(), word.end() - 1, answer.end() - static_cast<int64_t>(before));
}
inline float repetition_penalised(float x, float penalty) {
  return x > 0.0f ? x / penalty : x * penalty;
}
inline float count_penalised(float x, int32_t generated, const SamplingParams& p) {
  if (generated == 0) return x;
  x = x - static_cast<float>(p.frequency_penalty) * static_cast<float>(generated);
  return x - static_cast<float>(p.presence_penalty);
}

inline constexpr const char* kNotANumber = "the model's logits are not numbers";
inline constexpr const char* kNothingAllowed = "no token is allowed here";

}  // namespace sampling

}  // namespace invar
