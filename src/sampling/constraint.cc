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

Constraint::Constraint(grammar::Language language, std::shared_ptr<const TokenTable> tokens)
    : language_(std::move(language)),
      tokens_(std::move(tokens)),
      exact_(language_),
      near_(language_, static_cast<int32_t>(tokens_->longest())),
      start_(exact_.start()) {
  if (start_ == kDead)
    fail_usage(
        "no answer has the form that is asked for: what it must hold excludes itself, or needs "
        "rules "
        "or references more than {} deep within one another",
        grammar::Language::kMaxDepth);
  path_.resize(tokens_->longest() + 1);
}

Constraint::State Constraint::next(State state, int32_t token) {
  const std::span<const uint8_t> bytes = tokens_->bytes_of(token);
  return bytes.empty() ? kDead : exact_.read(state, bytes);
}

Constraint::State Constraint::near(State state) {
  if (near_of_.size() <= static_cast<size_t>(state)) near_of_.resize(state + 1, kDead);
  if (near_of_[state] == kDead) near_of_[state] = near_.from(exact_, state);
  return near_of_[state];
}

const Constraint::Mask& Constraint::mask(State near) {
  if (const auto known = masks_.find(near); known != masks_.end()) return known->second;
  if (masks_.size() >= kMaxMasks) masks_.clear();
  Mask mask{.tokens = std::vector<uint64_t>((tokens_->vocab() + 63) / 64)};
  ++walks_;
  // path_[i]: behind i bytes of the last token that was walked, of which `alive` could be read.
  path_[0] = near;
  int32_t alive = 0;
  for (const TokenTable::Entry& entry : tokens_->entries()) {
    if (entry.shared > alive) continue;  // it begins with what could not be read
    const int32_t size = static_cast<int32_t>(entry.bytes.size());
    for (alive = entry.shared; alive < size; ++alive) {
      const auto byte = static_cast<uint8_t>(entry.bytes[alive]);
      const State to = near_.step(path_[alive], byte);
      path_[alive + 1] = to;
      if (to == kDead) break;
      if (walked_.size() <= static_cast<size_t>(to)) walked_.resize(to + 1);
      if (std::exchange(walked_[to], walks_) == walks_) continue;
      mask.reach += near_.cost(path_[alive], byte);
      if (mask.reach > kMaxReach)
        fail("the grammar can be understood in more than {} ways behind one token", kMaxReach);
    }
    if (alive == size) mask.tokens[entry.token / 64] |= uint64_t{1} << (entry.token % 64);
  }
  return masks_.emplace(near, std::move(mask)).first->second;
}

void ConstraintTally::add(Constraint& constraint, Constraint::State state) {
  if (!asked_.insert(constraint.near(state)).second) return;
  reach_ += constraint.reach(state);
  if (reach_ > Constraint::kMaxReach)
    fail("the grammar can be understood in more than {} ways along this answer",
         Constraint::kMaxReach);
}

}  // namespace invar
