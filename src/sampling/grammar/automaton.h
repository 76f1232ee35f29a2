// Reads a Language byte by byte. A state is a set of stacks, each what is left to read in one way
// to understand the text so far: interned, so that a state is a number that can be copied.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "sampling/grammar/language.h"

namespace invar::grammar {

// Not for several threads at once.
class Automaton {
 public:
  using State = int32_t;
  static constexpr State kDead = -1;
  // Stacks that one step may meet; more is an Error.
  static constexpr size_t kMaxStacks = 50'000;

  // A counter that is further than `horizon` from its ends stays where it is: for texts of at most
  // so many bytes that reads the same, with few states. `language` is finished and outlives this.
  explicit Automaton(const Language& language, int32_t horizon = kEndless);

  State start() { return enter(language_.root()); }
  // Before a text of `expr`; kDead where it has none.
  State enter(Language::Expr expr);
  State step(State state, uint8_t byte);
  // As so many steps, but the states between are not kept.
  State read(State state, std::span<const uint8_t> bytes);
  bool accepts(State state) const { return states_[state].accepts; }
  bool goes_on(State state) const { return states_[state].goes_on; }

  // Stacks that step(from, byte) meets: what it costs, a function of the text and not of what was
  // asked before.
  int64_t cost(State from, uint8_t byte);
  // The state here that is another automaton's of the same language.
  State from(const Automaton& other, State state);
  // Stacks that all steps so far have met.
  int64_t work() const { return work_; }
  // What it keeps, in states and cells of stacks.
  size_t size() const { return states_.size() + cells_.size(); }

 private:
  static constexpr State kUnknown = -2;
  using Stack = int32_t;  // a cell; 0 is the empty stack
  using Set = std::vector<Stack>;
  // What is to be read, and then `rest`.
  struct Cell {
    Language::Expr expr;  // kReturn: a rule ends here
    int32_t a, b;         // the place in a text, sequence or table; counters
    Stack rest;
    bool operator==(const Cell&) const = default;
  };
  static constexpr Language::Expr kReturn = -1;
  struct Hash {
    size_t operator()(const Cell& cell) const;
    size_t operator()(const Set& set) const;
  };
  struct Node {
    Set set;  // stacks that read a byte, or end
    bool accepts = false, goes_on = false;
    std::vector<State> next;  // by byte; empty until it is asked for
  };
  struct Closed {
    State state;
    int64_t cost;
  };

  Stack intern(Cell cell);
  Stack push(Language::Expr expr, Stack rest);
  Stack counted(Language::Expr expr, int32_t low, int32_t high, Stack rest);
  // The limit of a table's characters, where it can matter.
  int32_t limit(const Language::Node& table, int32_t characters) const;
  void expand(Stack stack, Set& open);
  void expand_repeat(const Language::Node& node, Cell cell, Set& open);
  bool fits(Language::Expr expr, Stack rest) const {
    return depths_[rest] + language_.node(expr).depth <= Language::kMaxDepth;
  }
  bool reads(Stack stack) const;
  Set closure(const Set& open, int64_t& cost);
  const Closed& closed(const Set& open);
  Set advance(const Set& set, uint8_t byte);
  Stack advance(const Cell& cell, uint8_t byte);
  State add(Set set);

  const Language& language_;
  const int32_t horizon_;
  std::vector<Cell> cells_;
  std::vector<int32_t> depths_;  // by cell: rules that have not ended below it
  std::vector<int64_t> seen_;    // by cell: the closure that met it last
  int64_t closures_ = 0, work_ = 0;
  std::unordered_map<Cell, Stack, Hash> known_cells_;
  std::vector<Node> states_;
  std::unordered_map<Set, State, Hash> known_;
  std::unordered_map<Set, Closed, Hash> closed_;
};

}  // namespace invar::grammar
