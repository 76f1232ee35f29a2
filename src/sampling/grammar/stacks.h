// Where a text of a Language stands: some stacks, each what is left to read in one way to
// understand the text so far.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "sampling/grammar/language.h"
#include "sampling/grammar/list_table.h"

namespace invar::grammar {

// Some stacks by themselves. A value: copied, it goes on alone.
struct Place {
  // The symbol to be read, and then the cell `rest`, which stands before it.
  struct Cell {
    Language::Expr expr;
    int32_t a, b;  // the place in a text, sequence or table; counters
    int32_t rest;
    bool operator==(const Cell&) const = default;
  };
  std::vector<Cell> cells;    // the first is the end of a text
  std::vector<int32_t> tops;  // of stacks that read a byte or are the end; none: nothing goes on
  bool accepts = false, goes_on = false;

  bool is_dead() const { return tops.empty(); }
  bool operator==(const Place&) const = default;
};

// Where stacks are kept, each cell once. Not for several threads at once.
class Stacks {
 public:
  using Stack = int32_t;  // a cell; 0 is the empty stack
  using Set = std::vector<Stack>;
  // Stacks that one byte may meet; more is an Error.
  static constexpr int64_t kMost = 20'000;

  // A counter that is further than `horizon` from its ends stays where it is: for texts of at most
  // so many bytes that reads the same, with few places. `language` is finished and outlives this.
  explicit Stacks(const Language& language, int32_t horizon = kEndless);

  // Before a text of `expr`; empty where it has none. Costs as closure().
  Set enter(Language::Expr expr, int64_t& cost);
  // Stacks behind a byte, before anything on top of them is taken apart.
  Set advance(std::span<const Stack> set, uint8_t byte);
  // Those that read a byte or are the end. Adds the stacks it meets to `cost`: a function of
  // `open` and not of what was asked before.
  Set closure(std::span<const Stack> open, int64_t& cost);
  bool accepts(std::span<const Stack> set) const { return !set.empty() && set.front() == 0; }
  // Whether something may follow.
  bool goes_on(std::span<const Stack> set) const;

  // The stacks of another Stacks of this language.
  Set take(const Place& place);
  Place place(std::span<const Stack> set) const;
  // A number of the stacks that does not depend on what else is kept.
  uint64_t name(std::span<const Stack> set) const;

  size_t bytes() const {
    return cells_.bytes() + depths_.capacity() * (sizeof(int32_t) + sizeof(int64_t));
  }
  void clear();

 private:
  static constexpr Language::Expr kReturn = -1;  // a rule ends here

  using Cell = Place::Cell;

  Cell cell(Stack stack) const;
  Stack intern(Cell cell);
  Stack push(Language::Expr expr, Stack rest);
  Stack counted(Language::Expr expr, int32_t low, int32_t high, Stack rest);
  // The limit of a table's characters, where it can matter.
  int32_t limit(const Language::Node& table, int32_t characters) const;
  bool fits(Language::Expr expr, Stack rest) const {
    return depths_[rest] + language_.node(expr).depth <= Language::kMaxDepth;
  }
  bool reads(Stack stack) const;
  void expand(Stack stack, Set& open);
  void expand_repeat(const Language::Node& node, Cell top, Set& open);
  Stack advance(const Cell& top, uint8_t byte);

  const Language& language_;
  const int32_t horizon_;
  ListTable cells_;
  std::vector<int32_t> depths_;  // by cell: rules that have not ended below it
  std::vector<int64_t> seen_;    // by cell: the closure that met it last
  int64_t closures_ = 0;
};

}  // namespace invar::grammar
