// Parameters of the operations on logits where they lie: they are scaled, tokens are sampled with
// their log-probabilities (numerics 6), and positions are hashed (numerics 8). So logits need not
// reach the host.
#pragma once

#include <cstdint>

namespace invar {

// x = x / divisor, and then, where there is a cap, x = cap * half_tanh((x + x) / cap); in place.
struct ScaleLogitsParams {
  float* x;  // [T][V]
  int64_t rows, stride, width;
  float divisor;
  float cap;  // 0: none
};

// Finds for the sampler the largest logit of each row and its lowest token id, and with `log_sum`
// the second half of orders::log_sum_exp. A row with a NaN gets argmax 0 and NaN for
// the others.
struct LogitsParams {
  const float* logits;  // [T][V]
  int64_t rows, stride, vocab;
  int32_t* argmax;  // [T]
  float* max;       // [T]
  float* log_sum;   // [T], or null when it is not wanted
  bool* has_nan;    // [T]
};

struct TokenBias {
  int32_t token;
  float bias;
};
// A token that has occurred, and how often in the answer.
struct TokenCount {
  int32_t token, generated;
};

// A row's token depends on this beside its logits; parameters are as `checked` returns them.
struct SampledRow {
  uint64_t seed = 0;
  uint32_t position = 0, choice = 0;
  float temperature = 0;  // 0: greedy
  float min_p = 0;        // 0: off
  double top_p = 1;       // 1: off
  int32_t top_k = 0;      // 0: off
  int32_t mask = -1;      // the number of its mask, -1: every token may come
  float repetition_penalty = 1, frequency_penalty = 0, presence_penalty = 0;
  // Its parts of the lists: biases, and the tokens that penalties change.
  int32_t bias_begin = 0, bias_end = 0, count_begin = 0, count_end = 0;
  int32_t given = -1;  // the token of the row, when it is not to be sampled
  // Log-probabilities are wanted, with those of so many most likely tokens; -1: not.
  int32_t top = -1;
  bool of_processed = false;  // log-probabilities of the row after step 5, not of the logits
  bool as_logits = false;     // the values that stand there instead
};

constexpr int32_t kSampledNotANumber = -1, kSampledNothingAllowed = -2;
constexpr int32_t kMostTop = 128;       // SampledRow::top
constexpr int64_t kMostVocab = 400000;  // of a row that a GPU samples

// A row's token, or one of the numbers above; its log-probability and its rank when they are
// wanted.
struct SampledToken {
  int32_t token;
  float logprob;
  int32_t rank;
};
struct TopToken {
  int32_t token;
  float logprob;
};

struct SampleRowsParams {
  const float* logits;  // [T][V]
  int64_t vocab;
  const SampledRow* of;  // [T]
  int64_t rows;
  const uint64_t* masks =
      nullptr;  // [.][ceil(V / 64)]: bit i % 64 of word i / 64, token i may come
  const TokenBias* biases = nullptr;
  const TokenCount* counts = nullptr;
  SampledToken* tokens;     // [T]
  int32_t* ids = nullptr;   // [T]: the same tokens, 0 where there is none, for the next step's rows
  TopToken* top = nullptr;  // [T][kMostTop], the most likely first; null when no row wants them
};

// digests[i] = hash of the position whose logits are row rows[i].
struct HashLogitsParams {
  const float* logits;  // [.][V]
  int64_t vocab;
  const int32_t* rows;
  int64_t count;
  uint8_t* chunks;   // [count][ceil(V / 4096)][32]: room for the digests of chunks
  uint8_t* digests;  // [count][32]
};

}  // namespace invar
