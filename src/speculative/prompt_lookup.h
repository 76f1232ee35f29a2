// Prompt lookup (n-gram) drafting: the last tokens of a sequence are looked for earlier in it, and
// what followed them there is the draft. Saxena, "Prompt Lookup Decoding" (2023); vLLM's method
// "ngram". It costs a pass over the sequence and no model; it pays where answers copy from their
// prompt (editing, summaries, code) and is idle elsewhere.
#pragma once

#include "speculative/proposer.h"

namespace invar {

struct PromptLookupOptions {
  int32_t num_speculative_tokens = 5;
  int32_t prompt_lookup_min = 2, prompt_lookup_max = 5;  // length of what is looked for
};

class PromptLookup final : public Proposer {
 public:
  // Throws UsageError unless 1 <= min <= max and the number of tokens is from 1 to kMaxDraftNodes.
  explicit PromptLookup(const PromptLookupOptions& options);

  std::string_view name() const override { return "ngram"; }
  int32_t most_nodes() const override { return options_.num_speculative_tokens; }
  void propose(std::span<const DraftRequest> requests, std::span<DraftTree> trees) override;

 private:
  PromptLookupOptions options_;
  std::vector<int32_t> border_;  // of the reversed sequence; grows to the longest seen
};

// Where what followed the longest match of the sequence's end begins: the end matches with at least
// `min` and at most `max` tokens, the earliest of the longest matches (vLLM's rule). -1 without
// one. `border` is working memory.
int64_t find_continuation(std::span<const int32_t> tokens, int32_t min, int32_t max,
                          std::vector<int32_t>& border);

}  // namespace invar
