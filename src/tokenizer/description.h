// The contents of a tokenizer's files, whatever their format: the readers fill it, Tokenizer is
// built from it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tokenizer/added_tokens.h"
#include "tokenizer/bpe.h"
#include "tokenizer/normalizer.h"
#include "tokenizer/pre_tokenizer.h"

namespace invar::tokenizer {

// Ids beyond this are refused: tables are as long as the largest id.
inline constexpr int32_t kMaxVocabulary = 1 << 20;

// U+2581 stands for a space in vocabularies of SentencePiece.
inline constexpr const char* kSpaceMark = "\xe2\x96\x81";

// How ids become text. Each token stands for bytes of its own; only the beginning of the text is
// special.
struct DecoderRules {
  bool byte_level = false;        // tokens are spelled byte by byte (byte_level.h)
  std::vector<Replace> replace;   // on each token
  bool byte_fallback = false;     // "<0x41>" is one byte
  int leading_spaces = 0;         // so many are taken off the beginning of the text
  bool bare_first_token = false;  // all spaces are taken out of the first token (Metaspace)
};

// The ids that stand around and between those of a pair of texts.
struct PairRules {
  std::vector<int32_t> prefix, middle, suffix;
};

struct Description {
  std::vector<std::string>
      tokens;  // the model's vocabulary by id, as spelled in the file; "" where there is none
  std::vector<Merge> merges;
  bool byte_level = false;  // words are spelled byte by byte (byte_level.h)
  bool byte_fallback = false;
  bool fuse_unk = false;
  bool ignore_merges = false;
  int32_t unk_id = -1;

  std::vector<AddedToken> added_tokens;  // their ids may lie inside or behind the vocabulary
  std::vector<NormalizerStep> normalizer;
  std::vector<PreTokenizerStep> pre_tokenizer;
  std::vector<int32_t> prefix, suffix;  // added around the ids of a text
  PairRules pair;                       // the same of two texts
  DecoderRules decoder;

  int32_t bos_id = -1, eos_id = -1;
  std::string missing;  // why there is no text; empty: there is

  // From tokenizer.model, which knows nothing of templates: tokenizer_config.json has more to say.
  bool from_sentencepiece = false;
};

}  // namespace invar::tokenizer
