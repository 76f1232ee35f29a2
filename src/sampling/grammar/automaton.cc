#include "sampling/grammar/automaton.h"

namespace invar::grammar {

Automaton::State Automaton::add(const Stacks::Set& set) {
  if (set.empty()) return kDead;
  const auto [state, is_new] = sets_.add(set);
  if (is_new) edges_.resize(edges_.size() + classes());
  return state;
}

const Automaton::Edge& Automaton::edge(State from, uint8_t byte) {
  const size_t number = edge_number(from, byte);
  if (edges_[number].to != kUnknown) return edges_[number];
  const auto set = sets_[from];
  Edge found{kDead, static_cast<int32_t>(set.size())};
  if (const Stacks::Set open = stacks_.advance(set, byte); !open.empty()) {
    const auto [known, is_new] = opens_.add(open);
    if (is_new) closed_.emplace_back();
    Edge& closed = closed_[static_cast<size_t>(known)];
    if (closed.to == kUnknown) {
      int64_t cost = 0;
      closed.to = add(stacks_.closure(open, cost));
      closed.cost = static_cast<int32_t>(cost);
      work_ += cost;
    }
    found.to = closed.to;
    found.cost += closed.cost;
  }
  work_ += std::ssize(set);
  return edges_[number] = found;
}

size_t Automaton::bytes() const {
  return stacks_.bytes() + sets_.bytes() + opens_.bytes() +
         sizeof(Edge) * (edges_.capacity() + closed_.capacity());
}

void Automaton::clear() {
  stacks_.clear();
  sets_.clear();
  opens_.clear();
  edges_ = std::vector<Edge>();
  closed_ = std::vector<Edge>();
}

}  // namespace invar::grammar
