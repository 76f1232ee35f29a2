#include "sampling/stop_strings.h"

#include <algorithm>

#include "base/error.h"

namespace invar {

struct StopSet::Automaton {
  // A prefix of some stop string. Those that are one byte longer are its children, linked.
  struct Node {
    State child = 0, sibling = 0;  // 0: none; 0 is the empty prefix
    State shorter = 0;             // its longest end that is a prefix, too
    int32_t length = 0;
    int32_t stop_length = 0;
    char byte = 0;
  };

  State child_of(State node, char byte) const {
    State child = nodes[node].child;
    while (child != 0 && nodes[child].byte != byte) child = nodes[child].sibling;
    return child;
  }
  State next(State state, char byte) const {
    while (true) {
      const State child = child_of(state, byte);
      if (child != 0 || state == 0) return child;
      state = nodes[state].shorter;
    }
  }

  void add(const std::string& stop) {
    State at = 0;
    for (const char byte : stop) {
      State child = child_of(at, byte);
      if (child == 0) {
        child = static_cast<State>(nodes.size());
        nodes.push_back({.sibling = nodes[at].child, .length = nodes[at].length + 1, .byte = byte});
        nodes[at].child = child;
      }
      at = child;
    }
    if (std::exchange(nodes[at].stop_length, nodes[at].length) == 0) strings.push_back(stop);
  }

  // By length, so that what is shorter is done before.
  void link() {
    std::vector<State> order = {0};
    for (size_t i = 0; i < order.size(); ++i) {
      const State parent = order[i];
      for (State node = nodes[parent].child; node != 0; node = nodes[node].sibling) {
        Node& n = nodes[node];
        n.shorter = parent == 0 ? 0 : next(nodes[parent].shorter, n.byte);
        if (n.stop_length == 0) n.stop_length = nodes[n.shorter].stop_length;
        order.push_back(node);
      }
    }
  }

  std::vector<std::string> strings;
  std::vector<Node> nodes = {Node()};
};

StopSet::StopSet(const std::vector<std::string>& stops) {
  if (stops.empty()) return;
  auto automaton = std::make_shared<Automaton>();
  for (const std::string& stop : stops) {
    if (stop.empty())
      fail_usage("expected stop strings of at least one character, found an empty one");
    automaton->add(stop);
  }
  automaton->link();
  automaton_ = std::move(automaton);
}

const std::vector<std::string>& StopSet::strings() const {
  static const std::vector<std::string> none;
  return automaton_ ? automaton_->strings : none;
}

size_t StopSet::memory_bytes() const {
  return automaton_ ? automaton_->nodes.size() * (sizeof(Automaton::Node) + 1) : 0;
}

StopSet::State StopSet::next(State state, char byte) const {
  return automaton_ ? automaton_->next(state, byte) : 0;
}

size_t StopSet::length(State state) const {
  return automaton_ ? static_cast<size_t>(automaton_->nodes[state].length) : 0;
}

size_t StopSet::stop_length(State state) const {
  return automaton_ ? static_cast<size_t>(automaton_->nodes[state].stop_length) : 0;
}

bool StopStrings::push(std::string_view piece, std::string& out, bool counts) {
  const size_t before = held_.size();
  held_ += piece;
  for (size_t at = before; at < held_.size(); ++at) {
    state_ = stops_.next(state_, held_[at]);
    const size_t length = stops_.stop_length(state_);
    if (length == 0 || !counts) continue;
    const size_t end = at + 1, begin = end - length;
    found_ = held_.substr(begin, length);
    out.append(held_, 0, include_ ? end : begin);
    held_.clear();
    state_ = 0;
    return true;
  }
  const size_t shown = held_.size() - stops_.length(state_);
  out.append(held_, 0, shown);
  held_.erase(0, shown);
  return false;
}

void StopStrings::finish(std::string& out) {
  out += held_;
  held_.clear();
}

}  // namespace invar
