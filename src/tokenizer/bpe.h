// Byte-pair encoding: words to token ids by merging neighbours, best merge first.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/string_table.h"

namespace invar::tokenizer {

// Two neighbouring tokens become one. Lower ranks go first, among equal ranks the leftmost place.
struct Merge {
  int32_t left = -1, right = -1, result = -1;
  uint32_t rank = 0;
};

// Merges by their pair: open addressing, at most two thirds full.
class MergeTable {
 public:
  static constexpr uint32_t kNone = UINT32_MAX;
  struct Target {
    uint32_t rank = kNone;
    int32_t result = -1;
  };

  explicit MergeTable(const std::vector<Merge>& merges);  // of the same pair the last counts

  Target find(int32_t left, int32_t right) const {
    const uint64_t key = key_of(left, right);
    for (size_t at = slot_of(key);; at = (at + 1) & (slots_.size() - 1)) {
      if (slots_[at].key == key) return slots_[at].target;
      if (slots_[at].key == kEmpty) return {};
    }
  }

 private:
  static constexpr uint64_t kEmpty = UINT64_MAX;
  struct Slot {
    uint64_t key = kEmpty;
    Target target;
  };

  static uint64_t key_of(int32_t left, int32_t right) {
    return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
  }
  size_t slot_of(uint64_t key) const { return key * 0x9e3779b97f4a7c15u >> shift_; }

  std::vector<Slot> slots_;
  int shift_ = 0;
};

// Merges `symbols` in place until no neighbours have a merge. Takes n log n steps at worst.
void merge_all(const MergeTable& table, std::vector<int32_t>& symbols);

// The rules that encode a word. Strings are the bytes that tokens stand for.
struct BpeRules {
  std::vector<std::pair<std::string, int32_t>> tokens;  // that words may become; no string twice
  std::vector<Merge> merges;
  bool by_bytes = true;        // words begin as their bytes; otherwise as their characters
  bool ignore_merges = false;  // a word that is a token is that token, whatever the merges say
  // A character that is no token becomes its bytes, else `unk_id`, else an error.
  std::vector<int32_t> byte_ids;  // empty, or 256 ids (-1 where there is none)
  int32_t unk_id = -1;
  bool fuse_unk = false;  // unknown characters in a row become one unk_id
  // The character that stands for a space in words that hold many (no pre-tokenizer), or empty.
  std::string space_mark;
};

// Immutable once made.
class Bpe {
 public:
  explicit Bpe(BpeRules rules);
  Bpe(const Bpe&) = delete;

  // Appends the ids of valid UTF-8 text that no piece boundary crosses. `symbols` is working
  // memory. Throws UsageError naming the first character that has no token.
  void encode(std::string_view word, std::vector<int32_t>& symbols,
              std::vector<int32_t>& out) const;

 private:
  void encode_uncut(std::string_view word, std::vector<int32_t>& symbols,
                    std::vector<int32_t>& out) const;
  // Sets `symbols` to those the merges begin with; returns where the first character stands that
  // has none, or npos.
  size_t start(std::string_view word, std::vector<int32_t>& symbols) const;
  bool add_known(std::string_view character, std::vector<int32_t>& symbols) const;
  bool may_cut_before_mark() const;

  BpeRules rules_;
  MergeTable table_;
  StringTable characters_;  // tokens of one character
  StringTable whole_;       // words that encode to one token
  size_t longest_ = 0;      // of these words, in bytes
  bool cut_before_mark_ = false;
};

}  // namespace invar::tokenizer
