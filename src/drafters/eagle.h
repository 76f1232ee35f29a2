// EAGLE: Li et al., "EAGLE: Speculative Sampling Requires Rethinking Feature Uncertainty" (2024),
// "EAGLE-2" (2024, its trees) and "EAGLE-3" (2025); methods "eagle" and "eagle3". One decoder layer
// reads a feature of the target (its last hidden state; in EAGLE-3 three of them, fused) and the
// embedding of the token that followed, and predicts the token after that. For further tokens it is
// applied again, to its own output.
//
// A draft of K levels costs K times the layer and the head, which in EAGLE-3 knows the frequent
// tokens alone; all sequences together, where the target computes. Every row that the target
// computed is computed once by the layer, too, when the next draft is wanted. Rows that came from
// the prefix cache are looked up (draft_history.h); a sequence of which some are missing is not
// drafted for. It pays with a layer that was trained for the target, and trees pay where rows are
// cheap.
#pragma once

#include <memory>
#include <unordered_map>

#include "drafters/draft_decoder.h"
#include "drafters/draft_history.h"
#include "drafters/draft_sampler.h"
#include "drafters/eagle_checkpoint.h"
#include "drafters/model_drafter.h"
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

class Eagle final : public Proposer, public HiddenReader {
 public:
  // Throws what EagleCheckpoint does.
  Eagle(const std::string& directory, const EagleOptions& options, Model& target, ThreadPool& pool);

  std::string_view name() const override {
    return options_.kind == EagleKind::eagle3 ? "eagle3" : "eagle";
  }
  int32_t most_nodes() const override { return options_.num_speculative_tokens; }
  bool makes_branches() const override { return options_.topk > 1; }
  HiddenReader* hidden_reader() override { return this; }
  std::span<const int32_t> aux_layers() const override { return checkpoint_.aux_layers(); }
  void take_hidden(std::span<const KeptRows> kept, std::span<const float> hidden,
                   int64_t batch_rows) override;
  void propose(std::span<const DraftRequest> requests, std::span<DraftTree> trees) override;
  void forget(int64_t id) override { sequences_.erase(id); }

  const EagleCheckpoint& checkpoint() const { return checkpoint_; }
  const DraftDecoder& decoder() const { return decoder_; }

 private:
  struct Sequence {
    explicit Sequence(DraftHistory& history) : rows(history) {}
    int32_t known_rows(size_t feature_values) const {
      return rows.size() + static_cast<int32_t>(waiting.size() / feature_values);
    }
    DraftHistory::Rows rows;     // that are computed
    std::vector<float> waiting;  // features of the rows after them
    bool is_lost = false;        // rows are missing
  };
  // A sequence that is drafted for in this round.
  struct Draft {
    const DraftRequest* request;
    DraftTree* tree;
    Sequence* sequence;
    int32_t depth = 0;
    std::vector<ScoredNode> nodes;
    // By node, the root first: the layer's output and, of a tree, the blocks up to it.
    std::vector<std::vector<float>> outputs;
    std::vector<BlockTable> tables;
    std::vector<int32_t> frontier;  // nodes whose children are wanted; -1: the root
  };
  // A row of the batch whose logits give the tokens below a node.
  struct Wanted {
    size_t draft;
    int32_t node;
  };

  // Whether the sequence has all rows up to where these begin.
  bool follows(Sequence& sequence, const KeptRows& kept) const;
  void append_features(std::span<const float> hidden, int64_t batch_rows, int32_t row,
                       std::vector<float>& features) const;
  bool begin(const DraftRequest& request, DraftTree& tree);
  bool add_waiting(Sequence& sequence, std::span<const int32_t> tokens, int32_t count);
  bool has_room(int32_t rows);
  void want(size_t draft, int32_t node);
  bool expand(int32_t level);
  bool add_node(Draft& draft, size_t index, int32_t node, int32_t level);
  void choose_frontier(Draft& draft, int32_t begin);
  void run_batch();
  void sample(int64_t first, std::span<const float> logits);
  void take_children(const Wanted& wanted, const DraftPoint& point, std::span<const float> output);
  std::vector<int32_t> path_to(const Draft& draft, int32_t node) const;

  const EagleOptions options_;
  ThreadPool& pool_;
  const std::unique_ptr<TensorSource> target_weights_;
  const EagleCheckpoint checkpoint_;
  const int32_t target_vocab_;
  const size_t width_, target_width_, feature_values_;
  DraftDecoder decoder_;
  DraftHistory history_;
  DraftSampler sampler_;
  std::unordered_map<int64_t, Sequence> sequences_;

  // The drafts of this round, and the batch that is being built in it.
  std::vector<Draft> drafts_;
  Batch batch_;  // its features are of the target's rows, or the layer's own outputs
  std::vector<SlotCopy> copies_;
  std::vector<Wanted> wanted_;
  std::vector<DraftPoint> points_;  // one for each
  std::vector<float> all_logits_;   // of the target's vocabulary
};

}  // namespace invar
