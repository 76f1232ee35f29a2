// Every tensor that a decoder can have, a row each: its name in Hugging Face checkpoints, its
// shape, which axis ranks share, and where it goes among a layer's weights. Checks, loading, the
// layout of parameters and the transposed weights of training all read this table.
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
  post_norm,  // after attention
  gate,
  up,
  down,
  gate_bias,
  up_bias,
  down_bias,
  mtp_embedding_norm,
  mtp_hidden_norm,
  mtp_projection,  // [D][2D]: the token's embedding, then the hidden state
  mtp_head_norm,
  final_norm,
  head,
};

// A size that the spec has.
enum class Extent { none, hidden, twice_hidden, query, kv, head, ffn, vocab };

// Where tensors stand: once before the layers, in every one, around that of the module of
// multi-token prediction, once after the layers.
enum class TensorPlace { input, layer, module, output };

enum class Axis { none, rows, columns };

struct TensorRow {
  TensorRole role;
  const char* name;  // in a layer or module behind "model.layers.N."
  TensorPlace place;
  Extent rows, columns;                              // columns none: a vector
  Axis cut = Axis::none;                             // of which a rank has its share
  bool (*is_present)(const DecoderSpec&) = nullptr;  // null: in every model
  // Of a layer's tensors, one of the two. Neighbouring rows with the same target stand in it one
  // after the other; two in gate_up take turns, panel by panel.
  Matrix LayerMatrices::*matrix = nullptr;
  const float* LayerWeights::*vector = nullptr;
};

// In the order of computation.
std::span<const TensorRow> tensor_table();
const TensorRow& row_of(TensorRole role);

int64_t extent_of(Extent extent, const DecoderSpec& spec);
bool is_present(const TensorRow& row, const DecoderSpec& spec);
// `layer` -1: of the input or the output.
std::string tensor_name(TensorRole role, int layer = -1);

struct TensorSpec {
  TensorRole role;
  int layer;  // -1: not in a layer
  std::string name;
  std::vector<int64_t> shape;
};

// In the order of computation. Needs a spec that check_spec accepts.
std::vector<TensorSpec> tensors_of(const DecoderSpec& spec);

}  // namespace invar
