// EAGLE: Li et al., "EAGLE: Speculative Sampling Requires Rethinking Feature Uncertainty" (2024),
// "EAGLE-2" (2024, its trees) and "EAGLE-3" (2025); methods "eagle" and "eagle3". One decoder layer
// reads a feature of the target (its last hidden state; in EAGLE-3 three of them, fused) and the
// embedding of the token that followed, and predicts the token after that. For further tokens it is
// applied again, to its own output.
//
// A draft of K levels costs K times the layer and the head, which in EAGLE-3 knows the frequent
// tokens alone; all sequences together, on the CPU. Every row that the target computed is computed
// once by the layer, too. Rows that came from the prefix cache are looked up (draft_history.h); a
// sequence of which some are missing is not drafted for. It pays with a layer that was trained for
// the target, and trees pay where rows are cheap.
#pragma once

#include <unordered_map>

#include "drafters/draft_history.h"
#include "drafters/draft_sampler.h"
#include "drafters/eagle_layer.h"
#include "drafters/model_drafter.h"
#include "drafters/target_parts.h"
#include "speculative/dynamic_tree.h"

namespace invar {

struct EagleOptions {
  EagleKind kind = EagleKind::eagle3;
  int32_t num_speculative_tokens = 3;  // nodes of a tree
  int32_t topk = 1;       // nodes of a level that are expanded, and children of each; 1: a chain
  int32_t depth = 3;      // levels
  double confidence = 0;  // of a chain: see DraftSampler
  DrafterRoom room;
};

class Eagle final : public Proposer {
 public:
  // Throws what EagleWeights does.
  Eagle(const std::string& directory, const EagleOptions& options, Model& target, ThreadPool& pool);

  std::string_view name() const override {
    return options_.kind == EagleKind::eagle3 ? "eagle3" : "eagle";
  }
  int32_t most_nodes() const override { return options_.num_speculative_tokens; }
  bool makes_branches() const override { return options_.topk > 1; }
  std::span<const int32_t> aux_layers() const override { return weights_.aux_layers; }
  void take_hidden(std::span<const KeptRows> kept, std::span<const float> hidden,
                   int64_t batch_rows) override;
  void propose(std::span<const DraftRequest> requests, std::span<DraftTree> trees) override;
  void forget(int64_t id) override { sequences_.erase(id); }

  const EagleWeights& weights() const { return weights_; }

 private:
  struct Sequence {
    explicit Sequence(DraftHistory& history) : rows(history) {}
    DraftHistory::Rows rows;
    std::vector<float> last;  // the layer's output for the last row
    bool is_lost = false;     // rows are missing
  };
  // Of a node that was expanded.
  struct Expanded {
    std::vector<float> key, value, out;
  };
  // A sequence that is drafted for in this round.
  struct Draft {
    const DraftRequest* request;
    DraftTree* tree;
    const Sequence* sequence;
    int32_t depth = 0;
    std::vector<ScoredNode> nodes;
    std::vector<Expanded> expanded;  // by node
    std::vector<int32_t> frontier;   // expanded last; -1: the root
  };
  // A row that take_hidden adds to a sequence.
  struct NewRow {
    Sequence* sequence;
    int32_t position;
    std::span<const int32_t> tokens;
  };

  // Whether the sequence has all rows up to `position`.
  bool follows(Sequence& sequence, const KeptRows& kept) const;
  void append_features(std::span<const float> hidden, int64_t batch_rows, int32_t row,
                       std::vector<float>& features) const;
  void compute(std::span<const NewRow> rows, std::span<const float> features);
  void score_children();
  void choose_frontier(Draft& draft, int32_t begin) const;
  bool expand(int32_t level);
  void append_path(const Draft& draft, int32_t node, std::vector<KvRun>& runs) const;
  std::vector<int32_t> path_to(const Draft& draft, int32_t node) const;
  const std::vector<float>& output_of(const Draft& draft, int32_t node) const {
    return node < 0 ? draft.sequence->last : draft.expanded[static_cast<size_t>(node)].out;
  }

  const EagleOptions options_;
  ThreadPool& pool_;
  HostProducts products_;
  const EagleWeights weights_;
  EagleLayer layer_;
  DraftHistory history_;
  DraftSampler sampler_;
  const std::vector<float> final_norm_;  // the target's
  const float target_eps_;
  std::unordered_map<int64_t, Sequence> sequences_;
  std::vector<Draft> drafts_;  // of this round
};

}  // namespace invar
