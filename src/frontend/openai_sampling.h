// The sampling parameters of a request's body: OpenAI's, and those that vLLM adds.
#pragma once

#include "frontend/body_fields.h"
#include "frontend/openai.h"

namespace invar::openai {

// The fields of a body that say how an answer is sampled.
inline constexpr std::string_view kSamplingFields[] = {"n",
                                                       "max_tokens",
                                                       "min_tokens",
                                                       "ignore_eos",
                                                       "temperature",
                                                       "top_k",
                                                       "top_p",
                                                       "min_p",
                                                       "repetition_penalty",
                                                       "presence_penalty",
                                                       "frequency_penalty",
                                                       "seed",
                                                       "stop",
                                                       "stop_token_ids",
                                                       "include_stop_str_in_output",
                                                       "logit_bias",
                                                       "bad_words",
                                                       "allowed_token_ids",
                                                       "skip_special_tokens",
                                                       "logprobs",
                                                       "prompt_logprobs",
                                                       "structured_outputs",
                                                       "response_format"};

// The seed that a body names; -1 names none, so that one is drawn.
const json::Value* given_seed(const BodyFields& fields);
// Fields that the body does not name stay as they are. Throws UsageError with the field's name.
void read_sampling(const BodyFields& fields, const Context& context, SamplingParams& params);

// The penalty of Ollama and llama.cpp, as the field `repetition_penalty` of `made`. They count the
// last 64 tokens, or `repeat_last_n`; here all are counted, with a warning.
void read_repeat_penalty(const BodyFields& fields, json::Value& made, RequestWarnings& warnings);

// Adds a word's tokens, as vLLM does, and those of the word behind a space where these are as many
// and begin otherwise. Throws UsageError for a word of spaces.
void add_bad_word(std::string_view word, const Tokenizer& tokenizer,
                  std::vector<std::vector<int32_t>>& bad_words);

}  // namespace invar::openai
