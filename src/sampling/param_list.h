// Every field of SamplingParams, in the order in which receipts show them. Bodies, ranges, the
// journal, receipts, flags, defaults and the libraries are made from this list. A new field is a
// member of SamplingParams, a row here with the next version as `since`, a member of
// GenerateOptions (include/invar/invar.h) with its name, and the code that it changes.
#pragma once

#include "base/field_list.h"
#include "sampling/params.h"

namespace invar {

constexpr int count_of(LogprobsMode) {
  return static_cast<int>(kLastLogprobsMode) + 1;
}

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

}  // namespace invar
