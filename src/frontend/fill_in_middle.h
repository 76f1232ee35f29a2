// Prompts of models that fill in what stands between two texts.
#pragma once

#include <string>
#include <vector>

#include "base/json.h"
#include "frontend/openai.h"
#include "tokenizer/tokenizer.h"

namespace invar {

struct MiddleAsked {
  std::string prefix, suffix;  // of the text whose middle is asked for
  std::string begun;           // what the middle begins with
  struct File {
    std::string name, text;
  };
  std::vector<File> files;  // beside it
};

// Whether the vocabulary has the marks of a prefix, a suffix and the middle.
bool fills_in_middle(const Tokenizer& tokenizer);

// The token ids of the prompt, as a request has them. Files stand before, with the marks of a
// repository where the vocabulary has these, else as text. Throws UsageError for a model that has
// no marks, and PromptTooLong.
json::Value middle_prompt(const openai::Context& context, const MiddleAsked& asked);

}  // namespace invar
