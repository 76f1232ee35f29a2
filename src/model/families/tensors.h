// Which tensors a decoder is made of, by the names of Hugging Face checkpoints.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "model/decoder_spec.h"
#include "weights/tensor_source.h"

namespace invar {

enum class TensorRole {
  embedding,  // [V][D]
  input_norm,
  q,  // [H * E][D]
  k,  // [G * E][D]
  v,
  q_bias,
  k_bias,
  v_bias,
  q_norm,  // [E]
  k_norm,
  o,  // [D][H * E]
  o_bias,
  post_norm,  // after attention
  gate,       // [F][D]
  up,
  down,  // [D][F]
  gate_bias,
  up_bias,
  down_bias,
  mtp_embedding_norm,  // [D]; of layer number spec.layers, as the next three
  mtp_hidden_norm,     // [D]
  mtp_projection,      // [D][2D]: the token's embedding, then the hidden state
  mtp_head_norm,       // [D]
  final_norm,
  head,  // [V][D]; absent when tied
};

struct TensorSpec {
  TensorRole role;
  int layer;  // -1: not in a layer
  std::string name;
  std::vector<int64_t> shape;
};

std::string tensor_name(TensorRole role, int layer = -1);

// In the order of computation. Needs a spec that check_spec accepts.
std::vector<TensorSpec> tensors_of(const DecoderSpec& spec);

// Throws Error unless `source` holds every tensor of the spec with its shape as bf16, f16 or f32,
// and nothing else that could matter (stored rotary frequencies are ignored, and the copies of
// embedding and head that a module of multi-token prediction may come with). A tied model may
// store lm_head.weight only when it equals the embedding, bit for bit: versions of transformers
// disagree about which of two different ones counts.
void check_tensors(const DecoderSpec& spec, const TensorSource& source);

// What the matrix products run in (numerics 0): bf16 when every matrix is bf16, else f32.
DType product_type(const DecoderSpec& spec, const TensorSource& source);

}  // namespace invar
