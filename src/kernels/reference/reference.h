// The executable contract of every kernel: scalar, written for reading.
#pragma once

#include "kernels/indexer.h"
#include "kernels/recurrent_backward.h"
#include "kernels/training.h"

namespace invar::reference {

void embed(const EmbedParams& p, const Execution& on);
// One row of a table of blocks.
void embed_blocks(const Matrix& table, int64_t token, float* out);
void rms_norm(const RmsNormParams& p, const Execution& on);
void layer_norm(const LayerNormParams& p, const Execution& on);
void curve(const CurveParams& p, const Execution& on);
void gate_output(const OutputGateParams& p, const Execution& on);
void rotate_heads(const RotateHeadsParams& p, const Execution& on);
void add_norm(const AddNormParams& p, const Execution& on);
void scale_logits(const ScaleLogitsParams& p, const Execution& on);
template <Order order>
void matmul(const MatmulParams& p, const Execution& on);
template <Order order>
void gated_matmul(const GatedMatmulParams& p, const Execution& on);
void quantise(const QuantiseParams& p, const Execution& on);
void int8_matmul(const MatmulParams& p, const Execution& on);
void int8_gated_matmul(const GatedMatmulParams& p, const Execution& on);
// Blocks as integers (numerics 2.3).
void override_blocks(Kernels& kernels);
void quantise_fp8(const QuantiseParams& p, const Execution& on);
void fp8_matmul(const MatmulParams& p, const Execution& on);
void fp8_gated_matmul(const GatedMatmulParams& p, const Execution& on);
void qkv(const QkvParams& p, const Execution& on);
void place_values(const PlaceValuesParams& p, const Execution& on);
void gate_inputs(const GateInputsParams& p, const Execution& on);
void scale_rows(const ScaleRowsParams& p, const Execution& on);
template <Order order>
void attention(const AttentionParams& p, const Execution& on);
template <Order order>
void partial_attention(const PartialAttentionParams& p, const Execution& on);
void round(const RoundParams& p, const Execution& on);
void add(const AddParams& p, const Execution& on);
void add_silu(const AddSiluParams& p, const Execution& on);
void copy_slots(const CopySlotsParams& p, const Execution& on);
void store_slots(const StoreSlotsParams& p, const Execution& on);
void load_slots(const LoadSlotsParams& p, const Execution& on);
void copy_stored(const CopySlotsParams& p, const Execution& on);
void round_in_place(const RoundInPlaceParams& p, const Execution& on);
void log_sum_exp(const LogitsParams& p, const Execution& on);
void heads_matmul(const HeadsMatmulParams& p, const Execution& on);
void place_latent(const PlaceLatentParams& p, const Execution& on);
void store_index(const StoreIndexParams& p, const Execution& on);
template <Order order>
void index_scores(const IndexScoresParams& p, const Execution& on);
void choose_slots(const ChooseSlotsParams& p, const Execution& on);
void gather_slots(const GatherSlotsParams& p, const Execution& on);
void route(const RouteParams& p, const Execution& on);
void sort_rows(const SortRowsParams& p, const Execution& on);
void gather_rows(const GatherRowsParams& p, const Execution& on);
void weigh_rows(const WeighRowsParams& p, const Execution& on);
void expert_matmul(const ExpertMatmulParams& p, const Execution& on);
void expert_gated_matmul(const ExpertGatedMatmulParams& p, const Execution& on);
void combine(const CombineParams& p, const Execution& on);
void combine_norm(const CombineNormParams& p, const Execution& on);
void sample(const SampleRowsParams& p, const Execution& on);
void hash_logits(const HashLogitsParams& p, const Execution& on);
void copy_cells(const CopyCellsParams& p, const Execution& on);
void short_conv(const ShortConvParams& p, const Execution& on);
void recurrent_gates(const RecurrentGatesParams& p, const Execution& on);
void recurrent_keys(const RecurrentKeysParams& p, const Execution& on);
template <Order order>
void recurrence(const RecurrenceParams& p, const Execution& on);
void gated_norm(const GatedNormParams& p, const Execution& on);
void adapter_shrink(const AdapterParams& p, const Execution& on);
void adapter_round(const AdapterParams& p, const Execution& on);
void adapter_expand(const AdapterParams& p, const Execution& on);
void add_bias(const AddBiasParams& p, const Execution& on);
void gate_pairs(const GatePairsParams& p, const Execution& on);

Kernels table(Order order);

template <Order order>
void extend_matmul(const MatmulParams& p, const Execution& on);
template <Order order>
void kept_gated_matmul(const KeptGatedMatmulParams& p, const Execution& on);
void round(const RoundInPlaceParams& p, const Execution& on);
void transpose(const TransposeParams& p, const Execution& on);
void pack_columns(const PackColumnsParams& p, const Execution& on);
void bias_gradient(const BiasGradientParams& p, const Execution& on);
void norm_backward(const NormBackwardParams& p, const Execution& on);
void norm_gradient(const NormGradientParams& p, const Execution& on);
void gate_backward(const GateBackwardParams& p, const Execution& on);
void layer_norm_backward(const LayerNormBackwardParams& p, const Execution& on);
void layer_norm_gradient(const LayerNormGradientParams& p, const Execution& on);
void curve_backward(const CurveBackwardParams& p, const Execution& on);
template <Order order>
void attention_backward(const AttentionBackwardParams& p, const Execution& on);
void qkv_backward(const QkvBackwardParams& p, const Execution& on);
void embed_gradient(const EmbedGradientParams& p, const Execution& on);
void loss(const LossParams& p, const Execution& on);
void squares(const SquaresParams& p, const Execution& on);
void adam(const AdamParams& p, const Execution& on);
void add_gradient(const AddGradientParams& p, const Execution& on);
void pair_gradients(const PairGradientsParams& p, const Execution& on);
void sum_pairs(const SumPairsParams& p, const Execution& on);
void shared_gradients(const SharedGradientsParams& p, const Execution& on);
void router_backward(const RouterBackwardParams& p, const Execution& on);
void gather_leaves(const GatherLeavesParams& p, const Execution& on);
void short_conv_backward(const ShortConvBackwardParams& p, const Execution& on);
void gated_norm_backward(const GatedNormBackwardParams& p, const Execution& on);
void recurrent_gates_backward(const RecurrentGatesBackwardParams& p, const Execution& on);
void recurrent_keys_backward(const RecurrentKeysBackwardParams& p, const Execution& on);
void recurrence_backward(const RecurrenceBackwardParams& p, const Execution& on);
int64_t recurrence_backward_scratch(int64_t max_positions, int64_t key_size, int64_t value_size);
void row_sums(const RowSumsParams& p, const Execution& on);
void output_gate_backward(const OutputGateBackwardParams& p, const Execution& on);

TrainingKernels training_table(Order order);

}  // namespace invar::reference
