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
// An estimate that is never tried again cannot be corrected. So a share of the time, kTrialShare,
// is for trials: a plain step where drafts pay, a draft of one sequence where they do not. A
// drafter that is never right costs that share and no more.
//
// Times decide how long drafts are, never what an answer holds.
#pragma once

#include <unordered_map>
#include <vector>

#include "speculative/proposer.h"
#include "speculative/step_times.h"

namespace invar {

struct AdaptiveOptions {
  bool adapts = true;                 // else drafts are as long as the proposer makes them
  int32_t disable_by_batch_size = 0;  // no drafts where so many sequences or more decode; 0: always
};

class Adaptive final : public Proposer {
 public:
  Adaptive(std::unique_ptr<Proposer> proposer, const AdaptiveOptions& options);

  std::string_view name() const override { return inner_->name(); }
  int32_t most_nodes() const override { return inner_->most_nodes(); }
  bool makes_branches() const override { return inner_->makes_branches(); }
  bool wants_likeliest() const override { return inner_->wants_likeliest(); }
  std::span<const int32_t> aux_layers() const override { return inner_->aux_layers(); }
  int32_t shared_layers() const override { return inner_->shared_layers(); }
  void share(std::span<KvStorage* const> of_ranks) override { inner_->share(of_ranks); }
  ComputedRows computed_rows(int64_t id) const override { return inner_->computed_rows(id); }
  void propose(std::span<const DraftRequest> requests, std::span<DraftTree> trees) override;
  void observe_likeliest(int64_t id, std::span<const int32_t> tokens) override {
    inner_->observe_likeliest(id, tokens);
  }
  void take_hidden(std::span<const KeptRows> kept, std::span<const float> hidden,
                   int64_t batch_rows) override {
    inner_->take_hidden(kept, hidden, batch_rows);
  }
  void observe(int64_t id, int32_t proposed, int32_t accepted) override;
  void observe_step(int64_t rows, double seconds) override;
  void forget(int64_t id) override;

  // The longest draft that the last step was asked for.
  int32_t last_length() const { return length_; }

  // What its estimates said that steps would take, and what they took.
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
  // Of one length for all sequences of a step.
  struct Worth {
    int32_t length = 0;
    double tokens = 0, seconds = 0;
    double rate() const { return tokens / seconds; }
  };

  void choose(std::span<const DraftRequest> requests);
  void estimate_acceptance(std::span<const DraftRequest> requests);
  Worth best_length(std::span<const DraftRequest> requests) const;
  double tokens_of(std::span<const DraftRequest> requests, int32_t length) const;
  double draft_seconds(size_t sequences, int32_t length) const;
  void cut_each(std::span<const DraftRequest> requests, const Worth& best);
  void try_another(std::span<const DraftRequest> requests, const Worth& best);
  void propose_chosen(std::span<const DraftRequest> requests, std::span<DraftTree> trees);

  const std::unique_ptr<Proposer> inner_;
  const AdaptiveOptions options_;

  std::unordered_map<int64_t, Acceptance> of_request_;  // tried: as many as were to be right
  std::vector<Acceptance> at_depth_;                    // of tokens of a chain
  Acceptance drafts_;                                   // tried: drafts, right: tokens of them
  StepTimes step_times_;
  std::vector<StepTimes> draft_times_;  // by the power of two of sequences; rows: the length
  double nodes_per_wanted_ = 1;         // a proposer may have less to say than it is asked for
  double credit_ = 0;                   // seconds that trials may take
  int64_t trials_ = 0;

  // Of this step.
  std::vector<int32_t> lengths_;  // of each request
  std::vector<double> right_;     // [depth]: the share expected of a request like all others
  std::vector<double> factors_;   // of each request, on right_
  std::vector<DraftRequest> asked_;
  std::vector<DraftTree> answered_;
  int32_t length_ = 0;
  double drafted_seconds_ = 0, expected_seconds_ = 0;
  Estimates estimates_;
};

}  // namespace invar
