// A decoder's matrices the other way round: inputs as outputs, for the products that carry
// gradients back. The inner order is that of the forward's packed outputs: q, k, v; 16 of gate, 16
// of up in turn.
#pragma once

#include <vector>

#include "device/device.h"
#include "kernels/training.h"
#include "model/parameters.h"

namespace invar {

class TransposedWeights {
 public:
  // `in_turn`: layers share their memory, so that one is there at a time.
  TransposedWeights(const DecoderSpec& spec, Device& device, bool in_turn = false);

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

  // Inputs as outputs: qkv is [D][(H + 2G) * E], o [H * E][D], gate_up [D][2 * round_up(F, 16)],
  // down [F][D].
  const std::vector<LayerMatrices>& layers() const { return layers_; }
  const Matrix& head() const { return head_; }  // [D][V]
  // Of the module that predicts one token further: [D][D], to the embedding and to the hidden
  // state.
  const Matrix& mtp_embedding() const { return mtp_embedding_; }
  const Matrix& mtp_hidden() const { return mtp_hidden_; }

 private:
  using Matrices = std::vector<Matrix*>;
  Matrices describe_layer(int layer);
  void allocate(Device& device, const Matrices& matrices);
  static void place(bf16_t* memory, const Matrices& matrices);
  void share(Device& device, const std::vector<Matrices>& layers);
  void clear_for(int layer);

  DecoderSpec spec_;
  bool in_turn_;
  int last_layer_ = -1;  // in turn: the one that is there
  std::vector<DeviceArray<bf16_t>> memory_;
  std::vector<LayerMatrices> layers_;
  Matrix head_, mtp_embedding_, mtp_hidden_;
};

}  // namespace invar
