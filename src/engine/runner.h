// One worker's part of an executor: it runs batches through the layers of its stage, on its rank's
// share of them. Owns the blocks' memory and the step's workspace.
#pragma once

#include <memory>
#include <vector>

#include "collectives/channel.h"
#include "collectives/group.h"
#include "engine/worker_messages.h"
#include "model/forward.h"
#include "model/step_upload.h"

namespace invar {

// The others with whom a worker computes. These objects outlive the use.
struct WorkerLinks {
  Group* group = &solo_group();
  Channel *before = nullptr, *after = nullptr;  // stages; null at the ends
};

class Runner {
 public:
  // `shared_keys`: another runner's keys and values, on which this one computes, or null.
  Runner(Decoder decoder, const RunnerLimits& limits, SequenceStore* shared_keys);

  // Scratch cells for drafts of up to `most_nodes` for each of so many sequences: a path may cross
  // one boundary.
  static int32_t draft_cells(int32_t sequences, bool makes_branches, int32_t most_nodes) {
    return sequences + 2 * (makes_branches ? most_nodes : 1);
  }
  // The bytes of all cells of layers of these shapes.
  static int64_t cell_bytes(std::span<const StateShape> layers, const RunnerLimits& limits,
                            CacheType type);

  // Runs the layers of the batch that are this stage's. Their results go to the stage behind, or in
  // the last stage to the caller.
  void run(const Batch& batch, const WorkerLinks& links, ForwardIo& io);
  void copy_slots(const std::vector<SlotCopy>& copies);
  // It computes with others from now on: what was recorded names the memory of those before.
  void forget_recordings() { graphs_ = {}; }

  const Decoder& decoder() const { return decoder_; }
  SequenceStore& kv() { return kv_; }
  // Its own keys and values, or null where they are another runner's.
  SequenceStore* own_kv() { return own_kv_.get(); }
  // How the last batch was placed, until the next.
  const Placement& placement() const { return workspace_.table_builder.placement(); }
  const CellPlacement& cell_placement() const { return workspace_.table_builder.cell_placement(); }
  // Device memory of the activations.
  int64_t workspace_bytes() const { return static_cast<int64_t>(workspace_.bytes()); }
  int64_t recorded_steps() const { return graphs_.launched(); }
  // How long it waited for the stage before, all batches.
  double waited_seconds() const { return waited_seconds_; }

 private:
  // The rows that one stage leaves to the next.
  struct Carried {
    std::span<float> hidden;            // [T][D]: the residual stream, where the device takes it
    std::vector<float> others;          // [aux layers][T][D]
    std::unique_ptr<bool[]> nan_flags;  // [T]
  };

  // The layers of `batch` that are this stage's.
  LayerRange own_layers(const Batch& batch) const;
  void run_stage(const Batch& batch, const WorkerLinks& links, ForwardIo& io);
  void take_part(const Batch& batch, LayerRange layers);
  std::span<float> place_of_hidden() const;
  // Whether the residual stream goes from GPU to GPU through memory that both stages see.
  bool is_placed(const Batch& batch, const Channel* channel) const;
  void receive(const Batch& batch, Channel& from);
  void add_results(const ForwardIo& io);
  void send(const Batch& batch, Channel& to, float* place) const;

  const RunnerLimits limits_;
  Decoder decoder_;
  const Shard& shard_;
  std::unique_ptr<SequenceStore> own_kv_;  // null where it is another runner's
  SequenceStore& kv_;
  Workspace workspace_;
  StepUpload copies_;
  StepGraphs graphs_;

  Batch part_;  // of a batch, in one of several stages
  Carried carried_;
  std::shared_ptr<Event> taken_;  // what was placed for this stage has been copied to the device
  double waited_seconds_ = 0;
};

}  // namespace invar
