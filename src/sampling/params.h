// How the next token of a request is chosen: names, defaults and limits are vLLM's.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "base/field_list.h"
#include "base/shared.h"

namespace invar {

// The likelihood of a token that is shown: of the model's logits, of the row that the token is
// sampled from, or of that row before min-p, top-k and top-p (numerics 6); its log-probability, or
// the value in the row. Names are vLLM's; scaled ones are what SGLang shows.
enum class LogprobsMode : uint8_t {
  raw_logprobs,
  processed_logprobs,
  raw_logits,
  processed_logits,
  scaled_logprobs
};
constexpr int count_of(LogprobsMode) {
  return 5;
}

// Whether the row is one that a sampler made.
constexpr bool is_processed(LogprobsMode mode) {
  return mode != LogprobsMode::raw_logprobs && mode != LogprobsMode::raw_logits;
}
// Whether it is the one before filters.
constexpr bool is_scaled(LogprobsMode mode) {
  return mode == LogprobsMode::scaled_logprobs;
}
constexpr bool is_logits(LogprobsMode mode) {
  return mode == LogprobsMode::raw_logits || mode == LogprobsMode::processed_logits;
}
const char* name_of(LogprobsMode mode);
// Throws UsageError for another name.
LogprobsMode logprobs_mode_of(std::string_view name);

struct SamplingParams {
  int32_t n = 1;             // answers to one prompt; answer i samples with choice index i
  double temperature = 1.0;  // 0: the largest logit
  double top_p = 1.0;        // 1: off
  int32_t top_k = 0;         // 0 or -1: off
  double min_p = 0.0;        // 0: off
  double repetition_penalty = 1.0;
  double presence_penalty = 0.0;
  double frequency_penalty = 0.0;
  Shared<std::vector<std::pair<int32_t, double>>> logit_bias;  // (token, what is added), ascending
  int32_t max_tokens = 16;
  int32_t min_tokens = 0;  // no end of sequence and no stop token before this many
  Shared<std::vector<int32_t>> stop_token_ids;          // each ends the answer; ascending
  Shared<std::vector<int32_t>> allowed_token_ids;       // no others come; ascending; empty: all may
  Shared<std::vector<std::vector<int32_t>>> bad_words;  // none comes in the answer as these tokens
  bool ignore_eos = false;  // else the model's ends of sequence are stop tokens too
  uint64_t seed = 0;
  std::optional<int32_t> logprobs;         // this many most likely tokens beside the chosen one
  std::optional<int32_t> prompt_logprobs;  // the same for each prompt token
  LogprobsMode logprobs_mode = LogprobsMode::raw_logprobs;

  bool is_greedy() const { return temperature == 0.0; }
  bool has_penalties() const {
    return repetition_penalty != 1.0 || presence_penalty != 0.0 || frequency_penalty != 0.0;
  }
  bool has_filters() const { return top_k > 0 || top_p < 1.0 || min_p > 0.0; }
  // Whether tokens are excluded for being what they are.
  bool has_exclusions() const { return !allowed_token_ids.empty() || !bad_words.empty(); }
  bool operator==(const SamplingParams&) const = default;
};

// Every field, in the order in which receipts show them. Bodies, ranges, the journal, receipts,
// flags, defaults and the libraries are made from this list. A new field is a member above, a row
// here with the next version as `since`, a member of GenerateOptions (include/invar/invar.h) with
// its name, and the code that it changes.
template <>
inline constexpr std::tuple kFieldsOf<SamplingParams>{
    Field("n", &SamplingParams::n, {.low = 1, .high = 128}),
    Field("temperature", &SamplingParams::temperature,
          {.low = 0, .high = 1e4, .of_model = true, .flag = "Sampling temperature; 0 is greedy"}),
    Field("top_p", &SamplingParams::top_p,
          {.of_model = true,
           .flag = "Sample from the most likely tokens whose probabilities sum to P"}),
    Field("top_k", &SamplingParams::top_k,
          {.low = -1, .of_model = true, .flag = "Sample from the K most likely tokens; 0 is off"}),
    Field("min_p", &SamplingParams::min_p,
          {.low = 0,
           .high = 1,
           .of_model = true,
           .flag = "Sample from tokens at least this likely, relative to the most likely one"}),
    // By a smaller one a logit could be divided into infinity, or by zero: subnormals are flushed.
    Field("repetition_penalty", &SamplingParams::repetition_penalty,
          {.low = 1e-4,
           .high = 1e4,
           .of_model = true,
           .flag = "Above 1: discourage tokens of the prompt and the answer"}),
    Field("presence_penalty", &SamplingParams::presence_penalty,
          {.low = -2, .high = 2, .flag = "Above 0: discourage tokens of the answer"}),
    Field("frequency_penalty", &SamplingParams::frequency_penalty,
          {.low = -2,
           .high = 2,
           .flag = "Above 0: discourage tokens by how often the answer has them"}),
    Field("logit_bias", &SamplingParams::logit_bias),
    Field("max_tokens", &SamplingParams::max_tokens,
          {.low = 1, .in_body = false, .flag = "Most tokens of an answer"}),
    Field("min_tokens", &SamplingParams::min_tokens,
          {.low = 0, .flag = "Least tokens before an end of sequence"}),
    Field("stop_token_ids", &SamplingParams::stop_token_ids, {.in_body = false}),
    Field("allowed_token_ids", &SamplingParams::allowed_token_ids, {.since = 2}),
    Field("bad_words", &SamplingParams::bad_words, {.since = 2}),
    Field("ignore_eos", &SamplingParams::ignore_eos),
    Field("seed", &SamplingParams::seed, {.flag = "Seed of the sampling"}),
    Field("logprobs", &SamplingParams::logprobs, {.in_body = false, .in_receipts = false}),
    Field("prompt_logprobs", &SamplingParams::prompt_logprobs,
          {.in_body = false, .in_receipts = false}),
    Field("logprobs_mode", &SamplingParams::logprobs_mode,
          {.in_body = false, .in_receipts = false, .since = 3}),
};

// max_tokens where a request does not say it: `most`, or what its prompt leaves of the context if
// that is less. One at least, so that a prompt that leaves nothing is refused by its own size.
int32_t length_that_fits(int32_t most, size_t prompt, int32_t context);

// Sets max_tokens so. Throws UsageError where min_tokens are more than that.
void fit_length(SamplingParams& params, size_t prompt, int32_t context);

// Whether a token is a stop token of checked parameters, whose stop tokens ascend.
bool is_stop(const SamplingParams& params, int32_t token);

// Checks every field against a vocabulary of `vocab` tokens and returns the parameters in their one
// form: a temperature below 1e-5 is 0 and, as in vLLM, any other below 0.01 is 0.01; top_k -1 is 0;
// lists of tokens are sorted, biases cut to [-100, 100]; greedy sampling has no other
// filters. Throws UsageError.
SamplingParams checked(SamplingParams params, int32_t vocab);

}  // namespace invar
