// Runs batches on whatever a model is spread over: threads, tensor-parallel ranks, pipeline stages;
// in this process (ModelRunner) or with ranks in others (engine/rank_processes.h). The bits are the
// same.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "engine/model.h"
#include "model/forward.h"

namespace invar {

struct RunnerLimits {
  int32_t blocks = 0;
  int32_t block_size = 64;
  int32_t max_rows = 512;
  int32_t max_logit_rows = 128;
  int32_t max_aux_layers = 0;
  // Of a drafter that is a part of the target. Keys and values are those of its layers alone.
  int32_t exit_layer = 0;   // the first so many layers, with the head behind them; 0: all
  bool mtp_module = false;  // the module that predicts one token further; batches begin with it
};

class Executor {
 public:
  virtual ~Executor() = default;

  // One step; results are rank 0's (they are the same on all). Throws what a rank throws, and from
  // then on always.
  virtual void run(const Batch& batch, ForwardIo& io) = 0;
  // How the last batch was placed, until the next.
  virtual const Placement& placement() const = 0;
  // Moves keys and values between blocks, in every layer.
  virtual void copy_slots(const std::vector<SlotCopy>& copies) = 0;
  // Every rank's keys and values, for a drafter of the target's own layers; empty where some are in
  // other processes.
  virtual std::vector<KvStorage*> storages() = 0;
  // Rank 0's: what follows a step goes into its stream.
  virtual const Decoder& decoder() const = 0;
  // Device memory of the activations, all ranks of this process.
  virtual int64_t workspace_bytes() const = 0;
};

// What the model's options ask for. `threads` null: the model's own, for one executor at a time.
std::unique_ptr<Executor> make_executor(Model& model, const RunnerLimits& limits,
                                        ThreadPool* threads = nullptr);

}  // namespace invar
