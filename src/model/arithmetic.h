// The arithmetic that a model runs with: part of the identity of every answer (numerics 8).
#pragma once

#include <string>

#include "model/decoder_spec.h"
#include "numerics/cache_type.h"
#include "numerics/orders.h"

namespace invar {

struct Arithmetic {
  Order order = Order::portable;
  DType weights = DType::bf16;  // of the matrices as they are multiplied; f16 is held as f32
  bool is_rounded = false;      // they were f32 or f16; norms and biases stay exact
  bool is_exact = false;        // everything is f32, keys and values, too
  // i8, e4m3, e4m3_row: products of integers (numerics 2.1), or of e4m3 numbers (2.2, 2.5), where
  // weights are such; bf16: of neither.
  DType quantised = DType::bf16;
  bool is_baseline = false;        // the conventional baseline of numerics 10
  bool multiplies_blocks = false;  // blocks as integers (numerics 2.3), not as their bf16 twins
  int baseline_split_k = 0;        // into which it cuts every product; 0: as the step's rows say
  // control-batch (numerics 10.1): ranks, each with one run of a row-parallel product, whose sums
  // are added in a chain. 0: the tree.
  int chain = 0;

  CacheType cache = CacheType::bf16;  // of keys and values (numerics 4.2); f32 where all is exact

  bool is_quantised() const { return quantised != DType::bf16; }
  // The type of the activations that meet them.
  DType activations() const { return weights == DType::f32 ? DType::f32 : DType::bf16; }
  // The type of queries, keys and values.
  DType heads() const { return is_exact ? DType::f32 : DType::bf16; }
};

// Split-K parts of the row-parallel products (numerics 2): functions of the model's shape
// alone.
int attention_output_split_k(const DecoderSpec& spec, const AttentionSpec& attention);
int recurrent_output_split_k(const RecurrentSpec& spec);
int channel_delta_output_split_k(const ChannelDeltaSpec& spec);
int conv_output_split_k(const DecoderSpec& spec);
int state_space_output_split_k(const StateSpaceSpec& spec);
int down_split_k(int ffn_width);
// Into how many ranks the model can be cut at most: the least of those.
int most_ranks(const DecoderSpec& spec);
// Into how many pipeline stages: one where a layer reads what is of another one, or of the
// embedding.
int most_stages(const DecoderSpec& spec);

// e.g. "invar-1/portable/bf16/row8.8": printed by every command, part of every receipt and
// checkpoint.
std::string identity(const Arithmetic& arithmetic, const DecoderSpec& spec);

}  // namespace invar
