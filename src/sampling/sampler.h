// From a row of logits to a token: a function of (logits, parameters, seed, position, choice) and
// nothing else (numerics 6).
#pragma once

#include <span>

#include "base/sha256.h"
#include "sampling/params.h"

namespace invar {

struct Drawn {
  int32_t token = 0;
  bool failed = false;  // the row has a NaN
  TokenLogprobs logprobs;
  Digest digest{};  // of the row, when the caller hashes it
};

// What penalties and constraints depend on: a copyable function of the tokens so far.
class TokenHistory {
 public:
  TokenHistory() = default;
  TokenHistory(const SamplingParams&, const std::vector<int32_t>& /*prompt*/, int /*vocab*/) {}
  void add(int32_t /*token*/) {}
};

// One per thread; keeps scratch memory.
class Sampler {
 public:
  // The token at `position` of choice number `choice`.
  Drawn draw(std::span<const float> logits, const SamplingParams& params,
             const TokenHistory& history, int32_t position, int32_t choice);
  // The log-probability of a given token.
  Drawn score(std::span<const float> logits, const SamplingParams& params, int32_t token);
};

}  // namespace invar
