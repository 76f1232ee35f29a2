// Runs batches on whatever a model is spread over: threads, tensor-parallel ranks, pipeline stages,
// processes. An executor is a runner on every worker, with keys and values of its own or another
// one's. The bits are the same.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "engine/model.h"

namespace invar {

class Executor {
 public:
  // `threads` null: the model's own, for one executor at a time. `keys_of`: another executor of the
  // model, on whose keys and values this one computes, or null.
  Executor(Model& model, const RunnerLimits& limits, ThreadPool* threads = nullptr,
           const Executor* keys_of = nullptr);
  ~Executor();
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  // One step; results are home's (rank 0's are the same as those of the others). Throws
  // WorkerFailed, and from then on always, until recover().
  void run(const Batch& batch, ForwardIo& io);
  // Stages before home begin with a batch of all layers, which is run later, in the order of these
  // calls. Whether they do (Workers::tell); else nothing else is told or run before it.
  bool tell(const Batch& batch);
  // Throws WorkerFailed when a step that was waited for had not all of its ranks.
  void expect_whole();
  // Moves keys and values between blocks, in every layer.
  void copy_slots(const std::vector<SlotCopy>& copies);
  // Computes on workers that can go on. Its keys and values are lost.
  void recover();

  // Home's: what follows a step goes into its stream.
  const Decoder& decoder() const { return home().decoder(); }
  // How the last batch was placed, until the next.
  const Placement& placement() const { return home().placement(); }
  const CellPlacement& cell_placement() const { return home().cell_placement(); }
  // How many steps were launched as recorded graphs.
  int64_t recorded_steps() const { return home().recorded_steps(); }
  // How long the last stage waited for the one before, all steps.
  double waited_seconds() const { return home().waited_seconds(); }
  // Device memory of the activations, all workers of this process.
  int64_t workspace_bytes() const;
  Model& model() { return model_; }
  const RunnerLimits& limits() const { return limits_; }

 private:
  Runner& home() const { return workers_.home().runner(number_); }
  void expect_generation() const;
  void step(const WorkerMessage& message, Workers::AsWorker work, const int32_t* sampled = nullptr);

  Model& model_;
  Workers& workers_;
  const RunnerLimits limits_;
  const int32_t number_;  // of its runners
  int64_t generation_;    // of the workers that have its keys and values
  WorkerMessage run_ = RunBatch{}, copy_ = CopySlots{};  // what workers elsewhere are told
};

}  // namespace invar
