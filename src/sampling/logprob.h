// Log-probabilities of tokens: *raw* ones of the model's logits, *processed* ones of the row that a
// sampler left (numerics 6). One implementation for server and trainer.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/inference.h"
#include "sampling/row.h"

namespace invar {

struct TokenLogprob {
  int32_t token = 0;
  float logprob = 0;  // -inf for an excluded token
  int32_t rank = 0;   // 1: the most likely

  bool operator==(const TokenLogprob&) const = default;
};

// The token at one position, and the most likely ones there.
struct TokenLogprobs : TokenLogprob {
  std::vector<TokenLogprob> top;

  bool operator==(const TokenLogprobs&) const = default;
};

// One object per thread; keeps scratch memory.
class LogprobReader {
 public:
  explicit LogprobReader(const Kernels& kernels) : kernels_(kernels) {}

  // Log-probabilities of `token` and of the `top` most likely tokens of a row, raw or processed;
  // `as_logits`: the values that stand there instead. False when one of them is NaN. Expects
  // flush-to-zero mode.
  bool read(std::span<const float> row, int32_t token, int32_t top, TokenLogprobs& out,
            bool as_logits = false);

 private:
  const Kernels& kernels_;
  LogitRow row_;
};

// exp((l_i - max) - log(sum)) of log-probabilities l_i (numerics 3): the share that each has of
// all. At least one is finite.
std::vector<float> shares_of(std::span<const float> log_probabilities);

}  // namespace invar
