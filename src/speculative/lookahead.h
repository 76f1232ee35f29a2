// Lookahead decoding: Fu et al., "Break the Sequential Dependency of LLM Inference Using Lookahead
// Decoding" (2024). Needs no model and no earlier text. A window of guesses is computed beside the
// answer in every step: W columns of N - 1 rows, of which each step replaces the oldest row by what
// the target finds likeliest after the youngest. Its diagonals are n-grams that the target itself
// made; they are kept by their first token, and those that begin with the answer's last token are
// the draft. N-grams of the sequence join them.
//
// It costs (W + G)(N - 1) rows a step, most of which are never accepted: it pays where rows are
// almost free (a GPU, or a large model's few rows), and not where a row costs its time.
#pragma once

#include <list>
#include <unordered_map>

#include "speculative/proposer.h"

namespace invar {

struct LookaheadOptions {
  int32_t window = 7;   // W; 0: n-grams of the sequence only
  int32_t ngram = 5;    // N
  int32_t guesses = 7;  // G: n-grams that are kept, and drafted, for a first token
};

class Lookahead final : public Proposer, public ArgmaxReader {
 public:
  // Throws UsageError unless window and guesses fit into a tree of kMaxDraftNodes together.
  explicit Lookahead(const LookaheadOptions& options);

  std::string_view name() const override { return "lookahead"; }
  int32_t most_nodes() const override { return (options_.window + options_.guesses) * rows(); }
  bool makes_branches() const override { return true; }
  ArgmaxReader* argmax_reader() override { return options_.window > 0 ? this : nullptr; }
  void propose(std::span<const DraftRequest> requests, std::span<DraftTree> trees) override;
  void observe_argmax(int64_t id, std::span<const int32_t> tokens) override;
  void forget(int64_t id) override { sequences_.erase(id); }

 private:
  using Ngram = std::vector<int32_t>;  // what follows its first token

  // The n-grams of one sequence, by their first token, the latest first.
  struct Sequence {
    std::unordered_map<int32_t, std::list<Ngram>> pool;
    int32_t seen = 0;                           // tokens whose n-grams are in the pool
    std::vector<std::vector<int32_t>> window;   // rows, the oldest first, each of W tokens
    std::vector<std::vector<int32_t>> node_of;  // where they stand in the last tree; -1: nowhere
  };

  int32_t rows() const { return options_.ngram - 1; }
  void learn(Sequence& sequence, int32_t first, Ngram rest) const;
  void learn_from(Sequence& sequence, std::span<const int32_t> tokens) const;
  void add_guesses(const Sequence& sequence, int32_t last, int32_t most, DraftTree& tree) const;
  void add_window(Sequence& sequence, std::span<const int32_t> tokens, int32_t most,
                  DraftTree& tree) const;

  const LookaheadOptions options_;
  std::unordered_map<int64_t, Sequence> sequences_;
};

}  // namespace invar
