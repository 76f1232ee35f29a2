// A deterministic automaton over bytes, made whole: for what a grammar cannot say by itself, as the
// texts that two languages share.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/function_ref.h"
#include "sampling/grammar/budget.h"

namespace invar::grammar {

struct Table {
  // The cost of a state that is searched and of a step that is found; a stack that is met costs 1.
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
  size_t bytes() const {
    return sizeof(int32_t) * (first.size() + shortest.size()) + sizeof(Edge) * edges.size() +
           accepts.size() / 8;
  }

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
  using Key = std::vector<int32_t>;                           // all of one length
  FunctionRef<std::optional<Key>(const Key&, uint8_t)> step;  // none: nothing goes on
  FunctionRef<bool(const Key&)> accepts;
  FunctionRef<bool(const Key&)> begins;  // whether a byte here begins a character
  FunctionRef<uint8_t(uint8_t)> like;    // the first byte that is read as this one everywhere
};
Table search_table(const Search::Key& start, const Search& search, Budget& budget);

}  // namespace invar::grammar
