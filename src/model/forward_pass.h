// One forward, part by part; see forward.cc.
#pragma once

#include "model/forward.h"
#include "model/hooks.h"
#include "model/operations.h"
#include "model/parts/part_of.h"

namespace invar {

// T rows, D model width, H query heads, G key/value heads, E head size, F ffn width, V vocabulary;
// heads, F and V are this rank's share.
class ForwardPass {
 public:
  ForwardPass(Decoder& decoder, const Batch& batch, SequenceStore& kv, Workspace& ws, Group& group,
              ForwardIo& io);

  // The host's part of a step, the tables.
  void prepare();
  // Its operations, which neither allocate nor wait where the group is of one rank. Recorded, they
  // can be launched again for every batch with as many rows and logit rows, whose tables lie where
  // those of the recording lay (StepTables), once that batch is prepared.
  void launch();
  // The same by a recorded graph, when this batch can be recorded.
  void launch(StepGraphs* graphs);
  void collect();

 private:
  void take_tokens();
  void start();
  void take_hidden();
  void take_features();
  void upload(std::span<const float> from, float* to, float* pinned);
  void run_layer(int layer);
  // The matrix that is read first behind a part of a layer, or null.
  const Matrix* matrix_behind(int layer, size_t part) const;
  void head(int64_t first);
  void hand_over();
  bool leaves_nothing_to_host() const;
  void compute_all_logits();

  bool is_first_stage() const { return batch_.layer_begin == 0; }
  // Whether there are flags of the layers before, to which these add theirs.
  bool has_nan_flags() const { return !is_first_stage() && !io_.nan_flags.empty(); }
  bool is_last_stage() const { return layer_end_ >= spec_.layers && shard_.has_head; }
  // The range is the module that predicts one token further.
  bool is_mtp() const { return layer_end_ > spec_.layers; }
  // Whether the first layer joins: then every row has features.
  bool reads_features() const { return features_of(spec_.layer_specs.front(), spec_.hidden) > 0; }
  bool embeds() const { return is_first_stage() && !reads_features(); }
  bool can_be_recorded() const;
  bool ranks_can_be_recorded() const;
  // How many logits a head from the `first` on computes.
  int64_t logits_from(int64_t first) const;
  std::span<const float> logits_to_host(int64_t first) const;
  float* hidden() const { return ws_.hidden.data(); }
  size_t hidden_size() const { return static_cast<size_t>(rows_ * spec_.hidden); }
  std::span<float> to_host(const DeviceArray<float>& from, float* copy, int64_t count) const;

  Decoder& model_;
  const DecoderSpec& spec_;
  const Shard& shard_;
  const Batch& batch_;
  SequenceStore& kv_;
  Workspace& ws_;
  Group& group_;
  ForwardIo& io_;
  const int64_t rows_;
  const int layer_end_;
  const Hooks hooks_;
  Operations ops_;
};

}  // namespace invar
