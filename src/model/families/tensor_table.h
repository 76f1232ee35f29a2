// Every tensor that a decoder can have, a row each: its name in Hugging Face checkpoints, its
// shape, which axis ranks share, and where it goes among a layer's weights. The rows of a layer
// stand with its parts (model/parts), the others here. Checks, loading, the layout of parameters
// and the transposed weights of training all read them.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "model/decoder_spec.h"
#include "model/layer_weights.h"

namespace invar {

enum class TensorRole {
  embedding,
  input_norm,
  input_norm_bias,
  q,
  k,
  v,
  q_bias,
  k_bias,
  v_bias,
  q_norm,
  k_norm,
  o,
  o_bias,
  sinks,
  attention_out_norm,
  post_norm,  // of what the feed-forward network reads
  post_norm_bias,
  gate,
  up,
  down,
  gate_bias,
  up_bias,
  down_bias,
  ffn_out_norm,
  query_down,
  query_norm,
  still_query,
  turning_query,
  latent_down,
  latent_norm,
  key_up,
  value_up,
  router,
  router_bias,
  choice_bias,
  shared_expert_gate,
  expert_gate,
  expert_up,
  expert_down,
  expert_gate_bias,
  expert_up_bias,
  expert_down_bias,
  shared_gate,
  shared_up,
  shared_down,
  fuse,
  fuse_bias,
  feature_norm,
  embedding_norm,
  hidden_norm,
  projection,  // [D][2D]: the token's embedding, then the hidden state
  projection_bias,
  block,
  block_bias,
  mtp_head_norm,
  final_norm,
  final_norm_bias,
  head,
};

// A size that the spec has.
enum class Extent {
  none,
  hidden,
  twice_hidden,
  attention_input,
  features,
  query,
  kv,
  head,
  heads,
  ffn,
  query_rank,
  still,
  still_query,
  turning_query,
  latent,
  latent_rank,
  latent_value,
  attended,
  one,
  experts,
  expert_ffn,
  shared_ffn,
  tokens,
  vocab
};

// Where tensors stand: once before the layers, in a layer, once after the layers.
enum class TensorPlace { input, layer, output };

// experts, heads: there is a tensor for each, of which a rank has some, whole.
enum class Axis { none, rows, columns, experts, heads };
constexpr bool is_of_each(Axis axis) {
  return axis == Axis::experts || axis == Axis::heads;
}

struct TensorRow {
  TensorRole role;
  const char*
      name;  // in a layer or module behind "model.layers.N.", {} for an expert's or a head's
  TensorPlace place;
  Extent rows, columns;   // columns none: a vector
  Axis cut = Axis::none;  // of which a rank has its share
  // Whether a model has it, or a layer; null: always.
  bool (*is_present)(const DecoderSpec&, const LayerSpec&) = nullptr;
  // Of a layer's tensors, one of the two. Neighbouring rows with the same target stand in it one
  // after the other; two in a matrix of gate and up take turns, panel by panel.
  Matrix LayerMatrices::*matrix = nullptr;
  const float* LayerWeights::*vector = nullptr;
};

// Whether a tensor's products are those of integers where it is stored so (numerics 2.1): q, k, v,
// o, gate, up and down. Others are then what they stand for, in bf16.
bool takes_quantised(TensorRole role);

// Those of a layer, in the order of computation.
std::vector<const TensorRow*> layer_tensors(const DecoderSpec& spec, int layer);
// The row of a tensor outside the layers.
const TensorRow& row_of(TensorRole role);

// `layer` -1: of the input or the output.
int64_t extent_of(Extent extent, const DecoderSpec& spec, int layer = -1);
std::string tensor_name(const TensorRow& row, int layer, int expert = -1);
// Whether two tensors with this target are a gated pair.
bool holds_pairs(Matrix LayerMatrices::*matrix);
// Of one outside the layers.
std::string tensor_name(TensorRole role, int layer = -1);

struct TensorSpec {
  TensorRole role;
  int layer;  // -1: not in a layer
  std::string name;
  std::vector<int64_t> shape;
  int expert = -1;  // or head; -1: not of one
};

// In the order of computation. Needs a spec that check_spec accepts.
std::vector<TensorSpec> tensors_of(const DecoderSpec& spec);

// Whether two layers have the same tensors, of the same shapes.
bool are_alike(const DecoderSpec& spec, int layer, int other);

}  // namespace invar
