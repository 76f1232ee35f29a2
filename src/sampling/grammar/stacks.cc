#include "sampling/grammar/stacks.h"

#include <algorithm>
#include <unordered_map>

#include "base/error.h"

namespace invar::grammar {

namespace {

using Kind = Language::Kind;
using Cell = Place::Cell;

int32_t less_one(int32_t count) {
  return count == kEndless || count == 0 ? count : count - 1;
}

void sort_unique(std::vector<int32_t>& set) {
  std::sort(set.begin(), set.end());
  set.erase(std::unique(set.begin(), set.end()), set.end());
}

uint64_t mixed(uint64_t hash, uint64_t value) {
  hash = (hash ^ value) * 0x9e3779b97f4a7c15u;
  return hash ^ hash >> 29;
}

}  // namespace

Stacks::Stacks(const Language& language, int32_t horizon) : language_(language), horizon_(horizon) {
  clear();
}

void Stacks::clear() {
  cells_.clear();
  depths_.clear();
  seen_.clear();
  if (depths_.capacity() > 512) {
    depths_.shrink_to_fit();
    seen_.shrink_to_fit();
  }
  const int32_t end[] = {kReturn, 0, 0, -1};
  cells_.add(end);
  depths_.push_back(0);
  seen_.push_back(0);
}

Stacks::Cell Stacks::cell(Stack stack) const {
  const auto numbers = cells_[stack];
  return {numbers[0], numbers[1], numbers[2], numbers[3]};
}

Stacks::Set Stacks::enter(Language::Expr expr, int64_t& cost) {
  const Stack start[] = {fits(expr, 0) ? push(expr, 0) : 0};
  return fits(expr, 0) ? closure(start, cost) : Set();
}

Stacks::Stack Stacks::intern(Cell cell) {
  const int32_t numbers[] = {cell.expr, cell.a, cell.b, cell.rest};
  const auto [stack, is_new] = cells_.add(numbers);
  if (is_new) {
    depths_.push_back(depths_[cell.rest] + (cell.expr == kReturn ? 1 : 0));
    seen_.push_back(0);
  }
  return stack;
}

// Counters in a cell. `low` beyond the horizon is kEndless: it cannot be reached.
Stacks::Stack Stacks::counted(Language::Expr expr, int32_t low, int32_t high, Stack rest) {
  if (low > horizon_) low = kEndless;
  if (low == kEndless || high > horizon_) high = kEndless;
  return intern({expr, low, high, rest});
}

Stacks::Stack Stacks::push(Language::Expr expr, Stack rest) {
  const Language::Node& node = language_.node(expr);
  if (node.kind == Kind::empty) return rest;
  if (node.kind == Kind::repeat) return counted(expr, node.low, node.high, rest);
  if (node.kind == Kind::table) return intern({expr, 0, limit(node, node.high), rest});
  return intern({expr, 0, 0, rest});
}

int32_t Stacks::limit(const Language::Node& table, int32_t characters) const {
  const int64_t near = int64_t{horizon_} + language_.table_of(table).longest_way;
  return characters > near ? kEndless : characters;
}

bool Stacks::reads(Stack stack) const {
  const Language::Expr expr = cell(stack).expr;
  if (expr == kReturn) return stack == 0;  // the end is kept as a stack that accepts
  const Kind kind = language_.node(expr).kind;
  return kind == Kind::text || kind == Kind::bytes || kind == Kind::table;
}

// Adds what may stand on top instead. A choice is left out where it would need more rules within
// one another than there may be; what is pushed always fits, so every stack can be read to its end.
void Stacks::expand(Stack stack, Set& open) {
  if (stack == 0) return;
  const Cell top = cell(stack);
  if (top.expr == kReturn) return open.push_back(top.rest);
  const Language::Node& node = language_.node(top.expr);
  switch (node.kind) {
    case Kind::sequence: {
      const auto parts = language_.children(node);
      const bool is_last = top.a + 1 == node.count;
      const Stack rest = is_last ? top.rest : intern({top.expr, top.a + 1, 0, top.rest});
      return open.push_back(push(parts[top.a], rest));
    }
    case Kind::choice:
      for (const Language::Expr option : language_.children(node))
        if (fits(option, top.rest)) open.push_back(push(option, top.rest));
      return;
    case Kind::repeat:
      return expand_repeat(node, top, open);
    case Kind::rule: {
      // The end of a rule takes its place.
      const bool ends = cell(top.rest).expr == kReturn;
      const Stack rest = ends ? top.rest : intern({kReturn, 0, 0, top.rest});
      return open.push_back(push(language_.body(node), rest));
    }
    case Kind::table:
      if (language_.table_of(node).accepts[top.a]) open.push_back(top.rest);
      return;
    default:
      return;
  }
}

void Stacks::expand_repeat(const Language::Node& node, Cell top, Set& open) {
  if (top.a == 0 || language_.can_be_empty(node.at)) open.push_back(top.rest);
  if (top.b == 0 || !fits(node.at, top.rest)) return;
  const int32_t low = less_one(top.a), high = less_one(top.b);
  const Stack rest = high == 0 ? top.rest : counted(top.expr, low, high, top.rest);
  open.push_back(push(node.at, rest));
}

Stacks::Set Stacks::closure(std::span<const Stack> from, int64_t& cost) {
  ++closures_;
  Set open(from.begin(), from.end()), set;
  int64_t met = 0;
  while (!open.empty()) {
    if (met + std::ssize(open) > kMost)
      fail("it can be understood in more than {} ways at one place", kMost);
    const Stack stack = open.back();
    open.pop_back();
    ++met;
    if (seen_[stack] == closures_) continue;
    seen_[stack] = closures_;
    if (reads(stack)) set.push_back(stack);
    expand(stack, open);
  }
  cost += met;
  std::sort(set.begin(), set.end());
  return set;
}

// The stack behind a byte; -1 where it cannot be read.
Stacks::Stack Stacks::advance(const Cell& top, uint8_t byte) {
  const Language::Node& node = language_.node(top.expr);
  if (node.kind == Kind::bytes) return has(language_.set_of(node), byte) ? top.rest : -1;
  if (node.kind == Kind::text) {
    if (static_cast<uint8_t>(language_.text_of(node)[top.a]) != byte) return -1;
    return top.a + 1 == node.count ? top.rest : intern({top.expr, top.a + 1, 0, top.rest});
  }
  const Table& table = language_.table_of(node);
  const auto edges = table.edges_of(top.a);
  const auto edge =
      std::lower_bound(edges.begin(), edges.end(), byte,
                       [](const Table::Edge& one, uint8_t value) { return one.high < value; });
  if (edge == edges.end() || edge->low > byte) return -1;
  const int32_t left = top.b == kEndless ? top.b : top.b - edge->begins;
  if (table.shortest[edge->to] > left) return -1;
  return intern({top.expr, edge->to, limit(node, left), top.rest});
}

Stacks::Set Stacks::advance(std::span<const Stack> set, uint8_t byte) {
  Set open;
  for (const Stack stack : set) {
    if (stack == 0) continue;
    const Stack to = advance(cell(stack), byte);
    if (to >= 0) open.push_back(to);
  }
  sort_unique(open);
  return open;
}

bool Stacks::goes_on(std::span<const Stack> set) const {
  return std::ranges::any_of(set, [&](Stack stack) {
    if (stack == 0) return false;
    const Cell top = cell(stack);
    const Language::Node& node = language_.node(top.expr);
    return node.kind != Kind::table || !language_.table_of(node).edges_of(top.a).empty();
  });
}

Stacks::Set Stacks::take(const Place& place) {
  std::vector<Stack> here{0};
  for (size_t i = 1; i < place.cells.size(); ++i) {
    const Cell& one = place.cells[i];
    const Stack rest = here[one.rest];
    const Kind kind = one.expr == kReturn ? Kind::empty : language_.node(one.expr).kind;
    if (kind == Kind::repeat)
      here.push_back(counted(one.expr, one.a, one.b, rest));
    else if (kind == Kind::table)
      here.push_back(intern({one.expr, one.a, limit(language_.node(one.expr), one.b), rest}));
    else
      here.push_back(intern({one.expr, one.a, one.b, rest}));
  }
  Set set;
  for (const int32_t top : place.tops) set.push_back(here[top]);
  sort_unique(set);
  return set;
}

// Cells that no top needs stay behind.
Place Stacks::place(std::span<const Stack> set) const {
  Place place{.cells = {cell(0)}, .accepts = accepts(set), .goes_on = goes_on(set)};
  std::unordered_map<Stack, int32_t> there{{0, 0}};
  Set below;
  for (const Stack stack : set) {
    for (Stack at = stack; !there.contains(at); at = cell(at).rest) below.push_back(at);
    for (; !below.empty(); below.pop_back()) {
      Cell one = cell(below.back());
      one.rest = there.at(one.rest);
      there[below.back()] = static_cast<int32_t>(place.cells.size());
      place.cells.push_back(one);
    }
    place.tops.push_back(there.at(stack));
  }
  return place;
}

// A sum, so that the order of the stacks does not matter.
uint64_t Stacks::name(std::span<const Stack> set) const {
  uint64_t sum = set.size();
  for (Stack stack : set) {
    uint64_t hash = 1;
    for (; stack > 0; stack = cell(stack).rest) {
      const Cell one = cell(stack);
      for (const int32_t value : {one.expr, one.a, one.b})
        hash = mixed(hash, static_cast<uint32_t>(value));
    }
    sum += mixed(hash, 0);
  }
  return sum;
}

}  // namespace invar::grammar
