// The texts that a Hugging Face directory of a GGUF file's model would hold beside the weights.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "weights/gguf.h"

namespace invar {

// config.json. Throws Error for an architecture that is not known, and for metadata that is missing
// or that no family can have.
json::Value gguf_config(const GgufFile& file);
// The name that GGUF files have for the architecture of a config.json's model_type. Throws Error
// where they have none that is read here; `where` begins the sentence.
std::string gguf_architecture(std::string_view model_type, std::string_view where);
// generation_config.json: the tokens that end an answer.
json::Value gguf_generation_config(const GgufFile& file);
// tokenizer.json (byte pairs) or tokenizer.model (SentencePiece), and tokenizer_config.json. Throws
// Error for a tokenizer or a pre-tokenizer that is not known.
std::vector<std::pair<std::string, std::string>> gguf_tokenizer_texts(const GgufFile& file);

// How byte pairs cut text before they merge, by GGUF's names.
struct GgufPreTokenizer {
  const char* names;  // apart by spaces
  std::vector<const char*> patterns = {};
  bool splits_digits = false;
  bool has_gpt2_pattern = false;
  bool is_nfc = false;
  bool ignores_merges = false;
  bool adds_bos = false;  // where nothing says so
};
const std::vector<GgufPreTokenizer>& gguf_pre_tokenizers();

}  // namespace invar
