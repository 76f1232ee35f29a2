#include "sampling/grammar/automaton.h"

#include <algorithm>

#include "base/error.h"

namespace invar::grammar {

namespace {

using Kind = Language::Kind;

size_t mixed(size_t hash, uint32_t value) {
  hash = (hash ^ value) * 0x9e3779b97f4a7c15u;
  return hash ^ hash >> 32;
}

int32_t less_one(int32_t count) {
  return count == kEndless || count == 0 ? count : count - 1;
}

}  // namespace

size_t Automaton::Hash::operator()(const Cell& cell) const {
  size_t hash = mixed(1, static_cast<uint32_t>(cell.expr));
  for (const int32_t value : {cell.a, cell.b, cell.rest})
    hash = mixed(hash, static_cast<uint32_t>(value));
  return hash;
}

size_t Automaton::Hash::operator()(const Set& set) const {
  size_t hash = set.size();
  for (const Stack stack : set) hash = mixed(hash, static_cast<uint32_t>(stack));
  return hash;
}

Automaton::Automaton(const Language& language, int32_t horizon)
    : language_(language), horizon_(horizon) {
  cells_.push_back({kReturn, 0, 0, -1});
  depths_.push_back(0);
  seen_.push_back(0);
}

Automaton::State Automaton::enter(Language::Expr expr) {
  return fits(expr, 0) ? closed({push(expr, 0)}).state : kDead;
}

Automaton::Stack Automaton::intern(Cell cell) {
  const auto [at, is_new] = known_cells_.try_emplace(cell, static_cast<Stack>(cells_.size()));
  if (!is_new) return at->second;
  cells_.push_back(cell);
  depths_.push_back(depths_[cell.rest] + (cell.expr == kReturn ? 1 : 0));
  seen_.push_back(0);
  return static_cast<Stack>(cells_.size()) - 1;
}

// Counters in a cell. `low` beyond the horizon is kEndless: it cannot be reached.
Automaton::Stack Automaton::counted(Language::Expr expr, int32_t low, int32_t high, Stack rest) {
  if (low > horizon_) low = kEndless;
  if (low == kEndless || high > horizon_) high = kEndless;
  return intern({expr, low, high, rest});
}

Automaton::Stack Automaton::push(Language::Expr expr, Stack rest) {
  const Language::Node& node = language_.node(expr);
  if (node.kind == Kind::empty) return rest;
  if (node.kind == Kind::repeat) return counted(expr, node.low, node.high, rest);
  if (node.kind == Kind::table) return intern({expr, 0, limit(node, node.high), rest});
  return intern({expr, 0, 0, rest});
}

int32_t Automaton::limit(const Language::Node& table, int32_t characters) const {
  const int64_t near = int64_t{horizon_} + language_.table_of(table).longest_way;
  return characters > near ? kEndless : characters;
}

bool Automaton::reads(Stack stack) const {
  const Cell& cell = cells_[stack];
  if (cell.expr == kReturn) return stack == 0;  // the end is kept as a stack that accepts
  const Kind kind = language_.node(cell.expr).kind;
  return kind == Kind::text || kind == Kind::bytes || kind == Kind::table;
}

// Adds what may stand on top instead. A choice is left out where it would need more rules within
// one another than there may be; what is pushed always fits, so every stack can be read to its end.
void Automaton::expand(Stack stack, Set& open) {
  const Cell cell = cells_[stack];
  if (stack == 0) return;
  if (cell.expr == kReturn) return open.push_back(cell.rest);
  const Language::Node& node = language_.node(cell.expr);
  switch (node.kind) {
    case Kind::sequence: {
      const auto parts = language_.children(node);
      const bool is_last = cell.a + 1 == node.count;
      const Stack rest = is_last ? cell.rest : intern({cell.expr, cell.a + 1, 0, cell.rest});
      return open.push_back(push(parts[cell.a], rest));
    }
    case Kind::choice:
      for (const Language::Expr option : language_.children(node))
        if (fits(option, cell.rest)) open.push_back(push(option, cell.rest));
      return;
    case Kind::repeat:
      return expand_repeat(node, cell, open);
    case Kind::rule: {
      // What a rule ends with takes its place.
      const bool ends = cells_[cell.rest].expr == kReturn;
      const Stack rest = ends ? cell.rest : intern({kReturn, 0, 0, cell.rest});
      return open.push_back(push(language_.body(node), rest));
    }
    case Kind::table:
      if (language_.table_of(node).accepts[cell.a]) open.push_back(cell.rest);
      return;
    default:
      return;
  }
}

void Automaton::expand_repeat(const Language::Node& node, Cell cell, Set& open) {
  if (cell.a == 0 || language_.can_be_empty(node.at)) open.push_back(cell.rest);
  if (cell.b == 0 || !fits(node.at, cell.rest)) return;
  const int32_t low = less_one(cell.a), high = less_one(cell.b);
  const Stack rest = high == 0 ? cell.rest : counted(cell.expr, low, high, cell.rest);
  open.push_back(push(node.at, rest));
}

Automaton::Set Automaton::closure(const Set& from, int64_t& cost) {
  ++closures_;
  Set open = from, set;
  cost = 0;
  while (!open.empty()) {
    const Stack stack = open.back();
    open.pop_back();
    if (seen_[stack] == closures_) continue;
    seen_[stack] = closures_;
    if (++cost > static_cast<int64_t>(kMaxStacks))
      fail("the grammar can be understood in more than {} ways at one place", kMaxStacks);
    if (reads(stack)) set.push_back(stack);
    expand(stack, open);
  }
  work_ += cost;
  std::sort(set.begin(), set.end());
  return set;
}

Automaton::State Automaton::add(Set set) {
  if (set.empty()) return kDead;
  const auto [at, is_new] = known_.try_emplace(set, static_cast<State>(states_.size()));
  if (!is_new) return at->second;
  Node node;
  node.accepts = set.front() == 0;
  for (const Stack stack : set) {
    if (stack == 0) continue;
    const Cell& cell = cells_[stack];
    const Language::Node& top = language_.node(cell.expr);
    node.goes_on |= top.kind != Kind::table || !language_.table_of(top).edges_of(cell.a).empty();
  }
  node.set = std::move(set);
  states_.push_back(std::move(node));
  return static_cast<State>(states_.size()) - 1;
}

const Automaton::Closed& Automaton::closed(const Set& open) {
  if (const auto known = closed_.find(open); known != closed_.end()) return known->second;
  int64_t cost = 0;
  const State state = add(closure(open, cost));
  return closed_.emplace(open, Closed{state, cost}).first->second;
}

// The stack behind a byte; -1 where it cannot be read.
Automaton::Stack Automaton::advance(const Cell& cell, uint8_t byte) {
  const Language::Node& node = language_.node(cell.expr);
  if (node.kind == Kind::bytes) return has(language_.set_of(node), byte) ? cell.rest : -1;
  if (node.kind == Kind::text) {
    if (static_cast<uint8_t>(language_.text_of(node)[cell.a]) != byte) return -1;
    return cell.a + 1 == node.count ? cell.rest : intern({cell.expr, cell.a + 1, 0, cell.rest});
  }
  const Table& table = language_.table_of(node);
  const auto edges = table.edges_of(cell.a);
  const auto edge =
      std::lower_bound(edges.begin(), edges.end(), byte,
                       [](const Table::Edge& one, uint8_t value) { return one.high < value; });
  if (edge == edges.end() || edge->low > byte) return -1;
  const int32_t left = cell.b == kEndless ? cell.b : cell.b - edge->begins;
  if (table.shortest[edge->to] > left) return -1;
  return intern({cell.expr, edge->to, limit(node, left), cell.rest});
}

Automaton::Set Automaton::advance(const Set& set, uint8_t byte) {
  Set open;
  for (const Stack stack : set) {
    if (stack == 0) continue;
    const Stack to = advance(Cell(cells_[stack]), byte);
    if (to >= 0) open.push_back(to);
  }
  std::sort(open.begin(), open.end());
  open.erase(std::unique(open.begin(), open.end()), open.end());
  return open;
}

Automaton::State Automaton::step(State state, uint8_t byte) {
  if (states_[state].next.empty()) states_[state].next.assign(256, kUnknown);
  const State known = states_[state].next[byte];
  if (known != kUnknown) return known;
  const Set open = advance(states_[state].set, byte);
  const State to = open.empty() ? kDead : closed(open).state;
  states_[state].next[byte] = to;
  return to;
}

int64_t Automaton::cost(State from, uint8_t byte) {
  const Set open = advance(states_[from].set, byte);
  return open.empty() ? 0 : closed(open).cost;
}

Automaton::State Automaton::read(State state, std::span<const uint8_t> bytes) {
  Set set = states_[state].set;
  int64_t cost = 0;
  for (const uint8_t byte : bytes) {
    set = closure(advance(set, byte), cost);
    if (set.empty()) return kDead;
  }
  return add(std::move(set));
}

Automaton::State Automaton::from(const Automaton& other, State state) {
  std::unordered_map<Stack, Stack> known{{0, 0}};
  Set set, below;
  for (const Stack stack : other.states_[state].set) {
    for (Stack at = stack; !known.contains(at); at = other.cells_[at].rest) below.push_back(at);
    for (; !below.empty(); below.pop_back()) {
      const Cell& cell = other.cells_[below.back()];
      const Stack rest = known.at(cell.rest);
      Stack& here = known[below.back()];
      const Kind kind = cell.expr == kReturn ? Kind::empty : language_.node(cell.expr).kind;
      if (kind == Kind::repeat)
        here = counted(cell.expr, cell.a, cell.b, rest);
      else if (kind == Kind::table)
        here = intern({cell.expr, cell.a, limit(language_.node(cell.expr), cell.b), rest});
      else
        here = intern({cell.expr, cell.a, cell.b, rest});
    }
    set.push_back(known.at(stack));
  }
  std::sort(set.begin(), set.end());
  set.erase(std::unique(set.begin(), set.end()), set.end());
  return add(std::move(set));
}

}  // namespace invar::grammar
