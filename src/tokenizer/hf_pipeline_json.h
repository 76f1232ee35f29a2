// The stages around the model in tokenizer.json: normalizer, pre_tokenizer, decoder. A stage or a
// setting that is not implemented is refused by name.
#pragma once

#include <vector>

#include "tokenizer/description.h"
#include "tokenizer/json_field.h"

namespace invar::tokenizer {

std::vector<NormalizerStep> read_normalizer(const JsonField& field);

struct PreTokenizerRules {
  std::vector<PreTokenizerStep> steps;
  bool byte_level = false;  // a stage spells words byte by byte
  bool spelled = false;     // and others work on the spelling
};
PreTokenizerRules read_pre_tokenizer(const JsonField& field);

DecoderRules read_decoder(const JsonField& field);

}  // namespace invar::tokenizer
