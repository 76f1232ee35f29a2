// What one layer computes on its way.
#pragma once

#include "kernels/matrix.h"

namespace invar {

// One layer's activations. Without a tape all layers use the same memory in turn, each part anew,
// and what may be null is.
struct LayerActivations {
  // Of a layer that goes on from hidden states: [T][features] of another decoder; [T][D] rows of
  // the embedding; [T][2D] those and the hidden states.
  Activation features;
  float* embedded = nullptr;
  Activation joined;
  float* input = nullptr;     // [T][D] the residual stream before the layer, or null
  Activation normed;          // [T][D]
  float* qkv = nullptr;       // [T][(H + 2G) * E] the product where it is kept, or null
  float* products = nullptr;  // the same where it is not
  bf16_t* q = nullptr;        // [T][H][round_up(E, 32)]; f32 where the cache is
  float* max = nullptr;       // [T][H] or null; see PartialAttentionParams
  float* sum = nullptr;
  Activation attended;  // [T][H * E]
  // [T][D] what a part adds, before the norm behind it, or null
  float* attention_out = nullptr;
  float* ffn_out = nullptr;
  float* middle = nullptr;   // [T][D] the residual stream between attention and ffn, or null
  Activation ffn_normed;     // [T][D]
  float* gate_up = nullptr;  // [T][2 * round_up(F, 16)] the products, or null; [T][F] ungated
  Activation gated;          // [T][F]
  // Of latent attention.
  float* latent_narrow = nullptr;   // [T][what is made of the input]: for queries, then latents
  Activation latent_query;          // [T][what queries are made of], normed
  float* latent_wide = nullptr;     // [T][queries]: of all heads what stays still, then what turns
  Activation latent_still;          // [T][H][still elements]
  float* latent_queries = nullptr;  // [T][H][latent]
  float* latent_values = nullptr;   // [T][H][elements of an output]
  Activation latent_out;            // the same, rounded
  // Of a layer with experts, of which a row chooses C.
  float* router = nullptr;          // [T][experts (+ 1)] logits
  int32_t* chosen = nullptr;        // [T][C]
  float* expert_weights = nullptr;  // [T][C]
  int32_t* expert_begin = nullptr;  // [experts + 1]; see SortRowsParams
  int32_t* expert_place = nullptr;  // [T][C]
  int32_t* expert_rows = nullptr;   // [T * C]
  Activation expert_inputs;         // [T * C][D]
  Activation expert_gated;          // [T * C][F of an expert]
  Activation expert_outputs;        // [T * C][D], f32 or as they are rounded
  Activation expert_sent;           // [T * C][D], rounded, of all ranks; and their pieces
  Activation expert_pieces;
  Activation shared_gated;  // [T][F of the shared expert]
  float* shared = nullptr;  // [T][round_up(D, 32)]
};

}  // namespace invar
