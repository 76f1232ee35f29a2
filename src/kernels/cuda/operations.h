// The operations that have one schedule only; see elementwise.cu.
#pragma once

#include "kernels/inference.h"

namespace invar::cuda {

void embed(const EmbedParams& p, const Execution& on);
void rms_norm(const RmsNormParams& p, const Execution& on);
void layer_norm(const LayerNormParams& p, const Execution& on);
void curve(const CurveParams& p, const Execution& on);
void gate_output(const OutputGateParams& p, const Execution& on);
void gate_inputs(const GateInputsParams& p, const Execution& on);
void scale_rows(const ScaleRowsParams& p, const Execution& on);
void rotate_heads(const RotateHeadsParams& p, const Execution& on);
void scale_logits(const ScaleLogitsParams& p, const Execution& on);
void qkv(const QkvParams& p, const Execution& on);
// Of order hopper.
void rotated_attention(const RotatedAttentionParams& p, const Execution& on);
void round(const RoundParams& p, const Execution& on);
void add(const AddParams& p, const Execution& on);
void add_norm(const AddNormParams& p, const Execution& on);
void add_silu(const AddSiluParams& p, const Execution& on);
void copy_slots(const CopySlotsParams& p, const Execution& on);
// Of caches in 8 bits.
void store_slots(const StoreSlotsParams& p, const Execution& on);
void load_slots(const LoadSlotsParams& p, const Execution& on);
void copy_stored(const CopySlotsParams& p, const Execution& on);
void sample(const SampleRowsParams& p, const Execution& on);
void hash_logits(const HashLogitsParams& p, const Execution& on);
void log_sum_exp(const LogitsParams& p, const Execution& on);
void route(const RouteParams& p, const Execution& on);
void sort_rows(const SortRowsParams& p, const Execution& on);
void gather_rows(const GatherRowsParams& p, const Execution& on);
void combine(const CombineParams& p, const Execution& on);
void choose_experts(const ChooseExpertsParams& p, const Execution& on);
void combine_norm(const CombineNormParams& p, const Execution& on);
void place_latent(const PlaceLatentParams& p, const Execution& on);
void copy_cells(const CopyCellsParams& p, const Execution& on);
// The operations of recurrent layers: kernels/recurrent.h.
void short_conv(const ShortConvParams& p, const Execution& on);
void recurrent_gates(const RecurrentGatesParams& p, const Execution& on);
void recurrent_keys(const RecurrentKeysParams& p, const Execution& on);
void gated_norm(const GatedNormParams& p, const Execution& on);
template <Order order>
void recurrence(const RecurrenceParams& p, const Execution& on);
// Low-rank adapters: kernels/adapters.h. adapter_expand rounds, too.
void add_bias(const AddBiasParams& p, const Execution& on);
template <Order order>
void adapter_shrink(const AdapterParams& p, const Execution& on);
template <Order order>
void adapter_expand(const AdapterParams& p, const Execution& on);
template <Order order>
void gate_pairs(const GatePairsParams& p, const Execution& on);
// Of each order.
void hopper_expert_matmul(const ExpertMatmulParams& p, const Execution& on);
void hopper_experts_of_many_rows(const ExpertMatmulParams& p, const Execution& on);
void hopper_expert_gated_matmul(const ExpertGatedMatmulParams& p, const Execution& on);
void portable_expert_matmul(const ExpertMatmulParams& p, const Execution& on);
void portable_expert_gated_matmul(const ExpertGatedMatmulParams& p, const Execution& on);
void hopper_heads_matmul(const HeadsMatmulParams& p, const Execution& on);
void portable_heads_matmul(const HeadsMatmulParams& p, const Execution& on);

}  // namespace invar::cuda
