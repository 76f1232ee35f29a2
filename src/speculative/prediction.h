// How much of an answer its request predicted (OpenAI's `prediction`): a function of the two alone,
// whatever was drafted and accepted on the way.
//
// The prediction is read along the answer: behind the longest end of the answer that occurs in it
// (first occurrence), the next token is expected; before the answer has begun, its first one. A
// sampled token that was expected is accepted. The same rule drafts (suffix_lookup.h).
#pragma once

#include <memory>

#include "speculative/suffix_automaton.h"

namespace invar {

class Prediction {
 public:
  // Copies are cheap: each reads another answer.
  explicit Prediction(std::span<const int32_t> tokens);

  // The tokens that are expected next, in order: at most `most`.
  std::span<const int32_t> next(int32_t most) const;
  // Tokens at the answer's end that occur in the prediction; before it has begun, all of it does.
  int32_t match_length() const { return at_ < 0 ? 0 : match_.length; }
  // The answer goes on with this token.
  void take(int32_t token);

  // Tokens of the answer that were expected, and tokens of the prediction beyond as many.
  int64_t accepted() const { return accepted_; }
  int64_t rejected() const;

 private:
  std::shared_ptr<const SuffixAutomaton> automaton_;  // that copies share
  SuffixAutomaton::Match match_;
  int32_t at_ = 0;  // where the next token is expected; -1: nowhere
  int64_t accepted_ = 0;
};

}  // namespace invar
