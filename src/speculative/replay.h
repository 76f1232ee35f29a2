// A proposer that knows the answers: they were recorded, and as many drafts are spoiled as it is
// told. It measures what drafting could gain (a drafter of a given acceptance at no cost, or, with
// `cost_seconds`, at a real drafter's), and it is every adversary of the audit: always right,
// always wrong, random, right until the last.
#pragma once

#include <map>
#include <vector>

#include "speculative/proposer.h"

namespace invar {

struct ReplayOptions {
  int32_t num_speculative_tokens = 4;
  double right = 1;            // the share of nodes of the path that hold the answer's token
  bool last_is_wrong = false;  // the last node of a path never does
  int32_t branches = 1;        // children of a node, of which one goes on
  int32_t vocab = 0;           // spoiled drafts are tokens below it
  uint64_t seed = 0;
  double cost_seconds = 0;  // that a level takes, waited out
};

class Replay final : public Proposer {
 public:
  // `answers`: per request its answer, without the prompt. Throws UsageError for a tree beyond
  // kMaxDraftNodes.
  Replay(const ReplayOptions& options, std::map<int64_t, std::vector<int32_t>> answers);

  std::string_view name() const override { return "replay"; }
  int32_t most_nodes() const override {
    return options_.num_speculative_tokens * options_.branches;
  }
  bool makes_branches() const override { return options_.branches > 1; }
  void propose(std::span<const DraftRequest> requests, std::span<DraftTree> trees) override;

 private:
  void draft(const DraftRequest& request, const std::vector<int32_t>& answer,
             DraftTree& tree) const;

  const ReplayOptions options_;
  const std::map<int64_t, std::vector<int32_t>> answers_;
};

}  // namespace invar
