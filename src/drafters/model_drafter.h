// Drafts by a model, token after token: a smaller one of the same vocabulary (Leviathan et al.,
// "Fast Inference from Transformers via Speculative Decoding", 2023; method "draft_model"), or the
// first layers of the target itself behind its own final norm and head (method "early_exit", where
// it is no chain or runs on a device: early_exit.h),
// or the target without some of its inner layers (Xia et al., "SWIFT", 2024; method "swift").
//
// The drafter has keys and values of its own for every sequence and computes what it has not seen
// of it before it drafts: a prompt once more, by the smaller model. A draft of K tokens costs K
// steps of one row per sequence, all sequences together. It pays when the drafter's step costs less
// than its drafts are accepted: with acceptance a and cost c (of the target's step),
// (1 - a^(K+1)) / ((1 - a)(c K + 1)) > 1.
//
// Where its layers have states, a draft ends before the row that would move them: what is refused
// has changed nothing.
//
// With a tree, the last known token and the nodes below it are computed again at each level: keys
// and values of those beside the trunk live in scratch blocks for one step (kv/placement.h). The
// last known token is not computed again where that would move a state twice: then only the trunk
// and the tokens beside it are drafted, and likewise where no scratch chunks are left.
#pragma once

#include <memory>
#include <string>
#include <unordered_map>

#include "drafters/draft_blocks.h"
#include "drafters/draft_sampler.h"
#include "engine/executor.h"
#include "speculative/tree_shape.h"

namespace invar {

// The memory of a drafter with keys and values.
struct DrafterRoom {
  int max_sequences = 128;       // that are drafted for at the same time
  int32_t context = 0;           // tokens of the longest; 0: what the model has
  int64_t kv_bytes = 512 << 20;  // for keys and values, at most
  int32_t catch_up_rows = 512;   // known tokens that one step computes, all sequences together
};

struct ModelDrafterOptions {
  TreeShape shape;
  int exit_layer = 0;  // the layers of the target that draft; 0: a model of its own, all layers
  std::vector<int> skipped_layers;  // of the target, which then drafts without them; see swift
  double confidence = 0;            // see DraftSampler
  DrafterRoom room;
};

class ModelDrafter final : public Proposer {
 public:
  // `model` is the drafter, which lives as long. `threads` null: the model's own.
  ModelDrafter(std::shared_ptr<Model> model, const ModelDrafterOptions& options,
               ThreadPool* threads = nullptr);

  std::string_view name() const override {
    if (!options_.skipped_layers.empty()) return "swift";
    return options_.exit_layer > 0 ? "early_exit" : "draft_model";
  }
  int32_t most_nodes() const override { return static_cast<int32_t>(options_.shape.size()); }
  bool makes_branches() const override { return !is_chain_; }
  void propose(std::span<const DraftRequest> requests, std::span<DraftTree> trees) override;
  void forget(int64_t id) override;
  void recover() override;

 private:
  // A sequence that is drafted for in this round.
  struct Draft {
    const DraftRequest* request;
    DraftTree* tree;
    std::vector<int32_t>* computed;  // tokens whose keys and values are there
    int32_t done = 0;                // of the known ones
    int32_t nodes = 0;               // of the shape that are drafted
    std::vector<int32_t> token_of;   // by node of the shape; -1: none

    int32_t known() const { return static_cast<int32_t>(request->tokens.size()); }
  };
  // A row of the batch whose logits give the tokens below a node (-1: the last known token).
  struct Wanted {
    size_t draft;
    int32_t node;
  };

  bool begin(Draft& draft);
  void run_known_rows();
  void end_chunks(int32_t& left);
  bool run_level(int32_t level);
  bool begins_a_chunk(const Draft& draft) const;
  void add_known_rows(size_t index, int32_t count);
  void add_trunk_row(size_t index, int32_t level);
  void add_tree_rows(size_t index, int32_t level);
  int32_t add_sequence(const Draft& draft);
  // Whether a node has a token after which the draft goes on.
  bool is_inner(const Draft& draft, int32_t node) const;
  void want_children(size_t index, int32_t node, int64_t row);
  bool run_batch();
  void clear_batch();
  void write_tree(const Draft& draft) const;

  const ModelDrafterOptions options_;
  const std::vector<int32_t> levels_, ranks_below_;  // of the shape
  const int32_t depth_;
  const int32_t trunk_;  // nodes of the shape, one below the other, that come first
  const bool is_chain_;
  std::shared_ptr<Model> model_;
  ThreadPool& pool_;
  const int32_t context_;
  const bool has_states_;
  const int32_t path_cells_;  // chunks for paths of trees
  DraftBlocks blocks_;
  Executor executor_;
  DraftSampler sampler_;
  std::unordered_map<int64_t, std::vector<int32_t>> computed_;

  // The drafts of this round, and the batch that is being built in it.
  std::vector<Draft> drafts_;
  int32_t free_path_cells_ = 0;  // in the step of this level
  Batch batch_;
  std::vector<Wanted> wanted_;
  std::vector<DraftPoint> points_;  // one for each
};

}  // namespace invar
