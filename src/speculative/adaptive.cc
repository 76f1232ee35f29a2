#include "speculative/adaptive.h"

#include <algorithm>
#include <cmath>

#include "base/timer.h"

namespace invar {

namespace {

constexpr double kKept = 0.97;       // of a line's points and an acceptance, with each new one
constexpr double kRequestPrior = 4;  // drafts whose worth all requests have in one's acceptance
constexpr int64_t kFirstRounds = 6;  // of different lengths, so that there are lines
constexpr int64_t kProbeEvery = 64;  // rounds
constexpr double kLeastGain = 1.02;  // of drafts over none

}  // namespace

void LineFit::add(double x, double y) {
  for (double* sum : {&weight_, &x_, &y_, &xx_, &xy_}) *sum *= kKept;
  weight_ += 1;
  x_ += x;
  y_ += y;
  xx_ += x * x;
  xy_ += x * y;
}

double LineFit::at(double x) const {
  if (weight_ == 0) return 0;
  const double mean_x = x_ / weight_, mean_y = y_ / weight_;
  const double spread = xx_ / weight_ - mean_x * mean_x;
  const double slope = spread > 1e-9 ? (xy_ / weight_ - mean_x * mean_y) / spread : 0;
  return std::max(0.0, mean_y + std::max(0.0, slope) * (x - mean_x));
}

void Adaptive::Acceptance::add(int32_t tried_now, int32_t right_now) {
  tried = tried * kKept + tried_now;
  right = right * kKept + right_now;
}

Adaptive::Adaptive(std::unique_ptr<Proposer> proposer, const AdaptiveOptions& options)
    : inner_(std::move(proposer)), options_(options) {}

void Adaptive::propose(std::span<const DraftRequest> requests, std::span<DraftTree> trees) {
  const int32_t limit = options_.disable_by_batch_size;
  const bool is_off = limit > 0 && std::ssize(requests) >= limit;
  length_ = is_off ? 0 : options_.adapts ? choose(requests) : most_nodes();
  if (length_ == 0) return;
  shorter_.assign(requests.begin(), requests.end());
  for (DraftRequest& request : shorter_) request.most = std::min(request.most, length_);
  const Timer timer;
  inner_->propose(shorter_, trees);
  draft_seconds_.add(length_, timer.seconds());
}

int32_t Adaptive::choose(std::span<const DraftRequest> requests) {
  if (requests.empty()) return 0;
  int32_t most = 0;
  for (const DraftRequest& request : requests) most = std::max(most, request.most);
  const int64_t round = rounds_++;
  if (round < kFirstRounds) return round % 3 == 0 ? most : round % 3 == 1 ? 0 : (most + 1) / 2;
  const int32_t best = best_length(requests, most);
  if (round % kProbeEvery != 0) return best;
  return best == 0 ? std::min(most, 2) : 0;
}

int32_t Adaptive::best_length(std::span<const DraftRequest> requests, int32_t most) const {
  const double sequences = static_cast<double>(requests.size());
  int32_t best = 0;
  double best_rate = kLeastGain * sequences / std::max(1e-9, step_seconds_.at(sequences));
  // A tree is taken whole or not at all: what its first nodes are worth is not known.
  for (int32_t length = makes_branches() ? most : 1; length <= most && most > 0; ++length) {
    double tokens = 0;
    for (const DraftRequest& request : requests)
      tokens += expected_tokens(request.id, std::min(length, request.most));
    const double seconds = step_seconds_.at(sequences * (1 + length)) + draft_seconds_.at(length);
    if (tokens / std::max(1e-9, seconds) <= best_rate) continue;
    best = length;
    best_rate = tokens / std::max(1e-9, seconds);
  }
  return best;
}

double Adaptive::expected_tokens(int64_t id, int32_t length) const {
  const double prior = of_all_.tried > 0 ? of_all_.right / of_all_.tried : 0.5;
  double tried = kRequestPrior, right = kRequestPrior * prior;
  if (const auto found = of_request_.find(id); found != of_request_.end()) {
    tried += found->second.tried;
    right += found->second.right;
  }
  const double a = std::min(right / tried, 0.999);
  return (1 - std::pow(a, length + 1)) / (1 - a);
}

// Of a chain the tokens behind the first wrong one were not tried. Of a tree a level is a try, and
// its last level counts as one that failed unless the path went on.
void Adaptive::observe(int64_t id, int32_t proposed, int32_t accepted) {
  inner_->observe(id, proposed, accepted);
  const int32_t tried = std::min(accepted + 1, proposed);
  of_request_[id].add(tried, accepted);
  of_all_.add(tried, accepted);
}

void Adaptive::observe_step(int64_t rows, double seconds) {
  step_seconds_.add(static_cast<double>(rows), seconds);
  inner_->observe_step(rows, seconds);
}

void Adaptive::forget(int64_t id) {
  of_request_.erase(id);
  inner_->forget(id);
}

}  // namespace invar
