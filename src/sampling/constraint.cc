#include "sampling/constraint.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/error.h"
#include "sampling/grammar/schema_check.h"

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

std::span<const TokenTable::Entry> TokenTable::beginning_with(std::string_view bytes) const {
  const auto begin = std::ranges::lower_bound(entries_, bytes, {}, &Entry::bytes);
  const auto end = std::partition_point(
      begin, entries_.end(), [&](const Entry& entry) { return entry.bytes.starts_with(bytes); });
  return {begin, end};
}

Constraint::Constraint(grammar::Language language, std::shared_ptr<const TokenTable> tokens,
                       std::shared_ptr<FormMemory> memory)
    : language_(std::move(language)),
      tokens_(std::move(tokens)),
      memory_(std::move(memory)),
      exact_(language_),
      near_(language_, static_cast<int32_t>(tokens_->longest())) {
  path_.resize(tokens_->longest() + 1);
  try {
    int64_t cost = 0;
    start_ = exact_.place(exact_.enter(language_.root(), cost));
    exact_.clear();
    if (!start_.is_dead()) start_mask_ = mask(start_);
  } catch (const Error& error) {
    throw UsageError(error.what());
  }
  if (start_.is_dead())
    fail_usage(
        "no answer has the form that is asked for: what it must hold excludes itself, or needs "
        "rules or references more than {} deep within one another",
        grammar::Language::kMaxDepth);
  memory_->take(language_bytes());
  count_remembered();
}

Constraint::~Constraint() {
  memory_->remember(counted_bytes_, 0);
  memory_->give(language_bytes());
}

Constraint::State Constraint::next(const State& state, int32_t token, int64_t& cost) {
  const std::span<const uint8_t> bytes = tokens_->bytes_of(token);
  if (bytes.empty()) return {};
  struct Clear {
    grammar::Stacks& stacks;
    ~Clear() { stacks.clear(); }
  } clear{exact_};
  grammar::Stacks::Set set = exact_.take(state);
  int64_t taken = 0;
  for (const uint8_t byte : bytes) {
    taken += std::ssize(set);
    set = exact_.closure(exact_.advance(set, byte), taken);
    if (set.empty()) break;
    if (taken <= kMostOfToken) continue;
    cost += taken;
    fail("the form takes more than {} steps to read a token", kMostOfToken);
  }
  cost += taken;
  return exact_.place(set);
}

const char* Constraint::fault_of(std::string_view answer) const {
  return language_.check() ? language_.check()->fault_of(answer) : nullptr;
}

std::optional<grammar::UniqueItems> Constraint::unique_items() const {
  return language_.check() ? language_.check()->unique_items() : std::nullopt;
}

std::string_view Constraint::text_of(int32_t token) const {
  const auto bytes = tokens_->bytes_of(token);
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

void Constraint::forget() {
  near_.clear();
  masks_.clear();
  masks_bytes_ = 0;
  walked_ = std::vector<int32_t>();
  walks_ = 0;
  count_remembered();
}

void Constraint::count_remembered() {
  const size_t now = remembered_bytes();
  memory_->remember(counted_bytes_, now);
  counted_bytes_ = now;
}

const Constraint::Mask& Constraint::mask(const State& state, int64_t& work) {
  if (state == start_ && !start_mask_.tokens.empty()) return start_mask_;
  const size_t own = remembered_bytes();
  if (own > FormMemory::kMostRemembered || (own > FormMemory::kRemembered && memory_->is_crowded()))
    forget();
  work += std::ssize(state.cells);
  const grammar::Automaton::State near = near_.at(state);
  if (const auto known = masks_.find(near); known != masks_.end()) return known->second;
  Mask mask = find(near, work);
  masks_bytes_ += sizeof mask + mask.tokens.size() * sizeof(uint64_t);
  count_remembered();
  return masks_.emplace(near, std::move(mask)).first->second;
}

Constraint::Mask Constraint::find(grammar::Automaton::State near, int64_t& work) {
  Mask mask{.tokens = std::vector<uint64_t>((tokens_->vocab() + 63) / 64),
            .name = near_.name(near)};
  try {
    walk(near, mask);
  } catch (const Error&) {
    work += mask.cost;
    forget();  // it may be large
    throw;
  }
  work += mask.cost;
  return mask;
}

void Constraint::walk(grammar::Automaton::State near, Mask& mask) {
  const int64_t of_state = 1 + static_cast<int64_t>(near_.classes()) / 8;
  ++walks_;
  // path_[i]: behind i bytes of the last token that was walked, of which `alive` could be read.
  path_[0] = near;
  int32_t alive = 0;
  for (const TokenTable::Entry& entry : tokens_->entries()) {
    if (entry.shared > alive) continue;  // it begins with what could not be read
    const int32_t size = static_cast<int32_t>(entry.bytes.size());
    for (alive = entry.shared; alive < size; ++alive) {
      const auto byte = static_cast<uint8_t>(entry.bytes[alive]);
      const grammar::Automaton::Edge edge = near_.edge(path_[alive], byte);
      const size_t number = near_.edge_number(path_[alive], byte);
      if (walked_.size() <= number) walked_.resize(near_.states() * near_.classes());
      if (std::exchange(walked_[number], walks_) != walks_) mask.cost += edge.cost + of_state;
      if (mask.cost > kMostOfMask)
        fail("the form takes more than {} steps to find what may come next", kMostOfMask);
      path_[alive + 1] = edge.to;
      if (edge.to == grammar::Automaton::kDead) break;
    }
    if (alive == size) mask.tokens[entry.token / 64] |= uint64_t{1} << (entry.token % 64);
  }
}

void ConstraintTally::add(const Constraint::Mask& mask) {
  if (asked_.insert(mask.name).second) add_cost(mask.cost);
}

void ConstraintTally::add_token(int64_t cost) {
  left_ = std::min(left_ + kMoreOfToken, kMost);
  add_cost(cost);
}

void ConstraintTally::add_cost(int64_t cost) {
  left_ -= cost;
  if (left_ < 0)
    fail("the form takes more than {} steps along the answer, and {} for each token", kMost,
         kMoreOfToken);
}

}  // namespace invar
