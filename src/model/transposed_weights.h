// A decoder's matrices the other way round: inputs as outputs, for the products that carry
// gradients back. The inner order is that of the forward's packed outputs: q, k, v; 16 of gate, 16
// of up in turn.
#pragma once

#include <vector>

#include "device/device.h"
#include "kernels/training.h"
#include "model/decoder_weights.h"
#include "model/parameters.h"

namespace invar {

class TransposedWeights {
 public:
  // `in_turn`: layers share their memory, so that one is there at a time.
  TransposedWeights(const DecoderSpec& spec, Device& device, bool in_turn = false,
                    WeightLayout layout = WeightLayout::panels);

  // Bf16 in a parameter layout, from element `begin` on.
  struct Source {
    const bf16_t* weights;
    const ParameterLayout& layout;
    int64_t begin = 0;
  };
  // Takes over all matrices from an array of bf16 in a parameter layout.
  void update(const bf16_t* weights, const ParameterLayout& layout, const TrainingKernels& kernels,
              const Execution& on);
  // The same of a layer, or of the head.
  void update_layer(int layer, const Source& from, const TrainingKernels& kernels,
                    const Execution& on);
  void update_head(const Source& from, const TrainingKernels& kernels, const Execution& on);

  // The matrices of a layer's parts. Inputs stand as outputs: the matrix of q, k and v is [D][(H +
  // 2G) * E], of gate and up [D][2 * round_up(F, 16)].
  const LayerWeights& layer(int index) const { return layers_[static_cast<size_t>(index)]; }
  const Matrix& head() const { return head_; }  // [D][V]

 private:
  // A matrix, and the tensors that stand in it: of each expert, if it is a stack.
  struct Target {
    Matrix* matrix;
    std::vector<TensorRow> rows;
    bool is_pair;
  };
  using Targets = std::vector<Target>;
  class Visitor;

  void describe_layer(int layer);
  void allocate(Device& device, const Targets& targets);
  static void place(bf16_t* memory, const Targets& targets);
  void share(Device& device);
  void clear_for(int layer);

  DecoderSpec spec_;
  bool in_turn_;
  WeightLayout layout_;
  int last_layer_ = -1;  // in turn: the one that is there
  std::vector<DeviceArray<bf16_t>> memory_;
  std::vector<LayerWeights> layers_;
  std::vector<Targets> targets_;  // of each layer
  Matrix head_;
};

}  // namespace invar
