// Drafts as long as pays, whatever proposes them: Liu et al., "Optimizing Speculative Decoding for
// Serving Large Language Models Using Goodput" (2024). With each step it takes the length K, 0
// allowed, of the most expected tokens per second of the whole batch:
//
//   sum over sequences of (1 - a^(K+1)) / (1 - a), divided by step(rows) + draft(K)
//
// a: how often a draft of this sequence is right where the ones before it were, lately. step and
// draft: straight lines through the times of the last steps on this machine. A line needs points
// beside the best one, so that every 64th step tries another length.
//
// Times decide how long drafts are, never what an answer holds.
#pragma once

#include <unordered_map>
#include <vector>

#include "speculative/proposer.h"

namespace invar {

// A straight line through weighted points, of which each step forgets a little.
class LineFit {
 public:
  void add(double x, double y);
  // 0 without points; never falls with x.
  double at(double x) const;
  bool is_empty() const { return weight_ == 0; }

 private:
  double weight_ = 0, x_ = 0, y_ = 0, xx_ = 0, xy_ = 0;
};

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

  // The length that the last step was given.
  int32_t last_length() const { return length_; }

 private:
  // How often drafts were right, lately.
  struct Acceptance {
    double tried = 0, right = 0;
    void add(int32_t tried_now, int32_t right_now);
  };

  int32_t choose(std::span<const DraftRequest> requests);
  int32_t best_length(std::span<const DraftRequest> requests, int32_t most) const;
  double expected_tokens(int64_t id, int32_t length) const;

  const std::unique_ptr<Proposer> inner_;
  const AdaptiveOptions options_;
  std::unordered_map<int64_t, Acceptance> of_request_;
  Acceptance of_all_;
  LineFit step_seconds_, draft_seconds_;
  std::vector<DraftRequest> shorter_;
  int64_t rounds_ = 0;
  int32_t length_ = 0;
};

}  // namespace invar
