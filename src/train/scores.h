// The sums over a batch's logits that log-probabilities need.
#pragma once

#include <memory>
#include <vector>

#include "model/decoder.h"
#include "numerics/math.h"

namespace invar {

struct Scores {
  explicit Scores(int max_rows)
      : argmax(static_cast<size_t>(max_rows)),
        max(static_cast<size_t>(max_rows)),
        log_sum(static_cast<size_t>(max_rows)),
        has_nan(std::make_unique<bool[]>(static_cast<size_t>(max_rows))) {}

  // Computes the scores of `count` rows of the decoder's vocabulary, which must stay where they
  // are.
  void compute(Decoder& decoder, const float* rows_of_logits, int64_t count) {
    logits = rows_of_logits;
    rows = count;
    vocab = decoder.spec.vocab;
    decoder.run(decoder.kernels.log_sum_exp, LogitsParams{.logits = logits,
                                                          .rows = rows,
                                                          .stride = vocab,
                                                          .vocab = vocab,
                                                          .argmax = argmax.data(),
                                                          .max = max.data(),
                                                          .log_sum = log_sum.data(),
                                                          .has_nan = has_nan.get()});
  }

  float log_probability(size_t row, int32_t token) const {
    return orders::LogSumExp{max[row], log_sum[row]}.log_probability(logits[row * vocab + token]);
  }

  // In nats; for people, not for weights.
  float entropy(size_t row) const {
    double sum = 0;
    for (int32_t token = 0; token < vocab; ++token) {
      const float x = log_probability(row, token);
      sum -= double{x} * math::exp(x);
    }
    return static_cast<float>(sum);
  }

  const float* logits = nullptr;
  int64_t rows = 0, vocab = 0;
  std::vector<int32_t> argmax;
  std::vector<float> max, log_sum;
  std::unique_ptr<bool[]> has_nan;
};

}  // namespace invar
