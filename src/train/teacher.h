// A frozen model that runs over the batches of another.
#pragma once

#include "kv/sequence_store.h"
#include "model/decoder.h"
#include "model/forward.h"
#include "train/scores.h"
#include "train/trainer.h"

namespace invar {

class Teacher {
 public:
  // For batches of up to `rows` packed rows of `context` positions that keep up to `max_aux_layers`
  // layers' hidden states.
  Teacher(const TeacherOptions& options, const Kernels& kernels, Device& device, ThreadPool& pool,
          int rows, int context, int max_aux_layers = 0);

  // The logits of every row [T][V], on its device, until the next batch.
  const float* logits(const Batch& batch);

  // REQUIRES: a host's device. The scores live until the next batch, and so do the hidden states
  // that the batch wants: [aux_layers][T][D].
  const Scores& run(const Batch& batch);
  const Scores& scores() const { return scores_; }
  std::span<const float> aux_hidden() const { return io_.aux_hidden; }
  // Per row: whether a key or value was not finite or a logit is NaN.
  std::span<const bool> non_finite() const { return io_.non_finite; }
  const Decoder& decoder() const { return decoder_; }

 private:
  DecoderWeights weights_;
  Decoder decoder_;
  SequenceStore kv_;
  Workspace workspace_;
  ForwardIo io_;
  Scores scores_;
};

}  // namespace invar
