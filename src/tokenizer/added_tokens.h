// Tokens that are found in text as they are, before anything is cut or merged.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/function_ref.h"
#include "tokenizer/regex.h"

namespace invar::tokenizer {

struct AddedToken {
  int32_t id = -1;
  std::string content;
  bool single_word = false;  // not beside a letter, mark, digit or underscore
  bool lstrip = false;       // takes the white space before it
  bool rstrip = false;       // takes the white space behind it
  bool normalized = false;   // its normalized content is looked for in normalized text
  bool special = false;      // not part of the answer: skipped in decoding
};

// Finds a set of added tokens: at each place the longest, from left to right.
class AddedTokenFinder {
 public:
  AddedTokenFinder() : nodes_(1) {}

  // `content` is what is looked for, not empty; a content added twice keeps the first token.
  void add(const AddedToken& token, std::string_view content);

  // Calls found(span, id) for each token found and found(span, -1) for the text around them, in
  // order, covering `text` (valid UTF-8). Special tokens count as text unless `parse_special`.
  void find(std::string_view text, bool parse_special,
            FunctionRef<void(Span, int32_t)> found) const;

 private:
  struct Entry {
    int32_t id;
    bool single_word, lstrip, rstrip, special;
  };
  struct Node {  // of the tree of all contents, byte by byte
    int32_t entry = -1;
    std::vector<std::pair<unsigned char, int32_t>> next;
  };
  struct Match {
    uint32_t length = 0;
    int32_t entry = -1;
  };

  Match longest_at(std::string_view text, uint32_t at) const;

  std::vector<Entry> entries_;
  std::vector<Node> nodes_;
  std::array<bool, 256> may_begin_{};
};

}  // namespace invar::tokenizer
