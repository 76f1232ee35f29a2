// The executor of this process: ranks are threads, stages follow one another. Owns the blocks'
// memory and the step's workspace.
#pragma once

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "base/function_ref.h"
#include "engine/executor.h"

namespace invar {

class ModelRunner final : public Executor {
 public:
  // `threads` null: the model's own, for one runner at a time.
  // `storages`: another runner's keys and values, a storage for each rank, that this one computes
  // on, instead of its own.
  ModelRunner(Model& model, const RunnerLimits& limits, ThreadPool* threads = nullptr,
              std::span<KvStorage* const> storages = {});
  // Plays one rank of a group whose others are elsewhere: the rank that the model's options name.
  // Computes on `threads`.
  ModelRunner(Model& model, const RunnerLimits& limits, ThreadPool& threads, Group& group);
  ~ModelRunner() override;

  void run(const Batch& batch, ForwardIo& io) override;
  const Decoder& decoder() const override;
  const Placement& placement() const override;
  void copy_slots(const std::vector<SlotCopy>& copies) override;
  std::vector<KvStorage*> storages() override;

  // Layers that steps leave out from now on, for drafters: ascending, and neither the first nor the
  // last.
  void skip_layers(std::vector<int> layers) { skipped_ = std::move(layers); }

  Model& model() { return model_; }
  int64_t workspace_bytes() const override;
  // Whether steps of few rows are launched as recorded graphs, where the device has them; they are
  // unless this says otherwise.
  void record_steps(bool wanted) { records_steps_ = wanted; }
  // How many were, rank 0's.
  int64_t recorded_steps() const;
  const RunnerLimits& limits() const { return limits_; }

 private:
  struct Rank;
  struct Team;
  int end_of_stage(int begin, int last) const;
  bool is_skipped(int layer) const { return std::ranges::binary_search(skipped_, layer); }
  void run_stages(Rank& rank, const Batch& batch, ForwardIo& io);
  // Each rank's work on its own thread, at the same time; returns when all are done.
  void on_every_rank(FunctionRef<void(int)> work);

  Model& model_;
  RunnerLimits limits_;
  bool records_steps_ = true;
  std::vector<int> skipped_;  // layers
  std::vector<std::unique_ptr<Rank>> ranks_;
  std::unique_ptr<Team> team_;  // the threads of ranks 1 and up
};

}  // namespace invar
