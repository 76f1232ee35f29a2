// Reads a tokenizer as Hugging Face's libraries write it. `file` names the source in errors.
#pragma once

#include <string>
#include <string_view>

#include "tokenizer/description.h"

namespace invar::tokenizer {

// tokenizer.json. Throws Error for anything broken, contradictory or not implemented. `truncation`
// and `padding` are read over: they belong to batches of a training run, and encoding a prompt
// never cuts or fills it.
Description read_tokenizer_json(std::string_view text, const std::string& file);

// special_tokens_map.json or tokenizer_config.json: bos_token and eos_token, added_tokens_decoder,
// and the settings that decide whether begin-of-text is added. Settings in the file replace those
// of `description`; ids never change.
void read_tokenizer_config(std::string_view text, const std::string& file,
                           Description& description);

}  // namespace invar::tokenizer
