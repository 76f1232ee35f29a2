// The weights of a trainer of several ranks: each keeps those of the tensors that it owns, rounded,
// and before a layer is computed all ranks gather what they have of it. It takes the place of the
// layer before.
#pragma once

#include <map>
#include <memory>

#include "model/decoder.h"
#include "model/operation_times.h"
#include "model/transposed_weights.h"
#include "train/owned_tensors.h"

namespace invar {

class GatheredWeights final : public WeightSupply {
 public:
  // Gathers for `decoder`, whose weights are `weights`, made to be loaded in turn. `rounded` are
  // the rank's own. All but the spec must live as long.
  GatheredWeights(Group& group, const ParameterLayout& layout, const OwnedTensors& owned,
                  const bf16_t* rounded, DecoderWeights& weights, TransposedWeights& transposed,
                  const TrainingKernels& kernels, Decoder& decoder);
  ~GatheredWeights() override;

  // The rank's own weights are others now.
  void forget();
  // Adds up the times of the operations unless it is null.
  void set_times(OperationTimes* times) { times_ = times; }

  void need_embedding() override;
  void need_layer(int layer) override;
  void need_head() override;
  void need_layer_backward(int layer) override;
  void need_head_backward() override;

 private:
  class UnitSource;
  static constexpr int kNone = -1;

  void gather(int unit);
  void load_layer(int layer);
  TransposedWeights::Source gathered() const;
  bool is_tied() const { return decoder_.spec.tied_head; }

  Group& group_;
  const ParameterLayout& layout_;
  const OwnedTensors& owned_;
  const bf16_t* rounded_;
  DecoderWeights& weights_;
  TransposedWeights& transposed_;
  const TrainingKernels& kernels_;
  Decoder& decoder_;
  OperationTimes* times_ = nullptr;
  int input_ = kNone, output_ = kNone;  // units before the layers and behind them
  std::vector<int> layer_units_;
  DeviceArray<bf16_t> unit_;             // what was gathered last
  std::unique_ptr<UnitSource> stored_;   // it as the family stores it
  std::unique_ptr<TensorSource> other_;  // and as the decoder has it, where that differs
  // The units that are there: the one that was gathered, layers, embedding or head (their units),
  // the norm.
  int gathered_ = kNone, layer_ = kNone, end_ = kNone, transposed_layer_ = kNone;
  bool has_norm_ = false, has_transposed_head_ = false;
};

}  // namespace invar
