// Drafting by the longest earlier occurrence of a sequence's end, of any length, over the sequence
// and (where the request says so) over earlier answers: Oliaro et al., "SuffixDecoding" (2024);
// vLLM's method "suffix". It costs constant time a token and no model. The draft is as long as the
// match is sure: max_spec_factor tokens for each token that matches. Where a request predicts its
// answer, the prediction goes first and the draft is as long as it may be.
#pragma once

#include <list>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>

#include "speculative/prediction.h"
#include "speculative/proposer.h"
#include "speculative/suffix_automaton.h"

namespace invar {

struct SuffixLookupOptions {
  int32_t num_speculative_tokens = 24;
  double max_spec_factor = 1.0;
  int32_t min_match = 2;  // tokens of a match that is drafted from
  // Tokens of earlier answers that are kept, of all corpora together: requests name corpora, so
  // that their number is not bounded. Beyond it the corpus that was not used for longest goes as a
  // whole. 0: none.
  int64_t corpus_tokens = 1 << 20;
};

class SuffixLookup final : public Proposer {
 public:
  explicit SuffixLookup(const SuffixLookupOptions& options);

  std::string_view name() const override { return "suffix"; }
  int32_t most_nodes() const override { return options_.num_speculative_tokens; }
  void propose(std::span<const DraftRequest> requests, std::span<DraftTree> trees) override;
  // The answer joins its corpus.
  void forget(int64_t id) override;

  // Tokens of earlier answers that are kept now, and in how many corpora.
  int64_t kept_tokens() const { return kept_tokens_; }
  int64_t kept_corpora() const { return std::ssize(corpora_); }

 private:
  struct Text {  // an automaton and where a sequence stands in it
    std::shared_ptr<SuffixAutomaton> automaton;
    SuffixAutomaton::Match match;
  };
  struct Sequence {
    Text own, earlier;
    std::optional<Prediction> predicted;
    int32_t seen = 0, prompt_size = 0;  // tokens
    std::string corpus;
  };

  Sequence& follow(const DraftRequest& request);
  bool draft_prediction(const Sequence& sequence, int32_t most, DraftTree& tree) const;
  void draft(const Text& text, int32_t most, DraftTree& tree) const;
  std::shared_ptr<SuffixAutomaton> corpus(const std::string& name);
  void keep(const std::string& name, std::span<const int32_t> answer);
  void forget_beyond_limits();

  const SuffixLookupOptions options_;
  std::unordered_map<int64_t, Sequence> sequences_;
  // The one that was used last stands first.
  std::list<std::pair<std::string, std::shared_ptr<SuffixAutomaton>>> corpora_;
  std::unordered_map<std::string_view, decltype(corpora_)::iterator> corpus_of_;  // by its name
  int64_t kept_tokens_ = 0;
};

}  // namespace invar
