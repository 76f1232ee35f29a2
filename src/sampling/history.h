// Which tokens a sequence holds so far: what penalties depend on. A plain value, so that a draft
// branch copies its parent's and goes on alone.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace invar {

class TokenHistory {
 public:
  struct Entry {
    int32_t token;
    int32_t generated;  // times in the answer; 0: only in the prompt
    bool operator==(const Entry&) const = default;
  };

  TokenHistory() = default;
  explicit TokenHistory(std::span<const int32_t> prompt);

  // The answer grows by one token.
  void push(int32_t token);

  // Distinct tokens, ascending.
  std::span<const Entry> entries() const { return entries_; }
  bool operator==(const TokenHistory&) const = default;

 private:
  std::vector<Entry> entries_;
};

}  // namespace invar
