#include "speculative/suffix_automaton.h"

namespace invar {

namespace {

constexpr uint64_t edge(int32_t state, int32_t token) {
  return uint64_t{static_cast<uint32_t>(state)} << 32 | static_cast<uint32_t>(token);
}

}  // namespace

SuffixAutomaton::SuffixAutomaton() : states_(1) {}

int32_t SuffixAutomaton::target(int32_t state, int32_t token) const {
  const auto found = targets_.find(edge(state, token));
  return found == targets_.end() ? -1 : found->second;
}

void SuffixAutomaton::connect(int32_t from, int32_t token, int32_t to) {
  if (targets_.insert_or_assign(edge(from, token), to).second) states_[from].edges.push_back(token);
}

int32_t SuffixAutomaton::add_state(State state) {
  states_.push_back(std::move(state));
  return static_cast<int32_t>(states_.size()) - 1;
}

void SuffixAutomaton::append(int32_t token) {
  tokens_.push_back(token);
  const int32_t size = static_cast<int32_t>(tokens_.size());
  const int32_t whole = add_state({.length = size, .first_end = size});
  int32_t from = last_;
  for (; from >= 0 && target(from, token) < 0; from = states_[from].link)
    connect(from, token, whole);
  last_ = whole;
  if (from < 0) {
    states_[whole].link = 0;
    return;
  }
  const int32_t to = target(from, token);
  states_[whole].link =
      states_[to].length == states_[from].length + 1 ? to : split(from, token, to);
}

// `to` holds texts that end here and longer ones that do not: the former get a state of their own.
int32_t SuffixAutomaton::split(int32_t from, int32_t token, int32_t to) {
  const int32_t shorter = add_state({.length = states_[from].length + 1,
                                     .link = states_[to].link,
                                     .first_end = states_[to].first_end});
  for (const int32_t next : std::vector(states_[to].edges))
    connect(shorter, next, target(to, next));
  states_[to].link = shorter;
  for (; from >= 0 && target(from, token) == to; from = states_[from].link)
    connect(from, token, shorter);
  return shorter;
}

void SuffixAutomaton::follow(Match& match, int32_t token) const {
  int32_t next = target(match.state, token);
  while (next < 0 && match.state > 0) {
    match.state = states_[match.state].link;
    match.length = states_[match.state].length;
    next = target(match.state, token);
  }
  if (next < 0) {
    match = {};
    return;
  }
  match.state = next;
  ++match.length;
}

void SuffixAutomaton::settle(Match& match) const {
  while (match.state > 0 && states_[states_[match.state].link].length >= match.length)
    match.state = states_[match.state].link;
}

}  // namespace invar
