// Reads a Language byte by byte, and remembers what it has found: a set of stacks is a state, a
// number.
#pragma once

#include <cstdint>
#include <vector>

#include "sampling/grammar/byte_classes.h"
#include "sampling/grammar/stacks.h"

namespace invar::grammar {

// Not for several threads at once.
class Automaton {
 public:
  using State = int32_t;
  static constexpr State kDead = -1;

  // `language` is finished and outlives this.
  explicit Automaton(const Language& language, int32_t horizon = kEndless)
      : classes_(language), stacks_(language, horizon) {}

  // Before a text of `expr`; kDead where it has none. Adds what finding it took to `cost`.
  State enter(Language::Expr expr, int64_t& cost) { return add(stacks_.enter(expr, cost)); }
  // The state at a place.
  State at(const Place& place) { return add(stacks_.take(place)); }

  // Where a byte leads, and what finding that out costs: a function of the state and the byte, not
  // of what was asked before.
  struct Edge {
    State to = kUnknown;
    int32_t cost = 0;
  };
  const Edge& edge(State from, uint8_t byte);
  // The cost of all edges that were found: one that is known costs nothing more.
  int64_t work() const { return work_; }
  // A number below classes() * states(): bytes that are nowhere told apart have one.
  size_t edge_number(State from, uint8_t byte) const {
    return static_cast<size_t>(from) * classes() + classes_.class_of[byte];
  }
  size_t classes() const { return static_cast<size_t>(classes_.count); }
  // The first byte of the class of a byte.
  uint8_t like(uint8_t byte) const { return classes_.first[classes_.class_of[byte]]; }
  size_t states() const { return sets_.size(); }

  bool accepts(State state) const { return stacks_.accepts(sets_[state]); }
  // Stacks::name
  uint64_t name(State state) const { return stacks_.name(sets_[state]); }

  size_t bytes() const;
  // Forgets all states.
  void clear();

 private:
  static constexpr State kUnknown = -2;

  State add(const Stacks::Set& set);

  const ByteClasses classes_;
  Stacks stacks_;
  ListTable sets_;            // by state
  std::vector<Edge> edges_;   // by edge_number
  ListTable opens_;           // stacks behind a byte, before they are taken apart
  std::vector<Edge> closed_;  // by number in opens_
  int64_t work_ = 0;
};

}  // namespace invar::grammar
