// The metadata of a GGUF file for a model that stands in a directory: what gguf_texts.h reads.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "weights/gguf_writer.h"

namespace invar {

// The keys of a config.json in the older spelling. Throws Error for a model_type that no
// architecture of GGUF files has here. Settings that the keys cannot say are left out: a caller
// that needs all of them reads the keys back.
std::vector<GgufKey> gguf_model_keys(const json::Value& config, const std::string& where);

// The keys of the tokenizer's texts (model_texts) beside a config.json; none where there is no
// tokenizer. Tokens are filled up to the vocabulary. Throws Error for a tokenizer that is not one
// of byte pairs with a pre-tokenizer that GGUF has a name for.
std::vector<GgufKey> gguf_tokenizer_keys(const std::map<std::string, std::string>& texts,
                                         const json::Value& config, const std::string& where);

// The values of generation_config.json that requests leave open, also where it names nothing;
// none where it is null.
std::vector<GgufKey> gguf_sampling_keys(const json::Value& generation_config);

}  // namespace invar
