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
  TransposedWeights(const DecoderSpec& spec, Device& device);

  // Takes over all matrices from an array of bf16 in a parameter layout.
  void update(const bf16_t* weights, const ParameterLayout& layout, const TrainingKernels& kernels,
              const Execution& on);

  // Inputs as outputs: qkv is [D][(H + 2G) * E], o [H * E][D], gate_up [D][2 * round_up(F, 16)],
  // down [F][D].
  const std::vector<LayerMatrices>& layers() const { return layers_; }
  const Matrix& head() const { return head_; }  // [D][V]
  // Of the module that predicts one token further: [D][D], to the embedding and to the hidden
  // state.
  const Matrix& mtp_embedding() const { return mtp_embedding_; }
  const Matrix& mtp_hidden() const { return mtp_hidden_; }

 private:
  Matrix allocate(Device& device, int64_t n, int64_t k, int64_t count = 1);

  DecoderSpec spec_;
  std::vector<DeviceArray<bf16_t>> memory_;
  std::vector<LayerMatrices> layers_;
  Matrix head_, mtp_embedding_, mtp_hidden_;
};

}  // namespace invar
