// The operations that training adds to operations.h; see backward.cu, backward_sums.cu and
// attention_backward.cu.
#pragma once

#include "kernels/training.h"

namespace invar::cuda {

void norm_backward(const NormBackwardParams& p, const Execution& on);
void norm_gradient(const NormGradientParams& p, const Execution& on);
void layer_norm_backward(const LayerNormBackwardParams& p, const Execution& on);
void layer_norm_gradient(const LayerNormGradientParams& p, const Execution& on);
void qkv_backward(const QkvBackwardParams& p, const Execution& on);
void curve_backward(const CurveBackwardParams& p, const Execution& on);
void gate_backward(const GateBackwardParams& p, const Execution& on);
// The end of a gated product whose dots are there.
void gate_dots(const KeptGatedMatmulParams& p, const Execution& on);
void transpose(const TransposeParams& p, const Execution& on);
void pack_columns(const PackColumnsParams& p, const Execution& on);
void bias_gradient(const BiasGradientParams& p, const Execution& on);
void embed_gradient(const EmbedGradientParams& p, const Execution& on);
void loss(const LossParams& p, const Execution& on);
void squares(const SquaresParams& p, const Execution& on);
void adam(const AdamParams& p, const Execution& on);
void add_gradient(const AddGradientParams& p, const Execution& on);
void pick(const PickParams& p, const Execution& on);
void pair_gradients(const PairGradientsParams& p, const Execution& on);
void shared_gradients(const SharedGradientsParams& p, const Execution& on);
void sum_pairs(const SumPairsParams& p, const Execution& on);
void router_backward(const RouterBackwardParams& p, const Execution& on);
void gather_leaves(const GatherLeavesParams& p, const Execution& on);
// Operations of one order.
template <Order order>
void extend_matmul(const MatmulParams& p, const Execution& on);
template <Order order>
void attention_backward(const AttentionBackwardParams& p, const Execution& on);
// The same of order hopper on the warpgroups' tensor cores, where heads and cache are for it.
bool backward_tiles_can(const AttentionBackwardParams& p);
void attention_backward_tiles(const AttentionBackwardParams& p, const Execution& on);
// M and L of attention (numerics 4.1, step 4), of whole sequences, or of those whose tables have
// few rows.
enum class SumsOf { all_rows, few_rows };
template <Order order>
void attention_sums(const PartialAttentionParams& p, SumsOf rows, const Execution& on);
// Attention of order hopper whose tiles of rows keep M and L.
bool tiles_keep_sums(const AttentionParams& p);
void attend_with_sums(const PartialAttentionParams& p, const Execution& on);

}  // namespace invar::cuda
