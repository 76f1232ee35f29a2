// Reads tokenizer.model: a SentencePiece model, one protocol-buffer message, of the BPE type.
#pragma once

#include <string>
#include <string_view>

#include "tokenizer/description.h"

namespace invar::tokenizer {

// Throws Error naming `file` and the byte or the field when it is broken or asks for what is not
// implemented (unigram models, a character map, ...). Texts are encoded as Hugging Face's converted
// Llama tokenizers do: begin-of-text in front, and a mark for the space before each section between
// special tokens.
Description read_sentencepiece_model(std::string_view bytes, const std::string& file);

// Where texts get a mark for a space in front.
enum class SpacePrefix { kNone, kFirstSection, kEverySection };
void set_space_prefix(SpacePrefix prefix, Description& description);

}  // namespace invar::tokenizer
