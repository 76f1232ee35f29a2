// What one layer computes on its way.
#pragma once

#include "kernels/matrix.h"

namespace invar {

// One layer's activations. The forward without a tape has one of these for all layers, without the
// members that may be null.
struct LayerActivations {
  float* input = nullptr;  // [T][D] the residual stream before the layer, or null
  Activation normed;       // [T][D]
  float* qkv = nullptr;    // [T][(H + 2G) * E] the product, or null
  bf16_t* q = nullptr;     // [T][H][round_up(E, 32)]
  float* max = nullptr;    // [T][H] or null; see PartialAttentionParams
  float* sum = nullptr;
  Activation attended;       // [T][H * E]
  float* middle = nullptr;   // [T][D] the residual stream between attention and ffn, or null
  Activation ffn_normed;     // [T][D]
  float* gate_up = nullptr;  // [T][2 * round_up(F, 16)] the products, or null
  Activation gated;          // [T][F]
};

}  // namespace invar
