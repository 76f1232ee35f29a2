// A layer's weights as kernels read them, by what they do.
#pragma once

#include "kernels/matrix.h"

namespace invar {

// Its matrices. Tensors that meet the same input stand together as one.
struct LayerMatrices {
  Matrix fuse;         // [D][features]
  Matrix projection;   // [D][2D]: the token's embedding, then the hidden state
  Matrix block;        // [D][D]
  Matrix qkv;          // [(H + 2G) * E][D]: q, then k, then v
  Matrix o;            // [D][H * E]
  Matrix gate_up;      // [F][D], a stack of two; of one, up, where nothing is gated
  Matrix down;         // [D][F]
  Matrix latent_down;  // [what queries are made of, or queries; latent and what turns beside it][D]
  Matrix key_up;       // [latent][still elements of a query], a stack of heads
  Matrix value_up;     // [elements of an output][latent], a stack of heads
  Matrix router;       // [experts (+ the shared one's gate)][D]
  Matrix expert_gate_up;  // [F of an expert][D], a stack of pairs
  Matrix expert_down;     // [D][F of an expert], a stack
  Matrix shared_gate_up;  // [F of the shared expert][D], a pair
  Matrix shared_down;     // [D][F of the shared expert]
};

struct LayerWeights : LayerMatrices {
  const float* fuse_bias = nullptr;  // [D] or null, as the next five
  const float* feature_norm = nullptr;
  const float* embedding_norm = nullptr;
  const float* hidden_norm = nullptr;
  const float* projection_bias = nullptr;
  const float* block_bias = nullptr;
  const float* attention_norm = nullptr;       // [D] or null
  const float* attention_norm_bias = nullptr;  // [D] or null: of LayerNorm
  const float* q_norm = nullptr;               // [E] or null; [H * E] of a joint norm, k's [G * E]
  const float* k_norm = nullptr;
  const float* attention_out_norm = nullptr;  // [D] or null, as the next two
  const float* ffn_norm = nullptr;
  const float* ffn_norm_bias = nullptr;
  const float* ffn_out_norm = nullptr;
  const float* qkv_bias = nullptr;   // [(H + 2G) * E] or null
  const float* o_bias = nullptr;     // [D] or null
  const float* gate_bias = nullptr;  // [F] or null
  const float* up_bias = nullptr;
  const float* down_bias = nullptr;    // [D] or null
  const float* choice_bias = nullptr;  // [experts] or null, as the next one
  const float* router_bias = nullptr;
  const float* expert_gate_bias = nullptr;  // [experts that are here][F] or null, as the next one
  const float* expert_up_bias = nullptr;
  const float* expert_down_bias = nullptr;  // [experts that are here][D] or null
  const int32_t* expert_places = nullptr;   // [experts][2], or null: as they are numbered
  const float* sinks = nullptr;             // [H] or null
  const float* head_norm = nullptr;  // [D] of the module that predicts one token further, or null
};

}  // namespace invar
