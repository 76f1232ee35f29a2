// Drafts by the first layers of the target behind its own final norm and head (Elhoushi et al.,
// "LayerSkip", 2024), on the target's own keys and values: what the target has computed of a
// sequence is not computed again for the drafts, and what the drafts compute is not computed again
// to verify them (engine/shared_layers.h). A draft of K tokens costs K times these layers and the
// head, and saves the verification K times these layers. It is of use when the target was trained
// to answer there, too.
//
// Chains, where keys, values and hidden states are the host's; ModelDrafter does the rest.
#pragma once

#include <optional>
#include <unordered_map>

#include "drafters/draft_sampler.h"
#include "engine/executor.h"

namespace invar {

class EarlyExit final : public Proposer, public LayerSharer {
 public:
  // Drafts for at most `max_sequences` in a step. `target` lives as long.
  // `confidence`: see DraftSampler.
  EarlyExit(Model& target, int exit_layer, int32_t length, double confidence, int max_sequences,
            ThreadPool& threads);

  std::string_view name() const override { return "early_exit"; }
  int32_t most_nodes() const override { return length_; }
  LayerSharer* layer_sharer() override { return this; }
  int32_t shared_layers() const override { return exit_layer_; }
  void share(const Executor& target) override;
  void recover() override { executor_->recover(); }
  void propose(std::span<const DraftRequest> requests, std::span<DraftTree> trees) override;
  ComputedRows computed_rows(int64_t id) const override;

 private:
  // A sequence that is drafted for in this round.
  struct Draft {
    const DraftRequest* request = nullptr;
    DraftTree* tree = nullptr;
    int32_t position = 0;       // of the first row
    std::vector<float> hidden;  // [rows][width], behind the last of the layers
    bool goes_on = true;
  };

  void begin(const DraftRequest& request, DraftTree& tree);
  bool run_level();
  void add_row(Draft& draft);
  void keep(size_t row, const ForwardIo& io);

  Model& target_;
  const int exit_layer_, max_sequences_;
  const int32_t length_;
  const size_t width_;
  ThreadPool& pool_;
  std::optional<Executor> executor_;  // once the target's keys and values are there
  DraftSampler sampler_;

  // The drafts of this round, and of the level that is drafted in it.
  std::vector<Draft> drafts_;
  std::unordered_map<int64_t, size_t> draft_of_;  // by request
  Batch batch_;
  std::vector<size_t> going_;       // drafts, one for each row
  std::vector<DraftPoint> points_;  // the same
};

}  // namespace invar
