// One optimizer step after another of a drafter behind a frozen target. The weights after N steps
// are a function of the recipe, the target's weights and the rows; threads and instruction sets are
// schedules of it (numerics 9).
#pragma once

#include "train/drafter/drafter_graph.h"
#include "train/teacher.h"

namespace invar {

struct DrafterOptions {
  DrafterRecipe recipe;
  ModelConfig target;
  std::shared_ptr<const TensorSource> weights;  // the target's
  std::vector<int32_t> frequent;                // tokens that EAGLE-3 knows, ascending
  int threads = 0;                              // 0: one per core
  std::string instruction_set = "auto";
};

struct DrafterReport {
  int64_t step = 0;
  std::vector<LevelScore> levels;
  double gradient_norm = 0, rate = 0;
  int64_t tokens = 0;  // positions computed
};

class DrafterTrainer {
 public:
  // Begins with the first weights, or goes on from a state. Throws UsageError when the recipe does
  // not fit the target.
  explicit DrafterTrainer(const DrafterOptions& options, const TrainingState* state = nullptr);

  int64_t steps_done() const { return step_; }
  // Throws Error naming the step when something is not finite; the state is then that of the step
  // before.
  DrafterReport step(std::span<const PackedRow> rows);
  // Scores any number of rows, without learning from them.
  std::vector<LevelScore> evaluate(std::span<const PackedRow> rows);

  void copy_state(TrainingState& state) const;
  int64_t state_size() const { return graph_->parameters().size(); }
  const TensorSource& weights() const { return graph_->parameters().source(); }
  // A new directory in the published layout: config.json and model.safetensors.
  void write(const std::string& directory, ThreadPool& pool) const;

 private:
  void run(std::span<const PackedRow> rows, double total, bool learns,
           std::span<LevelScore> scores);
  void check_finite(int64_t first_row) const;

  const DrafterRecipe recipe_;
  int64_t step_ = 0;
  std::unique_ptr<Device> device_;
  ThreadPool pool_;
  DrafterMath math_;
  Teacher target_;
  std::unique_ptr<DrafterGraph> graph_;
  Batch batch_;
};

// The `count` tokens that occur most often in the first documents, of equals the lower ones;
// ascending.
std::vector<int32_t> frequent_tokens(DocumentSource& documents, int64_t first, int vocab,
                                     int count);

}  // namespace invar
