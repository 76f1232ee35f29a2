// What a forward leaves for the backward, layer by layer: the activations that enter a matrix
// product or a norm, and products that an elementwise function follows.
#pragma once

#include <vector>

#include "device/device.h"
#include "model/decoder.h"

namespace invar {

// One layer's activations. The forward without a tape has one of these for all layers, without the
// members that may be null.
struct LayerActivations {
  float* input = nullptr;  // [T][D] the residual stream before the layer, or null
  Activation normed;       // [T][D]
  float* qkv = nullptr;    // [T][(H + 2G) * E] the product, or null
  bf16_t* q = nullptr;     // [T][H][round_up(E, 32)]
  float* max = nullptr;    // [T][H] or null; see AttentionParams
  float* sum = nullptr;
  Activation attended;       // [T][H * E]
  float* middle = nullptr;   // [T][D] the residual stream between attention and ffn, or null
  Activation ffn_normed;     // [T][D]
  float* gate_up = nullptr;  // [T][2 * round_up(F, 16)] the products, or null
  Activation gated;          // [T][F]
};

class Tape {
 public:
  // For batches of up to `max_rows` rows, all of which want logits. With `recompute` only the
  // layers' inputs are kept, and the backward runs each layer's forward again: less memory, the
  // same bits.
  Tape(const Decoder& decoder, int max_rows, bool recompute = false);

  int max_rows() const { return max_rows_; }
  bool recompute() const { return recompute_; }
  const LayerActivations& layer(int index) const { return layers_[index]; }
  float* output() const { return output_.data(); }  // [T][D] the residual stream after the layers
  const Activation& final_normed() const { return final_normed_; }  // [T][D]
  size_t bytes() const { return bytes_; }

 private:
  template <typename T>
  T* allocate(Device& device, int64_t count);
  Activation activation(const Decoder& decoder, int64_t width);

  int max_rows_;
  bool recompute_;
  size_t bytes_ = 0;
  std::vector<DeviceArray<std::byte>> memory_;
  std::vector<LayerActivations> layers_;
  DeviceArray<float> output_;
  Activation final_normed_;
};

}  // namespace invar
