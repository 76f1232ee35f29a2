// A working tokenizer of any size for models with made-up weights.
#pragma once

#include <cstdint>

#include "tokenizer/tokenizer.h"

namespace invar {

struct MadeTokenizer {
  TokenizerTexts texts;
  int32_t bos_id, eos_id, pad_id;
};

// A byte-level BPE with Qwen2's pattern and exactly `vocab_size` tokens: the 256 bytes, merges
// learned from a built-in English text, then pairs of its words, then <|endoftext|>, <|im_start|>
// and <|im_end|>. Any ids decode to English words or parts of them, single bytes apart. The same
// two numbers give the same bytes; `seed` chooses the pairs. Throws UsageError below 259 and above
// 4194304.
MadeTokenizer make_tokenizer(int32_t vocab_size, uint64_t seed);

// The text, for whoever needs a little English.
const char* built_in_text();

}  // namespace invar
