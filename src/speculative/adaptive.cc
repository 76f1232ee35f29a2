#include "speculative/adaptive.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "base/timer.h"

namespace invar {

namespace {

constexpr double kKept = 0.97;        // of what was accepted, with each draft
constexpr double kRequestPrior = 4;   // drafts whose worth all requests have in one's acceptance
constexpr double kDepthPrior = 2;     // tokens that say of a depth what the depth above said
constexpr double kFirstGuess = 0.7;   // of the first token, before there was one
constexpr int64_t kFirstTrials = 3;   // of one sequence, whatever they cost
constexpr double kMostRight = 0.995;  // nothing is certain
constexpr double kLeastGain = 1.05;   // of drafts over none: estimates are that much off
constexpr double kDearest = 1.5;      // times what was expected that a draft is booked with
constexpr int64_t kFirstRows = 16;    // a step may always have, without being known
constexpr int32_t kSleepAfter = 64;   // steps without drafts that were to pay
constexpr int32_t kScoutTrials = 4;   // of one sequence; the next one is another
constexpr double kLongTrials = 0.01;  // of steps may be trials that requests without drafts notice
constexpr int32_t kEmptyAsks = 8;     // after which no draft is expected for a sequence

size_t octave_of(size_t sequences) {
  return static_cast<size_t>(std::bit_width(sequences));
}

}  // namespace

void Adaptive::Acceptance::add(double tried_now, double right_now) {
  tried = tried * kKept + tried_now;
  right = right * kKept + right_now;
}

bool Adaptive::OfRequest::has_none() const {
  return empty_asks >= (had_draft ? kEmptyAsks : 1);
}

Adaptive::Adaptive(std::unique_ptr<Proposer> proposer, const AdaptiveOptions& options)
    : ForwardingProposer(std::move(proposer)),
      reader_(inner().hidden_reader()),
      options_(options),
      at_depth_(kMaxDraftNodes),
      long_trials_(kScoutTrials) {}

// None in a step in which the proposer is not shown any.
std::span<const int32_t> Adaptive::aux_layers() const {
  return shows_hidden_ ? reader_->aux_layers() : std::span<const int32_t>();
}

void Adaptive::propose(std::span<const DraftRequest> requests, std::span<DraftTree> trees) {
  settle();
  shows_hidden_ = !is_asleep_ || scout_ >= 0 || account_.trials() >= 0;
  const int32_t limit = options_.disable_by_batch_size;
  const bool is_off = limit > 0 && std::ssize(requests) >= limit;
  lengths_.assign(requests.size(), is_off ? 0 : most_nodes());
  length_ = 0;
  step_ = {.sequences = std::ssize(requests)};
  if (requests.empty()) return;
  if (options_.adapts && !is_off) choose(requests);
  length_ = std::ranges::max(lengths_);
  if (length_ > 0) propose_chosen(requests, trees);
}

// Books the gain and the cost of the step before this one.
void Adaptive::settle() {
  if (!options_.adapts) return;
  if (is_asleep_) account_.pay_trial(step_.upkeep);
  const double plain = step_times_.at(step_.sequences);
  if (step_.sequences == 0 || plain == 0) return;
  const double longer =
      std::max(0.0, step_times_.at(step_.sequences + step_.nodes) - plain) + step_.drafting;
  const double each = plain / static_cast<double>(step_.sequences);
  const double gain = static_cast<double>(step_.accepted) * each;
  // The first draft of a sequence may have to compute its whole text: what pays later.
  const double dearest = step_.expected > 0 ? kDearest * step_.expected : step_.drafting;
  if (step_.purpose == Purpose::trial)
    account_.pay_trial(std::max(longer, step_.least));
  else if (step_.purpose == Purpose::draft)
    account_.book(gain - longer + std::max(0.0, step_.drafting - dearest));
  if (!is_asleep_ && step_.is_observed) account_.book(-step_.upkeep);  // not that of prompts
  account_.close_step(plain);
  steps_without_ = step_.purpose == Purpose::draft ? 0 : steps_without_ + 1;
  const bool was_asleep = is_asleep_;
  is_asleep_ = account_.is_overdrawn() || steps_without_ > kSleepAfter;
  if (is_asleep_ && !was_asleep) scout_ = -1;
  if (scout_trials_ >= kScoutTrials || account_.trials() < -DraftAccount::kMostTrials * plain)
    scout_ = -1;
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
  inner().propose(asked_, answered);
  step_.drafting = timer.seconds();
  for (size_t i = 0, next = 0; i < requests.size(); ++i) {
    if (lengths_[i] == 0) continue;
    nodes += std::ssize(answered[next]);
    std::swap(trees[i], answered[next++]);
  }
  step_.expected = draft_seconds(asked_.size(), length_);
  const size_t octave = octave_of(asked_.size());
  if (draft_times_.size() <= octave) draft_times_.resize(octave + 1);
  draft_times_[octave].add(length_, step_.drafting);
  if (wanted > 0)
    nodes_per_wanted_ += (1 - kKept) * (static_cast<double>(nodes) / static_cast<double>(wanted) -
                                        nodes_per_wanted_);
  count_offers(requests, trees);
  if (step_.purpose == Purpose::draft && spares_undrafted(requests.size()))
    limit_trees(requests, trees);
  for (const DraftTree& tree : trees.first(requests.size())) step_.nodes += std::ssize(tree);
}

void Adaptive::count_offers(std::span<const DraftRequest> requests,
                            std::span<const DraftTree> trees) {
  for (size_t i = 0; i < requests.size(); ++i) {
    if (lengths_[i] == 0) continue;
    OfRequest& of = of_request_[requests[i].id];
    of.empty_asks = trees[i].empty() ? of.empty_asks + 1 : 0;
    of.had_draft |= !trees[i].empty();
  }
}

void Adaptive::choose(std::span<const DraftRequest> requests) {
  long_trials_ = std::min<double>(kScoutTrials, long_trials_ + kLongTrials);
  estimate_acceptance(requests);
  Worth best;
  // Before a plain step was seen nothing can be said of longer ones.
  if (step_times_.at(std::ssize(requests)) > 0 && !is_first_trial() && !account_.is_overdrawn())
    best = best_length(requests);
  for (size_t i = 0; i < requests.size(); ++i)
    lengths_[i] = std::min(requests[i].most, best.length);
  if (best.length > 0 && !makes_branches() && requests.size() > 1) cut_each(requests, best);
  if (best.length > 0 && spares_undrafted(requests.size())) limit_lengths(requests);
  if (std::ranges::max(lengths_) > 0) {
    step_.purpose = Purpose::draft;
    try_plain(requests, best);
  } else {
    try_draft(requests);
  }
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
    if (const auto found = of_request_.find(requests[i].id); found != of_request_.end()) {
      const Acceptance& a = found->second.acceptance;
      factors_[i] = (a.right + kRequestPrior) / (a.tried + kRequestPrior);
    }
}

Adaptive::Worth Adaptive::best_length(std::span<const DraftRequest> requests) const {
  const int64_t sequences = std::ssize(requests);
  const double plain = step_times_.at(sequences);
  Worth best{.tokens = static_cast<double>(sequences), .seconds = plain};
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

// A number of sequences that was never drafted for takes as long as the next smaller one that was.
double Adaptive::draft_seconds(size_t sequences, int32_t length) const {
  if (draft_times_.empty()) return 0;
  for (size_t octave = std::min(octave_of(sequences), draft_times_.size() - 1) + 1; octave-- > 0;)
    if (const double seconds = draft_times_[octave].at(length); seconds > 0) return seconds;
  return 0;
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

// Where drafts pay: a plain step, for what it takes longer than its tokens would.
void Adaptive::try_plain(std::span<const DraftRequest> requests, const Worth& best) {
  const int64_t sequences = std::ssize(requests);
  const double cost = step_times_.at(sequences) - static_cast<double>(sequences) / best.rate();
  if (cost > account_.trials()) return;
  account_.pay_trial(cost);
  lengths_.assign(requests.size(), 0);
  step_.purpose = Purpose::plain_trial;
}

bool Adaptive::is_first_trial() const {
  return trials_ < kFirstTrials;
}

// Where they do not: a draft of one sequence.
void Adaptive::try_draft(std::span<const DraftRequest> requests) {
  const int64_t sequences = std::ssize(requests), one = index_to_try(requests);
  const double plain = step_times_.at(sequences);
  if (one < 0 || plain == 0) return;
  const int32_t most = requests[one].most;
  const int32_t length = makes_branches() ? most : std::min(most, int32_t{1} << trials_ % 3);
  const double longer = std::max(0.0, step_times_.at(sequences + length) - plain) +
                        std::max(draft_seconds(1, length), 0.1 * plain * length);
  if (length == 0 || (longer > account_.trials() && scout_ < 0 && !is_first_trial())) return;
  if (!may_lengthen(longer, plain, requests.size())) return;
  lengths_[one] = length;
  step_.purpose = Purpose::trial;
  step_.least = longer;
  ++trials_;
  if (scout_ >= 0) ++scout_trials_;
}

// -1: none, since a proposer that sleeps knows its scout alone.
int64_t Adaptive::index_to_try(std::span<const DraftRequest> requests) const {
  if (!is_asleep_ || !reader_) return trials_ % std::ssize(requests);
  for (int64_t i = 0; i < std::ssize(requests); ++i)
    if (requests[i].id == scout_) return i;
  return -1;
}

// The scout learns most from its sequence's beginning.
void Adaptive::take_hidden(std::span<const KeptRows> kept, std::span<const float> hidden,
                           int64_t batch_rows) {
  const Timer timer;
  if (!is_asleep_) {
    reader_->take_hidden(kept, hidden, batch_rows);
  } else {
    if (scout_ < 0 && !kept.empty() && account_.trials() >= 0) {
      const auto begins = std::ranges::find(kept, 0, &KeptRows::position);
      scout_ = begins == kept.end() ? kept.front().id : begins->id;
      scout_trials_ = 0;
    }
    shown_.clear();
    for (const KeptRows& rows : kept)
      if (rows.id == scout_) shown_.push_back(rows);
    if (!shown_.empty()) reader_->take_hidden(shown_, hidden, batch_rows);
  }
  step_.upkeep += timer.seconds();
}

// In a chain the tokens behind the first wrong one were not tried. In a tree a level is a try, and
// its last level counts as one that failed unless the path went on.
void Adaptive::observe(int64_t id, int32_t proposed, int32_t accepted) {
  inner().observe(id, proposed, accepted);
  step_.accepted += accepted;
  drafts_.add(1, accepted);
  double expected = 0;
  for (int32_t d = 0; d < std::min(accepted + 1, proposed); ++d) {
    expected += static_cast<size_t>(d) < right_.size() ? right_[d] : kFirstGuess;
    at_depth_[d].add(1, d < accepted);
  }
  of_request_[id].acceptance.add(expected, accepted);
}

void Adaptive::observe_step(int64_t rows, double seconds) {
  if (const double predicted = step_times_.at(rows); predicted > 0) {
    estimates_.predicted += predicted + step_.expected;
    estimates_.measured += seconds + (step_.expected > 0 ? step_.drafting : 0);
    ++estimates_.steps;
  }
  step_times_.add(rows, seconds);
  step_.is_observed = true;
  account_.earn(seconds + step_.drafting);
  inner().observe_step(rows, seconds);
}

void Adaptive::forget(int64_t id) {
  if (id == scout_) scout_ = -1;
  of_request_.erase(id);
  inner().forget(id);
}

}  // namespace invar
