// The backward for the table of kernels: which rows, which columns, which heads. What happens
// inside is one of the sets' BackwardRows; the products of attention are one of the sets' matrix
// products.
#pragma once

#include "kernels/backward.h"
#include "kernels/cpu/backward_rows.h"
#include "kernels/cpu/matmul.h"

namespace invar::cpu {

void round(const BackwardRows& rows, const RoundParams& p, Part part);
void transpose(const TransposeParams& p, Part part);  // bound by memory: the same for every set
void pack_columns(const PackColumnsParams& p, Part part);
void bias_gradient(const BackwardRows& rows, const BiasGradientParams& p, Part part);
void norm_backward(const BackwardRows& rows, const NormBackwardParams& p, Part part);
void norm_gradient(const BackwardRows& rows, const NormGradientParams& p, Part part);
void gate_backward(const BackwardRows& rows, const GateBackwardParams& p, Part part);
void qkv_backward(const BackwardRows& rows, const QkvBackwardParams& p, Part part);
void embed_gradient(const BackwardRows& rows, const EmbedGradientParams& p, Part part);
void loss(const BackwardRows& rows, const LossParams& p, Part part);
void squares(const BackwardRows& rows, const SquaresParams& p, Part part);
void adam(const BackwardRows& rows, const AdamParams& p, Part part);
void add_gradient(const BackwardRows& rows, const AddGradientParams& p, Part part);
void attention_backward(RunProduct run, const BackwardRows& rows, const AttentionBackwardParams& p,
                        Part part);
int64_t attention_backward_scratch(int64_t max_positions, int64_t head_dim);

// Puts the operations of a set into the table.
template <const BackwardRows& rows>
void override_backward(BackwardKernels& k) {
  k.round = [](const RoundParams& p, Part part) { round(rows, p, part); };
  k.transpose = transpose;
  k.pack_columns = pack_columns;
  k.bias_gradient = [](const BiasGradientParams& p, Part part) { bias_gradient(rows, p, part); };
  k.norm_backward = [](const NormBackwardParams& p, Part part) { norm_backward(rows, p, part); };
  k.norm_gradient = [](const NormGradientParams& p, Part part) { norm_gradient(rows, p, part); };
  k.gate_backward = [](const GateBackwardParams& p, Part part) { gate_backward(rows, p, part); };
  k.qkv_backward = [](const QkvBackwardParams& p, Part part) { qkv_backward(rows, p, part); };
  k.embed_gradient = [](const EmbedGradientParams& p, Part part) { embed_gradient(rows, p, part); };
  k.loss = [](const LossParams& p, Part part) { loss(rows, p, part); };
  k.squares = [](const SquaresParams& p, Part part) { squares(rows, p, part); };
  k.adam = [](const AdamParams& p, Part part) { adam(rows, p, part); };
  k.add_gradient = [](const AddGradientParams& p, Part part) { add_gradient(rows, p, part); };
}

// The same for attention, when the order is `portable`.
template <RunProduct run, const BackwardRows& rows>
void override_attention_backward(BackwardKernels& k) {
  if (k.order != Order::portable) return;
  k.attention_backward = [](const AttentionBackwardParams& p, Part part) {
    attention_backward(run, rows, p, part);
  };
  k.attention_scratch = attention_backward_scratch;
}

}  // namespace invar::cpu
