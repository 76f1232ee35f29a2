// The sampling parameters of a request's body: OpenAI's, and those that vLLM adds.
#pragma once

#include "frontend/body_fields.h"
#include "frontend/openai.h"

namespace invar::openai {

// The seed that a body names; -1 names none, so that one is drawn.
const json::Value* given_seed(const BodyFields& fields);
// What the body leaves open stays as it is. Throws UsageError with the field's name.
void read_sampling(const BodyFields& fields, const Context& context, SamplingParams& params);

// The penalty of Ollama and llama.cpp, as the field `repetition_penalty` of `made`. They count the
// last 64 tokens, or `repeat_last_n`; here all are counted, with a warning.
void read_repeat_penalty(const BodyFields& fields, json::Value& made, RequestWarnings& warnings);

// As vLLM does: the word's tokens, and those of the word behind a space where these are as many and
// begin otherwise. Throws UsageError for a word of spaces.
void add_bad_word(std::string_view word, const Tokenizer& tokenizer,
                  std::vector<std::vector<int32_t>>& bad_words);

}  // namespace invar::openai
