// A language of bytes as a nondeterministic automaton, built from left to right: every function
// goes on from a state and returns the state behind what it added.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "base/function_ref.h"

namespace invar::grammar {

class Nfa {
 public:
  using State = int32_t;
  using CodePoints = std::vector<std::pair<char32_t, char32_t>>;  // ranges, ends included
  struct Edge {
    uint8_t low, high;  // bytes
    State to;
  };
  // What a language may need; more is a UsageError.
  static constexpr State kMaxStates = 200'000;

  Nfa() { add_state(); }
  State start() const { return 0; }

  State add_state();
  void add_empty(State from, State to) { states_[from].empty.push_back(to); }
  State add_bytes(State from, uint8_t low, uint8_t high);
  State add_text(State from, std::string_view bytes);
  // One character of the ranges, as UTF-8.
  State add_character(State from, const CodePoints& ranges);
  // From `low` to `high` times what `add` adds; high below 0: without end.
  State add_repeated(State from, int low, int high, FunctionRef<State(State)> add);
  // One of `count` things.
  State add_choice(State from, size_t count, FunctionRef<State(State, size_t)> add);

  // The end: what leads here is accepted.
  void accept(State state) { accepting_ = state; }
  State accepting() const { return accepting_; }

  size_t size() const { return states_.size(); }
  std::span<const State> empty_edges(State state) const { return states_[state].empty; }
  std::span<const Edge> edges(State state) const { return states_[state].edges; }

 private:
  struct Node {
    std::vector<State> empty;
    std::vector<Edge> edges;
  };
  void add_byte_sequences(State from, State to, char32_t low, char32_t high);

  std::vector<Node> states_;
  State accepting_ = -1;
};

}  // namespace invar::grammar
