// The executable contract of every kernel: scalar, written for reading.
#pragma once

#include "kernels/backward.h"

namespace invar::reference {

void embed(const EmbedParams& p, Part part);
void rms_norm(const RmsNormParams& p, Part part);
template <Order order>
void matmul(const MatmulParams& p, Part part);
template <Order order>
void gated_matmul(const GatedMatmulParams& p, Part part);
void qkv(const QkvParams& p, Part part);
template <Order order>
void attention(const AttentionParams& p, Part part);
void add(const AddParams& p, Part part);
void copy_places(const CopyPlacesParams& p, Part part);
void round_in_place(const RoundInPlaceParams& p, Part part);
void log_sum_exp(const LogitsParams& p, Part part);

Kernels table(Order order);

void round(const RoundInPlaceParams& p, Part part);
void transpose(const TransposeParams& p, Part part);
void pack_columns(const PackColumnsParams& p, Part part);
void bias_gradient(const BiasGradientParams& p, Part part);
void norm_backward(const NormBackwardParams& p, Part part);
void norm_gradient(const NormGradientParams& p, Part part);
void gate_backward(const GateBackwardParams& p, Part part);
template <Order order>
void attention_backward(const AttentionBackwardParams& p, Part part);
void qkv_backward(const QkvBackwardParams& p, Part part);
void embed_gradient(const EmbedGradientParams& p, Part part);
void loss(const LossParams& p, Part part);
void squares(const SquaresParams& p, Part part);
void adam(const AdamParams& p, Part part);
void add_gradient(const AddGradientParams& p, Part part);

BackwardKernels backward_table(Order order);

}  // namespace invar::reference
