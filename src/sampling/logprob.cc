#include "sampling/logprob.h"

namespace invar {

namespace {

// 1 + the number of tokens that are preferred.
int32_t rank_of(std::span<const float> logits, int32_t token) {
  const float value = logits[token];
  int32_t rank = 1;
  for (int32_t i = 0; i < token; ++i) rank += logits[i] >= value;
  for (int32_t i = token + 1; i < std::ssize(logits); ++i) rank += logits[i] > value;
  return rank;
}

}  // namespace

bool LogprobReader::read(std::span<const float> logits, int32_t token, int32_t top,
                         TokenLogprobs& out, bool as_logits) {
  int32_t argmax;
  bool has_nan;
  orders::LogSumExp sum;
  kernels_.log_sum_exp({.logits = logits.data(),
                        .rows = 1,
                        .stride = std::ssize(logits),
                        .vocab = std::ssize(logits),
                        .argmax = &argmax,
                        .max = &sum.max,
                        .log_sum = &sum.log_sum,
                        .has_nan = &has_nan},
                       Execution{});
  if (has_nan) return false;
  if (as_logits) sum = {.max = 0.0f, .log_sum = 0.0f};  // (x - 0) - 0 is x
  out.token = token;
  out.logprob = sum.log_probability(logits[token]);
  out.rank = rank_of(logits, token);
  out.top.clear();
  if (top == 0) return true;
  row_.assign(logits);
  int32_t rank = 0;
  for (const Ranked& next : row_.first(top))
    out.top.push_back({next.token, sum.log_probability(next.value), ++rank});
  return true;
}

std::vector<float> shares_of(std::span<const float> log_probabilities) {
  const ScopedFlushToZero flush;
  const orders::LogSumExp all = orders::log_sum_exp(log_probabilities);
  std::vector<float> shares;
  for (const float one : log_probabilities) shares.push_back(math::exp(all.log_probability(one)));
  return shares;
}

}  // namespace invar
