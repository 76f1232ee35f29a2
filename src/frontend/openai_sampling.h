// The sampling parameters of a request's body: OpenAI's, and those that vLLM adds.
#pragma once

#include "frontend/body_fields.h"
#include "frontend/openai.h"

namespace invar::openai {

// Whether a field of a body says how an answer is sampled, or how it is made at all.
bool is_sampling_field(std::string_view name);
bool is_answer_field(std::string_view name);

// The seed that a body names; -1 names none, so that one is drawn.
const json::Value* given_seed(const BodyFields& fields);
// Reads the listed fields (base/field_list.h). Those that the body does not name stay as they are.
// Throws UsageError with the field's name.
void read_fields(const BodyFields& fields, const Context& context, invar::Request& answer);

// The penalty of Ollama and llama.cpp, as the field `repetition_penalty` of `made`. They count the
// last 64 tokens, or `repeat_last_n`; here all are counted, with a warning.
void read_repeat_penalty(const BodyFields& fields, json::Value& made, RequestWarnings& warnings);

// Adds a word's tokens, as vLLM does, and those of the word behind a space where these are as many
// and begin otherwise. Throws UsageError for a word of spaces.
void add_bad_word(std::string_view word, const Tokenizer& tokenizer,
                  std::vector<std::vector<int32_t>>& bad_words);

}  // namespace invar::openai
