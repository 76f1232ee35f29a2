// Every operation that the forward needs, as a table of functions over plain parameter structs. The
// reference table is the contract, executable; a back end overrides entries. Model code sees this
// header only: no instruction set.
//
// Each function computes share `on.share.index` of `on.share.count` of the work; shares write
// disjoint outputs, so any number of threads gives the same bits. All of them expect flush-to-zero
// mode. None allocates.
//
// Letters: T rows, D model width, N outputs, K inner size, H query heads, G key/value heads, E head
// size, F ffn width, C experts that a row chooses.
#pragma once

#include "device/execution.h"
#include "kernels/attention.h"
#include "kernels/cache_slots.h"
#include "kernels/elementwise.h"
#include "kernels/experts.h"
#include "kernels/matrix.h"
#include "kernels/products.h"
#include "kernels/sample.h"
#include "numerics/orders.h"

namespace invar {

// Parameters of recurrent layers: kernels/recurrent.h.
struct ShortConvParams;
struct RecurrentGatesParams;
struct RecurrentKeysParams;
struct RecurrenceParams;
struct GatedNormParams;

// Parameters of an indexer: kernels/indexer.h.
struct StoreIndexParams;
struct IndexScoresParams;
struct ChooseSlotsParams;
struct GatherSlotsParams;

// Parameters of low-rank adapters: kernels/adapters.h.
struct AdapterParams;
struct AddBiasParams;
struct GatePairsParams;

// A null entry is an operation that the table does not compute, or one in which it would gain
// nothing over the operations that it joins.
struct Kernels {
  const char* name;  // "scalar", "avx2", "avx512", "amx", "cuda"
  Order order;
  WeightLayout weights = WeightLayout::panels;  // that its products read
  CacheLayout cache = CacheLayout::panels;      // that its attention reads
  size_t attention_scratch = 0;                 // bytes that make attention, recurrences faster
  size_t blocks_scratch = 0;                    // bytes that its products of blocks need

  Operation<EmbedParams> embed;
  Operation<RmsNormParams> rms_norm;
  Operation<LayerNormParams> layer_norm;
  Operation<MatmulParams> matmul;
  Operation<GatedMatmulParams> gated_matmul;
  Operation<QuantiseParams> quantise;
  // Whether a product of integers makes them of its bf16 rows itself, which then come as they are;
  // null: never.
  bool (*makes_integers)(const Matrix& w, int64_t rows, int split_k) = nullptr;
  Operation<MatmulParams> int8_matmul;  // multiplies integers, in any order
  Operation<GatedMatmulParams> int8_gated_matmul;
  // The same for e4m3 numbers, in groups or by rows (numerics 2.2, 2.5); null where they are not
  // computed.
  Operation<QuantiseParams> quantise_fp8;
  Operation<MatmulParams> fp8_matmul;
  Operation<GatedMatmulParams> fp8_gated_matmul;
  Operation<CurveParams> curve;
  Operation<RotateHeadsParams> rotate_heads;
  Operation<OutputGateParams> gate_output;
  Operation<QkvParams> qkv;
  Operation<QkvProductParams> qkv_product;  // null where it would gain nothing
  Operation<AttentionParams> attention;
  Operation<RotatedAttentionParams> rotated_attention;  // null where it would gain nothing
  Operation<PartialAttentionParams> partial_attention;  // on a GPU of whole sequences
  Operation<RoundParams> round;
  Operation<AddParams> add;
  Operation<AddNormParams> add_norm;  // null where it would gain nothing
  Operation<AddSiluParams> add_silu;
  Operation<ScaleLogitsParams> scale_logits;
  Operation<CopySlotsParams> copy_slots;
  // The next three serve caches in 8 bits.
  Operation<StoreSlotsParams> store_slots;
  Operation<LoadSlotsParams> load_slots;
  Operation<CopySlotsParams> copy_stored;
  Operation<RoundInPlaceParams> round_in_place;
  Operation<LogitsParams> log_sum_exp;
  Operation<HeadsMatmulParams> heads_matmul;
  Operation<PlaceLatentParams> place_latent;
  Operation<RouteParams> route;
  Operation<SortRowsParams> sort_rows;
  Operation<GatherRowsParams> gather_rows;
  // Null where they are not computed.
  Operation<WeighRowsParams> weigh_rows = nullptr;
  Operation<PlaceValuesParams> place_values = nullptr;
  Operation<GateInputsParams> gate_inputs = nullptr;
  Operation<ScaleRowsParams> scale_rows = nullptr;
  Operation<ExpertMatmulParams> expert_matmul;
  Operation<ExpertGatedMatmulParams> expert_gated_matmul;
  Operation<CombineParams> combine;
  Operation<ChooseExpertsParams> choose_experts;  // null where it would gain nothing, as the next
  Operation<CombineNormParams> combine_norm;
  Operation<SampleRowsParams> sample;
  Operation<HashLogitsParams> hash_logits;
  Operation<CopyCellsParams> copy_cells;
  // The operations of an indexer; null where they are not computed.
  Operation<StoreIndexParams> store_index = nullptr;
  Operation<IndexScoresParams> index_scores = nullptr;
  Operation<ChooseSlotsParams> choose_slots = nullptr;
  Operation<GatherSlotsParams> gather_slots = nullptr;
  // The operations of recurrent layers; null where they are not computed.
  Operation<ShortConvParams> short_conv = nullptr;
  Operation<RecurrentGatesParams> recurrent_gates = nullptr;
  Operation<RecurrentKeysParams> recurrent_keys = nullptr;
  Operation<RecurrenceParams> recurrence = nullptr;
  Operation<GatedNormParams> gated_norm = nullptr;
  // The operations of adapters, in this order; null where they are not computed.
  Operation<AdapterParams> adapter_shrink = nullptr;  // sums = A x
  Operation<AdapterParams> adapter_round = nullptr;   // inner = act(s sums); null: by the next one
  Operation<AdapterParams> adapter_expand = nullptr;  // y = y + B inner
  Operation<AddBiasParams> add_bias = nullptr;
  Operation<GatePairsParams> gate_pairs = nullptr;
};

}  // namespace invar
