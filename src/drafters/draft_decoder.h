// The decoder of a drafter that is trained for a target and shares its device: weights, keys and
// values of its own, the model's parts, recorded steps. One rank, whatever the target has.
#pragma once

#include <memory>
#include <vector>

#include "engine/model.h"
#include "model/forward.h"
#include "model/step_upload.h"

namespace invar {

class DraftDecoder {
 public:
  struct Limits {
    int blocks = 1, block_size = 32;
    int max_rows = 1, max_logit_rows = 1;
  };

  // `tensors` are read here. Where `spec` has no embedding, it is the target's, which lives as
  // long. Computes on `pool` where the target does not compute on a GPU.
  DraftDecoder(const DecoderSpec& spec, const TensorSource& tensors, Model& target,
               ThreadPool& pool, const Limits& limits);

  const DecoderSpec& spec() const { return decoder_.spec; }
  const Limits& limits() const { return limits_; }
  void run(const Batch& batch, ForwardIo& io) {
    forward(decoder_, batch, kv_, workspace_, solo_group(), io, &graphs_);
  }
  // Before the next run.
  void copy_slots(const std::vector<SlotCopy>& copies);
  // Steps that were launched as graphs.
  int64_t recorded_steps() const { return graphs_.launched(); }

 private:
  const DecoderWeights& target_embedding(Model& target, ThreadPool& pool);

  const Limits limits_;
  std::unique_ptr<DecoderWeights> embedding_;  // the target's, where home has not all of it
  const DecoderWeights weights_;
  Decoder decoder_;
  SequenceStore kv_;
  Workspace workspace_;
  StepUpload copies_;
  StepGraphs graphs_;
};

}  // namespace invar
