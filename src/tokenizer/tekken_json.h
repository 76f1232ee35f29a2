// Reads tekken.json: Mistral's byte pairs by rank, as tiktoken has them, behind special tokens.
#pragma once

#include <string>
#include <string_view>

#include "tokenizer/description.h"

namespace invar::tokenizer {

// Throws Error naming `file` and the field when it is broken or asks for what is not implemented.
// Texts are encoded with begin-of-text in front; special tokens are found in them as in Hugging
// Face's conversions, for which templates are written.
Description read_tekken_json(std::string_view text, const std::string& file);

}  // namespace invar::tokenizer
