// A deterministic automaton over bytes, made whole: for what a grammar cannot say by itself, as the
// texts that two languages share.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/function_ref.h"

namespace invar::grammar {

struct Table {
  // What a state that is searched and a step that is found cost; a stack that is met costs 1.
  static constexpr int64_t kStateCost = 20, kStepCost = 2;

  struct Edge {
    uint8_t low, high;  // bytes
    bool begins;        // a character: where there is a limit of them, it counts
    int32_t to;
  };
  std::span<const Edge> edges_of(int32_t state) const {
    return std::span(edges).subspan(first[state], first[state + 1] - first[state]);
  }
  size_t size() const { return accepts.size(); }

  // State 0 is the start. From every state an end can be reached; none: nothing is accepted.
  std::vector<int32_t> first;
  std::vector<Edge> edges;  // by state, then by byte
  std::vector<bool> accepts;
  std::vector<int32_t> shortest;  // characters of the shortest way to an end
  int32_t longest_way = 0;        // the greatest of them
};

// The texts and nothing else.
Table table_of_texts(std::span<const std::string> texts);

// Everything that can be reached from `start`.
struct Search {
  using Key = std::vector<int32_t>;
  FunctionRef<std::optional<Key>(const Key&, uint8_t)> step;  // none: nothing goes on
  FunctionRef<bool(const Key&)> accepts;
  FunctionRef<bool(const Key&)> begins;  // whether a byte here begins a character
};
// like[b] is the first byte that is read as b everywhere. Takes what it costs from `budget`; throws
// UsageError when that does not suffice.
Table search_table(const Search::Key& start, std::span<const uint8_t, 256> like,
                   const Search& search, int64_t& budget);

}  // namespace invar::grammar
