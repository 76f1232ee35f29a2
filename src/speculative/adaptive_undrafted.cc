// How much drafts may lengthen a step for sequences that get none.
#include <algorithm>

#include "speculative/adaptive.h"

namespace invar {

namespace {

constexpr double kNextToNothing = 0.005;  // of a plain step

}  // namespace

bool Adaptive::spares_undrafted(size_t sequences) const {
  return options_.adapts && sequences > 1;
}

// Before the proposer is asked: a sequence that gets no draft by the lengths chosen, or had none.
bool Adaptive::expects_undrafted(std::span<const DraftRequest> requests) const {
  for (size_t i = 0; i < requests.size(); ++i) {
    if (lengths_[i] == 0) return true;
    const auto found = of_request_.find(requests[i].id);
    if (found != of_request_.end() && found->second.has_none()) return true;
  }
  return false;
}

// So that drafting and the rows of the drafts fit. Where drafting is next to nothing the trees are
// limited when it is known who has one.
void Adaptive::limit_lengths(std::span<const DraftRequest> requests) {
  if (!expects_undrafted(requests)) return;
  const double plain = step_times_.at(std::ssize(requests));
  for (int32_t most = std::ranges::max(lengths_); most > 0; --most) {
    int64_t rows = std::ssize(requests);
    size_t drafts = 0;
    for (const int32_t length : lengths_) {
      rows += std::min(most, length);
      drafts += length > 0 ? 1 : 0;
    }
    const double drafting = draft_seconds(drafts, most);
    const double longer = step_times_.at(rows) - plain + drafting;
    if (drafting <= kNextToNothing * plain || longer <= options_.undrafted_slowdown * plain) {
      for (int32_t& length : lengths_) length = std::min(length, most);
      return;
    }
    if (makes_branches()) break;
  }
  std::ranges::fill(lengths_, 0);
}

// After it: a sequence without a tree that is not only out of luck for once.
void Adaptive::limit_trees(std::span<const DraftRequest> requests, std::span<DraftTree> trees) {
  bool has_undrafted = false;
  int64_t rows = std::ssize(requests);
  for (size_t i = 0; i < requests.size(); ++i) {
    rows += std::ssize(trees[i]);
    if (!trees[i].empty()) continue;
    const auto found = of_request_.find(requests[i].id);
    has_undrafted |= lengths_[i] == 0 || found == of_request_.end() || found->second.has_none();
  }
  if (!has_undrafted) return;
  const double plain = step_times_.at(std::ssize(requests));
  const double longest = (1 + options_.undrafted_slowdown) * plain - step_.drafting;
  while (rows > std::ssize(requests) && step_times_.at(rows) > longest) --rows;
  prune_to(rows - std::ssize(requests), trees.first(requests.size()));
}

// Keeps so many rows over all trees, a node of each in turn; another tree comes first each time.
void Adaptive::prune_to(int64_t rows, std::span<DraftTree> trees) {
  std::vector<int32_t> kept(trees.size());
  ++first_served_;
  for (int64_t before = -1; rows > 0 && rows != before;) {
    before = rows;
    for (size_t i = 0; i < trees.size() && rows > 0; ++i) {
      const size_t at = (first_served_ + i) % trees.size();
      if (kept[at] == std::ssize(trees[at])) continue;
      ++kept[at];
      --rows;
    }
  }
  for (size_t i = 0; i < trees.size(); ++i) prune(trees[i], kept[i], kept[i]);
}

// All but the one that is tried have no drafts. A trial that lengthens their step by more than the
// limit is one of those that are few enough not to show in the 99th percentile.
bool Adaptive::may_lengthen(double seconds, double plain, size_t sequences) {
  if (!spares_undrafted(sequences) || seconds <= options_.undrafted_slowdown * plain) return true;
  if (long_trials_ < 1) return false;
  --long_trials_;
  return true;
}

}  // namespace invar
