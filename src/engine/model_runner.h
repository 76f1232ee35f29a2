// Runs batches through a model, whatever it is spread over: threads, tensor-parallel ranks,
// pipeline stages. Owns the blocks' memory and the step's workspace.
#pragma once

#include <memory>
#include <vector>

#include "base/function_ref.h"
#include "engine/model.h"
#include "model/forward.h"

namespace invar {

struct RunnerLimits {
  int blocks = 0;
  int block_size = 64;
  int max_rows = 512;
  int max_logit_rows = 128;
  int max_aux_layers = 0;
};

class ModelRunner {
 public:
  // `threads` null: the model's own, for one runner at a time.
  ModelRunner(Model& model, const RunnerLimits& limits, ThreadPool* threads = nullptr);
  ~ModelRunner();

  // One step; results are rank 0's (they are the same on all). Throws what a rank throws, and from
  // then on always.
  void run(const Batch& batch, ForwardIo& io);
  // Rank 0's: what follows a step goes into its stream.
  const Decoder& decoder() const;
  // Moves keys and values between blocks, in every layer.
  void copy_slots(const std::vector<SlotCopy>& copies);

  Model& model() { return model_; }
  // Device memory of the activations, all ranks.
  int64_t workspace_bytes() const;
  const RunnerLimits& limits() const { return limits_; }

 private:
  struct Rank;
  struct Team;
  void run_stages(Rank& rank, const Batch& batch, ForwardIo& io);
  // Each rank's work on its own thread, at the same time; returns when all are done.
  void on_every_rank(FunctionRef<void(int)> work);

  Model& model_;
  RunnerLimits limits_;
  std::vector<std::unique_ptr<Rank>> ranks_;
  std::unique_ptr<Team> team_;  // the threads of ranks 1 and up
};

}  // namespace invar
