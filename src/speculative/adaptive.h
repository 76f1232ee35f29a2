// Drafts as long as pays, whatever proposes them: Liu et al., "Optimizing Speculative Decoding for
// Serving Large Language Models Using Goodput" (2024). With each step it takes the length K, 0
// allowed, of the most expected tokens per second of the whole batch:
//
//   sum over sequences of (1 + a1 + a1 a2 + ... + a1 .. aK), divided by step(rows) + draft(K)
//
// ad: how often the d-th token of a draft was right lately where the ones before it were, times how
// much more often than others this sequence's drafts are. step and draft: what steps of so many
// rows, and drafts of such a length, took lately on this machine. Where a sequence's next node is
// worth less than the time of its row, its draft ends earlier than the others'.
//
// An estimate that is never tried again cannot be corrected. So a share of the time is for trials:
// a plain step where drafts pay, a draft of one sequence where they do not. And what drafts have
// brought is counted (draft_account.h): a drafter that does not pay costs that share and no more.
// One that has not paid for kSleepAfter steps sleeps: it is shown no hidden states, but those of
// one sequence that trials are made with.
//
// Sequences that get no draft wait for the rows of those that do. Where there are such requests,
// drafts may lengthen a step by `undrafted_slowdown` of a plain one; longer trials are one step in
// a hundred.
//
// Times decide how long drafts are, never what an answer holds.
#pragma once

#include <unordered_map>
#include <vector>

#include "speculative/draft_account.h"
#include "speculative/forwarding_proposer.h"
#include "speculative/step_times.h"

namespace invar {

struct AdaptiveOptions {
  bool adapts = true;                 // else drafts are as long as the proposer makes them
  int32_t disable_by_batch_size = 0;  // no drafts where so many sequences or more decode; 0: always
  double undrafted_slowdown = 0.05;   // of a step, where a sequence gets no draft
};

class Adaptive final : public ForwardingProposer, public HiddenReader {
 public:
  Adaptive(std::unique_ptr<Proposer> proposer, const AdaptiveOptions& options);

  void propose(std::span<const DraftRequest> requests, std::span<DraftTree> trees) override;
  HiddenReader* hidden_reader() override { return reader_ ? this : nullptr; }
  std::span<const int32_t> aux_layers() const override;
  void take_hidden(std::span<const KeptRows> kept, std::span<const float> hidden,
                   int64_t batch_rows) override;
  void observe(int64_t id, int32_t proposed, int32_t accepted) override;
  void observe_step(int64_t rows, double seconds) override;
  void forget(int64_t id) override;

  // The longest draft that the last step was asked for.
  int32_t last_length() const { return length_; }
  bool is_asleep() const { return is_asleep_; }

  // Its estimates of the times of steps, and the times themselves.
  struct Estimates {
    double predicted = 0, measured = 0;  // seconds, drafting included
    int64_t steps = 0;
  };
  const Estimates& estimates() const { return estimates_; }

 private:
  // How often drafts were right, lately.
  struct Acceptance {
    double tried = 0, right = 0;
    void add(double tried_now, double right_now);
  };
  struct OfRequest {
    Acceptance acceptance;   // tried: as many as were to be right
    int32_t empty_asks = 0;  // since the proposer last had a draft for it
    bool had_draft = false;
    // Nothing is to be expected for it.
    bool has_none() const;
  };
  // The worth of one length for all sequences of a step.
  struct Worth {
    int32_t length = 0;
    double tokens = 0, seconds = 0;
    double rate() const { return tokens / seconds; }
  };
  enum class Purpose { plain, draft, trial, plain_trial };
  // A step of this many sequences, as it is known when the next one begins.
  struct Step {
    Purpose purpose = Purpose::plain;
    int64_t sequences = 0, nodes = 0, accepted = 0;
    // Seconds. expected: of drafting; least: what a trial is taken to cost.
    double expected = 0, least = 0, drafting = 0, upkeep = 0;
    bool is_observed = false;
  };

  void settle();
  void choose(std::span<const DraftRequest> requests);
  void estimate_acceptance(std::span<const DraftRequest> requests);
  Worth best_length(std::span<const DraftRequest> requests) const;
  double tokens_of(std::span<const DraftRequest> requests, int32_t length) const;
  double draft_seconds(size_t sequences, int32_t length) const;
  void cut_each(std::span<const DraftRequest> requests, const Worth& best);
  void try_plain(std::span<const DraftRequest> requests, const Worth& best);
  void try_draft(std::span<const DraftRequest> requests);
  int64_t index_to_try(std::span<const DraftRequest> requests) const;
  void propose_chosen(std::span<const DraftRequest> requests, std::span<DraftTree> trees);
  void count_offers(std::span<const DraftRequest> requests, std::span<const DraftTree> trees);
  bool is_first_trial() const;
  // adaptive_undrafted.cc: the limit.
  bool spares_undrafted(size_t sequences) const;
  bool expects_undrafted(std::span<const DraftRequest> requests) const;
  void limit_lengths(std::span<const DraftRequest> requests);
  void limit_trees(std::span<const DraftRequest> requests, std::span<DraftTree> trees);
  void prune_to(int64_t rows, std::span<DraftTree> trees);
  bool may_lengthen(double seconds, double plain, size_t sequences);

  HiddenReader* const reader_;  // the inner proposer's, or null
  const AdaptiveOptions options_;

  std::unordered_map<int64_t, OfRequest> of_request_;
  std::vector<Acceptance> at_depth_;  // of tokens of a chain
  Acceptance drafts_;                 // tried: drafts, right: tokens of them
  StepTimes step_times_;
  std::vector<StepTimes> draft_times_;  // by the power of two of sequences; rows: the length
  double nodes_per_wanted_ = 1;         // a proposer may have less to say than it is asked for
  DraftAccount account_;
  int64_t trials_ = 0;
  size_t first_served_ = 0;  // of the sequences that share too few rows
  double long_trials_;       // that may lengthen a step for them, now

  // Whether the proposer is shown hidden states of one sequence alone, the scout (-1: of none).
  bool is_asleep_ = false, shows_hidden_ = true;
  int64_t scout_ = -1;
  int32_t scout_trials_ = 0;
  int32_t steps_without_ = 0;  // since a draft that was no trial
  std::vector<KeptRows> shown_;

  // This step.
  Step step_;
  std::vector<int32_t> lengths_;  // of each request
  std::vector<double> right_;     // [depth]: the share expected of a request like all others
  std::vector<double> factors_;   // of each request, on right_
  std::vector<DraftRequest> asked_;
  std::vector<DraftTree> answered_;
  int32_t length_ = 0;
  Estimates estimates_;
};

}  // namespace invar
