// Learns the merges of a byte-level BPE from text. The result depends on the counted words alone.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "tokenizer/bpe.h"
#include "tokenizer/regex.h"

namespace invar {

// Qwen2's cut of text into words.
inline constexpr const char* kQwen2Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

struct WordCount {
  std::string word;
  int64_t count = 0;
};

// Counts the words that `pattern` cuts texts into. Text that is not UTF-8 is refused (UsageError).
class WordCounter {
 public:
  explicit WordCounter(std::string_view pattern);
  void add(std::string_view text);
  std::vector<WordCount> counts() const;  // sorted by word

 private:
  tokenizer::Regex pattern_;
  std::unordered_map<std::string, int64_t> counts_;
};

struct TrainedBpe {
  std::vector<std::string> tokens;       // bytes by id: the 256 single bytes, then what merges make
  std::vector<tokenizer::Merge> merges;  // by rank; two merges may make the same token
};

// Merges the most frequent pair of neighbours, among equals the one with the lowest ids, until
// there are `vocab_size` tokens (>= 256) or no pair occurs `min_count` times. Counts are kept up to
// date, not counted anew.
TrainedBpe train_bpe(const std::vector<WordCount>& words, int32_t vocab_size,
                     int64_t min_count = 2);

}  // namespace invar
