// The values that a forward leaves for the backward, layer by layer: the activations that enter a
// matrix product or a norm, and products that an elementwise function follows.
#pragma once

#include <array>
#include <vector>

#include "kernels/training.h"
#include "model/decoder.h"

namespace invar {

class Tape {
 public:
  // For batches of up to `max_rows` rows, all of which want logits. With `recompute` only the
  // layers' inputs are kept, and the backward runs each layer's forward again: less memory, the
  // same bits.
  Tape(const Decoder& decoder, const TrainingKernels& kernels, int max_rows,
       bool recompute = false);

  // How products and attention are computed whose parts are kept.
  const TrainingKernels& kernels() const { return *kernels_; }
  int max_rows() const { return max_rows_; }
  bool recompute() const { return recompute_; }
  const LayerActivations& layer(int index) const { return layers_[static_cast<size_t>(index)]; }
  // [T][D], the residual stream before the layer; of the module, behind its join.
  float* input(int layer) const { return inputs_[static_cast<size_t>(layer)]; }
  // Output of the model, or (1) of its module that predicts one token further: [T][D], the residual
  // stream after the layers, from which the head's input is made.
  float* output(int module = 0) const { return outputs_[module]; }
  const Activation& final_normed(int module = 0) const { return final_normed_[module]; }
  // The input of the module, [T][D]: the output of the model, or what its final norm makes of it.
  float* module_input() const { return module_input_; }
  bool norms_module_input() const { return norms_module_input_; }
  size_t bytes() const { return bytes_; }

 private:
  template <typename T>
  T* allocate(Device& device, int64_t count);
  Activation activation(const Decoder& decoder, int64_t width);
  void place_parts(const Decoder& decoder);

  const TrainingKernels* kernels_;
  int max_rows_;
  bool recompute_;
  size_t bytes_ = 0;
  std::vector<DeviceArray<std::byte>> memory_;
  std::vector<LayerActivations> layers_;
  std::vector<float*> inputs_;
  std::array<float*, 2> outputs_{};
  float* module_input_ = nullptr;
  bool norms_module_input_ = false;
  std::array<Activation, 2> final_normed_;
};

}  // namespace invar
