// The backward for the table of kernels: which rows, which columns, which heads. The work inside
// them is one of the sets' BackwardRows; the products of attention are one of the sets' matrix
// products.
#pragma once

#include "kernels/cpu/backward_rows.h"
#include "kernels/cpu/matmul.h"
#include "kernels/training.h"

namespace invar::cpu {

void round(const BackwardRows& rows, const RoundParams& p, const Execution& on);
void transpose(const TransposeParams& p,
               const Execution& on);  // bound by memory: the same for every set
void pack_columns(const PackColumnsParams& p, const Execution& on);
void bias_gradient(const BackwardRows& rows, const BiasGradientParams& p, const Execution& on);
void norm_backward(const BackwardRows& rows, const NormBackwardParams& p, const Execution& on);
void norm_gradient(const BackwardRows& rows, const NormGradientParams& p, const Execution& on);
void gate_backward(const BackwardRows& rows, const GateBackwardParams& p, const Execution& on);
void qkv_backward(const BackwardRows& rows, const QkvBackwardParams& p, const Execution& on);
void embed_gradient(const BackwardRows& rows, const EmbedGradientParams& p, const Execution& on);
void loss(const BackwardRows& rows, const LossParams& p, const Execution& on);
void squares(const BackwardRows& rows, const SquaresParams& p, const Execution& on);
void adam(const BackwardRows& rows, const AdamParams& p, const Execution& on);
void add_gradient(const BackwardRows& rows, const AddGradientParams& p, const Execution& on);
void attention_backward(RunProduct run, const BackwardRows& rows, const AttentionBackwardParams& p,
                        const Execution& on);
int64_t attention_backward_scratch(int64_t max_positions, int64_t head_dim);

// Puts the operations of a set into the table.
template <const BackwardRows& rows>
void override_backward(TrainingKernels& k) {
  k.round = [](const RoundParams& p, const Execution& on) { round(rows, p, on); };
  k.transpose = transpose;
  k.pack_columns = pack_columns;
  k.bias_gradient = [](const BiasGradientParams& p, const Execution& on) {
    bias_gradient(rows, p, on);
  };
  k.norm_backward = [](const NormBackwardParams& p, const Execution& on) {
    norm_backward(rows, p, on);
  };
  k.norm_gradient = [](const NormGradientParams& p, const Execution& on) {
    norm_gradient(rows, p, on);
  };
  k.gate_backward = [](const GateBackwardParams& p, const Execution& on) {
    gate_backward(rows, p, on);
  };
  k.qkv_backward = [](const QkvBackwardParams& p, const Execution& on) {
    qkv_backward(rows, p, on);
  };
  k.embed_gradient = [](const EmbedGradientParams& p, const Execution& on) {
    embed_gradient(rows, p, on);
  };
  k.loss = [](const LossParams& p, const Execution& on) { loss(rows, p, on); };
  k.squares = [](const SquaresParams& p, const Execution& on) { squares(rows, p, on); };
  k.adam = [](const AdamParams& p, const Execution& on) { adam(rows, p, on); };
  k.add_gradient = [](const AddGradientParams& p, const Execution& on) {
    add_gradient(rows, p, on);
  };
}

// The same for attention, when the order is `portable`.
template <RunProduct run, const BackwardRows& rows>
void override_attention_backward(TrainingKernels& k) {
  if (k.order != Order::portable) return;
  k.attention_backward = [](const AttentionBackwardParams& p, const Execution& on) {
    attention_backward(run, rows, p, on);
  };
  k.attention_scratch = attention_backward_scratch;
}

}  // namespace invar::cpu
