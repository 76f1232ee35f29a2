#include "sampling/constraint.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/error.h"

namespace invar {

TokenTable::TokenTable(const std::vector<std::string>& bytes) : place_of_(bytes.size(), -1) {
  for (size_t id = 0; id < bytes.size(); ++id)
    if (!bytes[id].empty()) entries_.push_back({bytes[id], static_cast<int32_t>(id), 0});
  std::sort(entries_.begin(), entries_.end(), [](const Entry& a, const Entry& b) {
    return a.bytes < b.bytes || (a.bytes == b.bytes && a.token < b.token);
  });
  for (size_t i = 0; i < entries_.size(); ++i) {
    Entry& entry = entries_[i];
    place_of_[entry.token] = static_cast<int32_t>(i);
    longest_ = std::max(longest_, entry.bytes.size());
    if (i == 0) continue;
    const std::string& before = entries_[i - 1].bytes;
    const auto end =
        std::mismatch(entry.bytes.begin(), entry.bytes.end(), before.begin(), before.end());
    entry.shared = static_cast<int32_t>(end.first - entry.bytes.begin());
  }
}

std::span<const uint8_t> TokenTable::bytes_of(int32_t token) const {
  if (token < 0 || static_cast<size_t>(token) >= place_of_.size() || place_of_[token] < 0)
    return {};
  const std::string& bytes = entries_[place_of_[token]].bytes;
  return {reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()};
}

Constraint::Constraint(grammar::Nfa language, std::shared_ptr<const TokenTable> tokens)
    : language_(std::move(language)), tokens_(std::move(tokens)) {
  CHECK(language_.accepting() >= 0, "a language has an end");
  path_.resize(tokens_->longest() + 1);
  Set set{language_.start()};
  close(set);
  add(std::move(set));
}

// Adds what empty edges lead to; keeps only states that read a byte or end.
void Constraint::close(Set& set) const {
  std::vector<bool> seen(language_.size());
  Set open = std::move(set);
  set.clear();
  for (const auto state : open) seen[state] = true;
  while (!open.empty()) {
    const auto state = open.back();
    open.pop_back();
    if (!language_.edges(state).empty() || state == language_.accepting()) set.push_back(state);
    for (const auto to : language_.empty_edges(state))
      if (!seen[to]) {
        seen[to] = true;
        open.push_back(to);
      }
  }
  std::sort(set.begin(), set.end());
}

Constraint::State Constraint::add(Set set) {
  if (set.empty()) return kDead;
  const auto [at, is_new] = known_.try_emplace(set, static_cast<State>(states_.size()));
  if (!is_new) return at->second;
  Node node;
  node.accepts = std::binary_search(set.begin(), set.end(), language_.accepting());
  node.goes_on = std::any_of(set.begin(), set.end(),
                             [&](const auto state) { return !language_.edges(state).empty(); });
  node.set = std::move(set);
  states_.push_back(std::move(node));
  return static_cast<State>(states_.size()) - 1;
}

Constraint::State Constraint::step(State state, uint8_t byte) {
  if (states_[state].next.empty()) states_[state].next.assign(256, kUnknown);
  const State known = states_[state].next[byte];
  if (known != kUnknown) return known;
  Set set;
  for (const auto from : states_[state].set)
    for (const auto& edge : language_.edges(from))
      if (byte >= edge.low && byte <= edge.high) set.push_back(edge.to);
  if (!set.empty()) close(set);
  const State to = add(std::move(set));
  states_[state].next[byte] = to;
  return to;
}

Constraint::State Constraint::next(State state, int32_t token) {
  const std::span<const uint8_t> bytes = tokens_->bytes_of(token);
  if (bytes.empty()) return kDead;
  for (const uint8_t byte : bytes)
    if ((state = step(state, byte)) == kDead) break;
  return state;
}

const Constraint::Mask& Constraint::mask(State state) {
  if (const auto known = masks_.find(state); known != masks_.end()) return known->second;
  if (masks_.size() >= kMaxMasks) masks_.clear();
  Mask mask{.tokens = std::vector<uint64_t>((tokens_->vocab() + 63) / 64)};
  ++walks_;
  // path_[i]: behind i bytes of the last token that was walked, of which `alive` could be read.
  path_[0] = state;
  int32_t alive = 0;
  for (const TokenTable::Entry& entry : tokens_->entries()) {
    if (entry.shared > alive) continue;  // it begins with what could not be read
    const int32_t size = static_cast<int32_t>(entry.bytes.size());
    for (alive = entry.shared; alive < size; ++alive) {
      const State to = step(path_[alive], static_cast<uint8_t>(entry.bytes[alive]));
      path_[alive + 1] = to;
      if (to == kDead) break;
      mask.reach += std::exchange(states_[to].walk, walks_) != walks_;
      if (mask.reach > kMaxStates)
        fail("the grammar has more than {} states behind one token", kMaxStates);
    }
    if (alive == size) mask.tokens[entry.token / 64] |= uint64_t{1} << (entry.token % 64);
  }
  return masks_.emplace(state, std::move(mask)).first->second;
}

void ConstraintTally::add(Constraint& constraint, Constraint::State state) {
  if (!asked_.insert(state).second) return;
  reach_ += constraint.reach(state);
  if (reach_ > Constraint::kMaxStates)
    fail("the grammar has more than {} states along this answer", Constraint::kMaxStates);
}

}  // namespace invar
