#include "speculative/adaptive.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "base/timer.h"

namespace invar {

namespace {

constexpr double kKept = 0.97;         // of what was accepted, with each draft
constexpr double kRequestPrior = 4;    // drafts whose worth all requests have in one's acceptance
constexpr double kDepthPrior = 2;      // tokens that say of a depth what the depth above said
constexpr double kFirstGuess = 0.7;    // of the first token, before there was one
constexpr double kMostRight = 0.995;   // nothing is certain
constexpr double kLeastGain = 1.02;    // of drafts over none
constexpr double kTrialShare = 0.005;  // of the time
constexpr double kMostCredit = 4;      // plain steps that trials may save up
constexpr int64_t kFirstRows = 16;     // a step may always have, without being known

size_t octave_of(size_t sequences) {
  return static_cast<size_t>(std::bit_width(sequences));
}

}  // namespace

void Adaptive::Acceptance::add(double tried_now, double right_now) {
  tried = tried * kKept + tried_now;
  right = right * kKept + right_now;
}

Adaptive::Adaptive(std::unique_ptr<Proposer> proposer, const AdaptiveOptions& options)
    : inner_(std::move(proposer)), options_(options), at_depth_(kMaxDraftNodes) {}

void Adaptive::propose(std::span<const DraftRequest> requests, std::span<DraftTree> trees) {
  const int32_t limit = options_.disable_by_batch_size;
  const bool is_off = limit > 0 && std::ssize(requests) >= limit;
  lengths_.assign(requests.size(), is_off ? 0 : most_nodes());
  length_ = 0;
  drafted_seconds_ = expected_seconds_ = 0;
  if (requests.empty()) return;
  if (options_.adapts && !is_off) choose(requests);
  length_ = std::ranges::max(lengths_);
  if (length_ > 0) propose_chosen(requests, trees);
}

// To the proposer those alone that get a draft.
void Adaptive::propose_chosen(std::span<const DraftRequest> requests, std::span<DraftTree> trees) {
  asked_.clear();
  int64_t wanted = 0, nodes = 0;
  for (size_t i = 0; i < requests.size(); ++i) {
    if (lengths_[i] == 0) continue;
    asked_.push_back(requests[i]);
    asked_.back().most = std::min(requests[i].most, lengths_[i]);
    wanted += asked_.back().most;
  }
  answered_.resize(std::max(answered_.size(), asked_.size()));
  const std::span<DraftTree> answered = std::span(answered_).first(asked_.size());
  for (DraftTree& tree : answered) tree.clear();
  const Timer timer;
  inner_->propose(asked_, answered);
  drafted_seconds_ = timer.seconds();
  for (size_t i = 0, next = 0; i < requests.size(); ++i) {
    if (lengths_[i] == 0) continue;
    nodes += std::ssize(answered[next]);
    std::swap(trees[i], answered[next++]);
  }
  const size_t octave = octave_of(asked_.size());
  if (draft_times_.size() <= octave) draft_times_.resize(octave + 1);
  expected_seconds_ = draft_times_[octave].at(length_);
  draft_times_[octave].add(length_, drafted_seconds_);
  if (wanted > 0)
    nodes_per_wanted_ += (1 - kKept) * (static_cast<double>(nodes) / static_cast<double>(wanted) -
                                        nodes_per_wanted_);
}

void Adaptive::choose(std::span<const DraftRequest> requests) {
  estimate_acceptance(requests);
  const Worth best = best_length(requests);
  for (size_t i = 0; i < requests.size(); ++i)
    lengths_[i] = std::min(requests[i].most, best.length);
  if (best.length > 0 && !makes_branches() && requests.size() > 1) cut_each(requests, best);
  if (best.seconds > 0) try_another(requests, best);
}

void Adaptive::estimate_acceptance(std::span<const DraftRequest> requests) {
  right_.resize(static_cast<size_t>(most_nodes()));
  double above = kFirstGuess;
  for (size_t depth = 0; depth < right_.size(); ++depth) {
    const Acceptance& a = at_depth_[depth];
    above = right_[depth] = (a.right + kDepthPrior * above) / (a.tried + kDepthPrior);
  }
  factors_.assign(requests.size(), 1);
  for (size_t i = 0; i < requests.size(); ++i)
    if (const auto found = of_request_.find(requests[i].id); found != of_request_.end())
      factors_[i] = (found->second.right + kRequestPrior) / (found->second.tried + kRequestPrior);
}

// Without a draft first: nothing can be said of longer steps before one was seen.
Adaptive::Worth Adaptive::best_length(std::span<const DraftRequest> requests) const {
  const int64_t sequences = std::ssize(requests);
  const double plain = step_times_.at(sequences);
  Worth best{.tokens = static_cast<double>(sequences), .seconds = plain};
  if (plain == 0) return best;
  int32_t most = 0;
  for (const DraftRequest& request : requests) most = std::max(most, request.most);
  const int64_t reach = std::max(kFirstRows, 2 * step_times_.most_rows());
  double bar = kLeastGain * best.rate();
  // A tree is taken whole or not at all: what its first nodes are worth is not known.
  for (int32_t length = makes_branches() ? most : 1; length <= most && most > 0; ++length) {
    const int64_t rows =
        sequences + std::llround(static_cast<double>(sequences * length) * nodes_per_wanted_);
    if (rows > reach) break;
    const Worth worth{
        .length = length,
        .tokens = tokens_of(requests, length),
        .seconds = std::max(plain, step_times_.at(rows)) + draft_seconds(requests.size(), length)};
    if (worth.rate() <= bar) continue;
    best = worth;
    bar = worth.rate();
  }
  return best;
}

double Adaptive::tokens_of(std::span<const DraftRequest> requests, int32_t length) const {
  double tokens = static_cast<double>(requests.size());
  if (makes_branches()) {
    const double each =
        drafts_.tried > 0 ? drafts_.right / drafts_.tried : kFirstGuess / (1 - kFirstGuess);
    for (const double factor : factors_) tokens += each * factor;
    return tokens;
  }
  for (size_t i = 0; i < requests.size(); ++i) {
    double all_right = nodes_per_wanted_;
    for (int32_t d = 0; d < std::min(length, requests[i].most); ++d)
      tokens += all_right *= std::min(kMostRight, factors_[i] * right_[d]);
  }
  return tokens;
}

double Adaptive::draft_seconds(size_t sequences, int32_t length) const {
  const size_t octave = octave_of(sequences);
  return octave < draft_times_.size() ? draft_times_[octave].at(length) : 0;
}

// Nodes that bring fewer tokens than the time of a row is worth are left out.
void Adaptive::cut_each(std::span<const DraftRequest> requests, const Worth& best) {
  const int64_t sequences = std::ssize(requests), rows = sequences * (1 + best.length);
  const double row_seconds =
      (step_times_.at(rows) - step_times_.at(sequences)) / static_cast<double>(rows - sequences);
  for (size_t i = 0; i < requests.size(); ++i) {
    double all_right = 1;
    for (int32_t d = 0; d < lengths_[i]; ++d) {
      all_right *= std::min(kMostRight, factors_[i] * right_[d]);
      if (all_right < best.rate() * row_seconds) lengths_[i] = d;
    }
  }
}

void Adaptive::try_another(std::span<const DraftRequest> requests, const Worth& best) {
  const int64_t sequences = std::ssize(requests);
  const double plain = step_times_.at(sequences);
  credit_ = std::min(credit_, kMostCredit * plain);
  if (best.length > 0) {
    // What a plain step takes longer than its tokens would.
    const double cost = plain - static_cast<double>(sequences) / best.rate();
    if (cost > credit_) return;
    credit_ -= cost;
    lengths_.assign(requests.size(), 0);
    return;
  }
  const size_t one = static_cast<size_t>(trials_ % sequences);
  const int32_t most = requests[one].most;
  const int32_t length =
      makes_branches() ? most : std::min(most, int32_t{1} << (trials_ / sequences % 3));
  const double cost = std::max(0.0, step_times_.at(sequences + length) - plain) +
                      std::max(draft_seconds(1, length), 0.1 * plain * length);
  if (length == 0 || cost > credit_) return;
  credit_ -= cost;
  lengths_[one] = length;
  ++trials_;
}

// Of a chain the tokens behind the first wrong one were not tried. Of a tree a level is a try, and
// its last level counts as one that failed unless the path went on.
void Adaptive::observe(int64_t id, int32_t proposed, int32_t accepted) {
  inner_->observe(id, proposed, accepted);
  drafts_.add(1, accepted);
  double expected = 0;
  for (int32_t d = 0; d < std::min(accepted + 1, proposed); ++d) {
    expected += static_cast<size_t>(d) < right_.size() ? right_[d] : kFirstGuess;
    at_depth_[d].add(1, d < accepted);
  }
  of_request_[id].add(expected, accepted);
}

void Adaptive::observe_step(int64_t rows, double seconds) {
  if (const double predicted = step_times_.at(rows); predicted > 0) {
    estimates_.predicted += predicted + expected_seconds_;
    estimates_.measured += seconds + (expected_seconds_ > 0 ? drafted_seconds_ : 0);
    ++estimates_.steps;
  }
  step_times_.add(rows, seconds);
  credit_ += kTrialShare * (seconds + drafted_seconds_);
  inner_->observe_step(rows, seconds);
}

void Adaptive::forget(int64_t id) {
  of_request_.erase(id);
  inner_->forget(id);
}

}  // namespace invar
