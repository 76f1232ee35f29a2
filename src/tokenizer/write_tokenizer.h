// Writes a byte-level BPE as the files of a model directory, with Qwen2's pattern and NFC.
#pragma once

#include <string>
#include <vector>

#include "tokenizer/tokenizer.h"
#include "tokenizer/train_bpe.h"

namespace invar {

struct SpecialTokens {
  std::vector<std::string> names;  // ids follow the model's tokens in this order
  std::string bos, eos, pad;       // among the names
  std::string chat_template;
};

TokenizerTexts write_tokenizer(const TrainedBpe& bpe, const SpecialTokens& special);

// <|endoftext|> (begin of text, padding), <|im_start|>, <|im_end|> (end of an answer) and the
// ChatML template.
SpecialTokens chatml_tokens();

}  // namespace invar
