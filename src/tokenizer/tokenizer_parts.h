// The parts of Tokenizer; shared by its two source files.
#pragma once

#include "tokenizer/description.h"
#include "tokenizer/tokenizer.h"

namespace invar {

// Byte strings by number, in one piece of memory.
class StringList {
 public:
  void push_back(std::string_view s) {
    bytes_ += s;
    ends_.push_back(bytes_.size());
  }
  size_t size() const { return ends_.size(); }
  // Empty beyond the list.
  std::string_view operator[](int32_t i) const {
    if (static_cast<size_t>(i) >= ends_.size()) return {};
    const size_t begin = i == 0 ? 0 : ends_[i - 1];
    return std::string_view(bytes_).substr(begin, ends_[i] - begin);
  }

 private:
  std::string bytes_;
  std::vector<size_t> ends_;
};

struct Tokenizer::Parts {
  StringList texts;  // as spelled in the file
  StringList bytes;  // as decoded
  std::vector<bool> special;
  tokenizer::StringTable ids;  // by text; views of `texts`

  tokenizer::AddedTokenFinder raw, normalized;
  std::vector<tokenizer::NormalizerStep> normalizer;
  std::vector<tokenizer::PreTokenizerStep> pre_tokenizer;
  std::optional<tokenizer::Bpe> bpe;
  std::vector<int32_t> prefix, suffix;
  tokenizer::PairRules pair;
  int leading_spaces = 0;
  bool bare_first_token = false;
  int32_t bos_id = -1, eos_id = -1;
  std::string missing;              // Description::missing
  size_t longest_token = SIZE_MAX;  // bytes of a text that one token can stand for
};

}  // namespace invar
