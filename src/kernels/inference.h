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

#include <cstdint>

#include "device/execution.h"
#include "kernels/matrix.h"
#include "numerics/curves.h"
#include "numerics/orders.h"
#include "numerics/routing.h"

namespace invar {

// out[t][d] = table row of token[t] as f32, times `scale`.
struct EmbedParams {
  const int32_t* tokens;
  Matrix table;  // [V][D], in any layout: a tied head's is that of products
  int64_t rows;
  float* out;  // [T][D]
  float scale = 1.0f;
};

// out = (x * rs) * w, rs = 1 / sqrt(sum64(x * x) / D + eps); numerics 3. Pad columns of out are set
// to zero. `rows_of` (or null) selects input rows: row t of out is made from row rows_of[t] of x.
struct RmsNormParams {
  const float* x;  // [.][D]
  int64_t x_stride;
  const int32_t* rows_of;
  const float* weight;  // [D]
  float eps;
  int64_t rows, width;
  Activation out;
  bool keeps_pad = false;  // pad columns are somebody else's
};

// out = ((x - mean) * rs) * w + b, mean = sum64(x) / D, rs = 1 / sqrt(sum64 of squares of (x -
// mean) / D + eps); numerics 3. Otherwise as RmsNormParams.
struct LayerNormParams {
  const float* x;  // [.][D]
  int64_t x_stride;
  const int32_t* rows_of;
  const float* weight;  // [D]
  const float* bias;    // [D]
  float eps;
  int64_t rows, width;
  Activation out;
};

// Integers of each run of a row, their scale and their sum (numerics 2.1). A run that holds a NaN
// or an infinity gets zeros and a NaN for its scale. Pad columns of out up to whole leaves are
// zero.
struct QuantiseParams {
  Activation x;  // [T][K], bf16
  int64_t rows, width;
  int split_k;     // split-K parts: width is whole leaves in each, or there is 1
  Activation out;  // [T][K], i8 or e4m3, its scales [T][scales_of_row(...)]
};

// y[t][n] = dot(x[t], w[n]) in `split_k` parts, the runs of numerics 2 (+ bias[n]); or, with
// `accumulate`, y = y + that. Numerics 1, 2.
struct MatmulParams {
  Activation x;  // [T][K]
  Matrix w;      // [N][K]
  int64_t rows;
  int split_k;
  const float* bias;  // [N] or null
  bool accumulate;
  float* y;  // [T][N]
  int64_t y_stride;
  void* scratch = nullptr;  // Kernels::blocks_scratch bytes, where the weights are blocks
  // The weights that the team reads after these, or null. An implementation may fetch their
  // beginning, which a product would have to wait for. They change no bit.
  const Matrix* next = nullptr;
};

// out[t][f] = curve(g) * u, g = dot(x[t], gate[f]) (+ bias), u = dot(x[t], up[f]) (+ bias); the
// curve is silu or gelu_tanh; or it is clamped(g, u).
struct GatedMatmulParams {
  Activation x;    // [T][K]
  Matrix gate_up;  // n = F, a stack of two
  int64_t rows;
  const float* gate_bias;  // [F] or null
  const float* up_bias;
  Activation out;  // [T][F]; pad columns set to zero
  void* scratch = nullptr;
  const Matrix* next = nullptr;
  Nonlinearity curve = Nonlinearity::silu;
};

// Rotates heads where they lie, as `qkv` does, in f32: for norms that stand behind the rotation.
struct RotateHeadsParams {
  float* x;  // [T][heads * E]
  int64_t x_stride;
  int64_t rows;
  int32_t heads, head_dim;
  const int32_t* positions;  // [T]
  const float* cos;          // [position][E/2]
  const float* sin;
};

// x[t][i] = act(x[t][i] * 1 / (1 + exp(-gate[t][i]))): what attention leaves, before the product
// behind it (numerics 4). Pad columns stay.
struct OutputGateParams {
  Activation x;       // [T][width]
  const float* gate;  // [T][width]
  int64_t gate_stride;
  int64_t rows, width;
};

// out[t][f] = act(curve(x[t][f])): what follows a product that is no gated pair's. Pad columns are
// set to zero.
struct CurveParams {
  const float* x;  // [T][F]
  int64_t x_stride;
  int64_t rows, width;
  Nonlinearity curve;
  Activation out;
};

// out[t][f] = act(curve(x[t][f]) * inputs[t][f]). Pad columns are set to zero.
struct GateInputsParams {
  const float* x;       // [T][F]
  const float* inputs;  // [T][inputs_stride]
  int64_t inputs_stride;
  int64_t rows, width;  // F
  Nonlinearity curve;
  Activation out;
};

// x = x * factor[0], in place.
struct ScaleRowsParams {
  float* x;  // [T][D]
  int64_t rows, width;
  const float* factor;  // where the kernels read
};

// From the product of q, k and v weights: normalises heads (Qwen3), rotates, rounds, and writes
// queries to `q` and keys and values to their slots. Rotation pairs e with e + E/2.
struct QkvParams {
  const float* qkv;  // [T][(H + 2G) * E]
  int64_t qkv_stride;
  int64_t rows;
  int32_t heads;        // H; kv.kv_heads and kv.head_dim give G and E
  const float* q_norm;  // [E] or null
  const float* k_norm;
  float norm_eps;
  const int32_t* positions;  // [T]
  const float* cos;          // [position][E/2]
  const float* sin;
  // Row t's key and value go to slots write_begin[t] .. write_begin[t + 1] of these lists (one
  // slot, except for draft rows that several paths share).
  const int32_t* write_begin;  // [T + 1]
  const int32_t* write_block;
  const int32_t* write_slot;  // within the block
  KvLayer kv;
  bf16_t* q;         // [T][H][round_up(E, 32)]; pad zero; f32 where the cache is (KvLayer::type)
  bool* non_finite;  // [T]: set to true when a key or value of the row was not finite (the request
                     // fails)
};

// Values of fewer elements than keys, where `qkv` reads them: each times `scale`, then zeros.
struct PlaceValuesParams {
  const float* x;  // [T][heads * width]
  int64_t rows;
  int32_t heads, width, head_dim;
  float scale;
  float* out;  // [T][heads * head_dim]
  int64_t out_stride;
};

// The product of q, k and v weights and then `qkv`, one head after the other, so that of the
// product only a head at a time exists: it never leaves the core's cache. Shares are key/value
// heads with their queries, or with many rows some of the rows. E is a multiple of 16.
struct QkvProductParams {
  Activation x;       // [T][D]
  Matrix w;           // [(H + 2G) * E][D]; one run
  const float* bias;  // or null
  QkvParams then;     // its qkv and qkv_stride are not read
  float* scratch;     // [shares][T][qkv_scratch_stride(E)]
};

// Room for a head's keys and values, in an odd number of cache lines.
constexpr int64_t qkv_scratch_stride(int64_t head_dim) {
  return 2 * round_up(head_dim, 32) + 16;
}

// Tables that at least so many rows stand for have many rows: a GPU reads them by tiles of rows,
// the others row by row.
constexpr int kManyRows = 16;

// Whole splits from position 0 on that some of 64 neighbouring rows read in the same blocks, and
// see all slots of.
struct SharedPrefix {
  int32_t first_row = 0, splits = 0;
  uint64_t rows = 0;  // bit i: row first_row + i does

  bool operator==(const SharedPrefix&) const = default;
};

// Attention by slot, numerics 4. Row t reads the blocks of block table table_of[t]; slots after
// its position are invalid, with window > 0 also slots <= position - window, and with chunk > 0
// also those before the last multiple of `chunk` that is not above the position.
struct AttentionParams {
  const bf16_t* q;  // [T][H][round_up(E, 32)]; f32 where the cache is
  int64_t rows;
  int32_t heads;
  const int32_t* positions;      // [T]
  const int32_t* table_of;       // [T], rows of one table stand together
  const int32_t* const* tables;  // block tables: block of slots [i * P, (i + 1) * P)
  int32_t window;
  KvLayer kv;
  Activation out;           // [T][H * E]; pad columns set to zero
  void* scratch = nullptr;  // Kernels::attention_scratch bytes, or null
  // Bounds of the number of rows that one table stands for, for whoever has kernels for few rows
  // and for many: the fewest and the most, as far as the caller knows.
  int32_t fewest_rows = 1, most_rows = INT32_MAX;
  // [1 + T]: how many rows have tables without many rows, and these rows, ascending; needed on a
  // GPU where some tables may have many.
  const int32_t* few_rows = nullptr;
  // Whether the rows end at about the same position: a GPU shares them out in a simpler way then,
  // which is right for any rows.
  bool rows_are_even = false;
  // What may be read once for several rows, which have tables of few rows, and of each row how many
  // splits that are.
  const SharedPrefix* shared = nullptr;    // [num_shared]
  const int32_t* shared_splits = nullptr;  // [T]
  int32_t num_shared = 0;
  // What a score is multiplied by before it is an exponent; 0: 1 / sqrt(E).
  double score_scale = 0;
  float score_cap = 0;           // scores are cap * tanh(score / cap); 0: as they are
  const float* sinks = nullptr;  // [H] or null: of each head one more split (numerics 4.1)
  int32_t chunk = 0;             // 0: none; on a GPU there is none
};

// How scores become exponents of 2 (numerics 4.1): d stays as it is, or with a cap it becomes
// half_tanh(d * inner); then it is multiplied by `factor`.
struct ScoreScale {
  float factor = 0, inner = 0;  // inner 0: no cap
};
inline ScoreScale score_scale(const AttentionParams& p) {
  constexpr double kLog2e = 0x1.71547652b82fep+0;
  const double e = p.kv.head_dim;
  if (p.score_cap == 0)
    return {static_cast<float>(p.score_scale > 0 ? kLog2e * p.score_scale
                                                 : kLog2e / __builtin_sqrt(e))};
  const double cap = p.score_cap, scale = p.score_scale > 0 ? p.score_scale : 1 / __builtin_sqrt(e);
  return {static_cast<float>(kLog2e * cap), static_cast<float>(2 * scale / cap)};
}

// The first slot that a position sees.
constexpr int32_t first_slot(int32_t position, int32_t window, int32_t chunk) {
  const int32_t of_chunk = chunk > 0 ? position - position % chunk : 0;
  const int32_t of_window = window > 0 && position >= window ? position - window + 1 : 0;
  return of_window > of_chunk ? of_window : of_chunk;
}
constexpr int32_t first_slot(const AttentionParams& p, int64_t t) {
  return first_slot(p.positions[t], p.window, p.chunk);
}

// `qkv` and then attention, of rows none of which reads the key or the value of another one: then a
// row's own are the only ones that are not in the cache before. Its `of.q` is not read.
struct RotatedAttentionParams {
  QkvParams rotation;
  AttentionParams of;
};

// Attention to some of a row's slots, with what it takes to go on from there: to merge it with the
// attention to others, or to compute its gradient.
struct PartialAttentionParams {
  AttentionParams of;
  // [T], at most positions[t] each, or null: slots before them are invalid, too.
  const int32_t* begin = nullptr;
  // [T][H] each, or null: M and L at the end of step 4.
  float* max = nullptr;
  float* sum = nullptr;
};

constexpr int32_t first_slot(const PartialAttentionParams& p, int64_t t) {
  const int32_t of_window = first_slot(p.of, t);
  return p.begin && p.begin[t] > of_window ? p.begin[t] : of_window;
}

// out = act(x): how what is no norm enters a matrix product, a gradient too (numerics 9). Pad
// columns are set to zero.
struct RoundParams {
  const float* x;  // [.][N]
  int64_t x_stride;
  const int32_t* rows_of;  // as RmsNormParams
  int64_t rows, width;
  Activation out;
};

// y = y + (x (+ bias)) * scale: what ends a row-parallel product whose tree went over several
// ranks, or which a norm follows.
struct AddParams {
  const float* x;  // [T][D]
  int64_t x_stride;
  const float* bias;  // [D] or null
  int64_t rows, width;
  float* y;  // [T][D]
  float scale = 1.0f;
};

// What ends a row-parallel product that does not add to y itself, and what the next product begins
// with: y = y + z * scale, z = x (+ bias), or with `norm` RMSNorm(x); then out = RMSNorm(y) with
// the weight `next`, or without one y, as rows that enter a product.
struct AddNormParams {
  float* x;  // [T][D]; may be overwritten
  int64_t x_stride;
  const float* bias;  // [D] or null
  const float* norm;  // [D] or null
  float eps;
  int64_t rows, width;
  float* y;  // [T][D]
  float scale;
  const float* next;  // [D] or null
  Activation out;     // [T][D], or no data: it is not wanted
};

// x = x / divisor, and then, where there is a cap, x = cap * half_tanh((x + x) / cap); in place.
struct ScaleLogitsParams {
  float* x;  // [T][V]
  int64_t rows, stride, width;
  float divisor;
  float cap;  // 0: none
};

// y = y + x / (1 + exp(-x))
struct AddSiluParams {
  const float* x;
  int64_t count;
  float* y;
};

// This step's keys and values from where `qkv` wrote them to where they are stored in 8 bits
// (kv.stored; numerics 4.2).
struct StoreSlotsParams {
  KvLayer kv;
  int64_t rows;
  const int32_t* write_begin;  // as QkvParams
  const int32_t* write_block;
  const int32_t* write_slot;
};

// What is stored in 8 bits as the bf16 that it stands for, where attention reads it: all slots that
// a row sees, in whole leaves.
struct LoadSlotsParams {
  KvLayer kv;
  int64_t rows;
  int32_t window;            // as AttentionParams
  const int32_t* positions;  // [T]
  const int32_t* table_of;   // [T], rows of one table stand together
  const int32_t* const* tables;
  int32_t chunk = 0;
};

struct CopySlotsParams {
  KvLayer kv;
  const SlotCopy* copies;  // in order; no block is both source and target
  int64_t count;
};

// What the sampler needs of whole rows of logits: the largest logit and its lowest token id, and
// with `log_sum` the second half of orders::log_sum_exp. A row with a NaN gets argmax 0 and NaN for
// the others.
struct LogitsParams {
  const float* logits;  // [T][V]
  int64_t rows, stride, vocab;
  int32_t* argmax;  // [T]
  float* max;       // [T]
  float* log_sum;   // [T], or null when it is not wanted
  bool* has_nan;    // [T]
};

// What becomes of logits where they lie: kernels/sample.h.
struct SampleRowsParams;
struct HashLogitsParams;

// Cells to others. None of them is in two copies' ways: no `to` is another copy's `from` or `to`.
struct CopyCellsParams {
  Cells cells;
  const CellCopy* copies;
  int64_t num_copies;
};

// Recurrent layers: kernels/recurrent.h.
struct ShortConvParams;
struct RecurrentGatesParams;
struct RecurrentKeysParams;
struct RecurrenceParams;
struct GatedNormParams;

// Low-rank adapters: kernels/adapters.h.
struct AdapterParams;
struct AddBiasParams;
struct GatePairsParams;

// x = bf16(x), in place: the residual stream of the baseline (numerics 10).
struct RoundInPlaceParams {
  float* x;
  int64_t count;
};

// ---- Experts (numerics 7) ----

// Which experts each row goes through: `ids`, ascending, and with which weights. `given`, [T][C] or
// null: these are chosen, where the first of a row is not negative (the CPU's only). `scales`,
// [experts] or null: weights are multiplied by their expert's (the CPU's only).
struct RouteParams {
  Routing how;
  const float* logits;  // [T][experts]
  int64_t stride;
  const float* bias;  // [experts] or null: added for the choice only
  int64_t rows;
  int32_t* ids;    // [T][C]
  float* weights;  // [T][C]
  const int32_t* given = nullptr;
  const float* scales = nullptr;
};

// The (row, expert) pairs sorted by expert, those of one expert by row. Pair (t, i) stands at
// place[t * C + i]; at place j stands row rows_of[j]; those of expert e are at begin[e] ..
// begin[e + 1]. Where experts lie in another order, or twice, this is of their places in memory.
struct SortRowsParams {
  const int32_t* ids;  // [T][C]
  // [experts][2]: the place of an expert in memory for even rows and for odd ones; or null: as they
  // are numbered.
  const int32_t* expert_places = nullptr;
  int64_t rows;
  int32_t chosen, experts;  // experts: places
  int32_t* begin;           // [experts + 1]
  int32_t* place;           // [T * C]
  int32_t* rows_of;         // [T * C]
};

// Row j of out is row rows_of[j] of x, for j from begin[0] to begin[experts].
struct GatherRowsParams {
  Activation x;            // [T][K]
  int64_t width;           // K; pad columns are set to zero
  const int32_t* rows_of;  // [T * C]
  const int32_t* begin;    // [experts + 1], of the experts that are here
  int32_t experts;
  int64_t most_rows;  // a bound of begin[experts]
  Activation out;     // [T * C][K]
};

// out[j] = act(out[j] * w) where pair j has the weight w, which becomes 1 then: of weights that
// multiply what experts read. Of the rows that were gathered; the others' weights become 1, too.
struct WeighRowsParams {
  GatherRowsParams of;
  const int32_t* place;  // [T * C]
  float* weights;        // [T * C]
  int64_t pairs;         // T * C
};

// A product for each of several experts: rows begin[e] .. begin[e + 1] of x and y by matrix e.
// Their number is known where `begin` lies; `each.rows` is a bound. One run.
struct ExpertMatmulParams {
  MatmulParams each;               // its w is the stack, its bias [experts][N] or null
  const int32_t* begin;            // [experts + 1]
  Operation<MatmulParams> matmul;  // of the same table
  // No operation between the one that wrote `begin` and this one has read it. A GPU's kernel must
  // wait then, and else may start to read weights while the kernel before it runs.
  bool is_first_reader = false;
};
// The same of gated products: w is a stack of pairs.
struct ExpertGatedMatmulParams {
  GatedMatmulParams each;  // biases [experts][F] or null
  const int32_t* begin;
  Operation<GatedMatmulParams> matmul;
};

// acc = fma(w, act(y), acc) over a row's experts in ascending order, from +0; then with a shared
// expert acc = fma(g, s, acc), g = 1 / (1 + exp(-z)), or 1 without z; then h = h + acc * scale.
struct CombineParams {
  Activation y;          // [T * C][D]; f32 where it is to be rounded still
  bool rounds;           // y to bf16
  const int32_t* place;  // [T][C]
  const float* weights;  // [T][C]
  int32_t chosen;
  const float* shared;  // [T][shared_stride] or null
  int64_t shared_stride;
  const float* gate;  // z of row t at gate[t * gate_stride], or null
  int64_t gate_stride;
  int64_t rows, width;
  float* hidden;  // [T][D]
  float scale;
  // Of the baseline (numerics 10): in the order of the places, each sum rounded to bf16, as engines
  // do that add what arrives to their residual stream.
  bool by_place = false;
};

// The place in memory of a row's expert.
constexpr int32_t expert_place(const int32_t* places, int32_t expert, int64_t row) {
  return places ? places[2 * expert + row % 2] : expert;
}

// All three of few rows at once: at most kFewPairs pairs.
constexpr int kFewPairs = 128;
struct ChooseExpertsParams {
  RouteParams route;
  SortRowsParams sort;
  GatherRowsParams gather;
};

// `sum`, and then out = RMSNorm(hidden) with the weight `next`, or without one hidden, as rows that
// enter a product.
struct CombineNormParams {
  CombineParams sum;
  const float* next;  // [D] or null
  float eps;
  Activation out;  // [T][D], or no data: it is not wanted
};

// ---- Latent attention (numerics 4.3) ----

// y[t][h] = x[t][h] * w[h], a product for each of `each.w.count` heads; a head's x begins `x_step`
// elements after the one before it, its outputs each.w.n after.
struct HeadsMatmulParams {
  MatmulParams each;  // x of head 0; one run
  int64_t x_step;
  Operation<MatmulParams> matmul;  // of the same table
};

// What `qkv` reads, of one key/value head of rank + turning elements: a query is its latent and
// what turns beside it, the key the row's latent and what turns beside that, the value the latent
// and zeros. What turns begins the two halves of a query or key; the latent fills them.
struct PlaceLatentParams {
  const float* queries;          // [T][H][rank]
  const float* turning_queries;  // [T][H][turning]
  int64_t turning_stride;
  const float* latents;  // [T][rank + turning]
  int64_t latent_stride;
  int64_t rows;
  int64_t heads, rank, turning;
  float* out;  // [T][(H + 2) * (rank + turning)]
};

// ---- The table ----

struct Kernels {
  const char* name;  // "scalar", "avx2", "avx512", "amx", "cuda"
  Order order;
  WeightLayout weights = WeightLayout::panels;  // that its products read
  CacheLayout cache = CacheLayout::panels;      // that its attention reads
  size_t attention_scratch = 0;                 // bytes that make its attention faster
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
  Operation<MatmulParams> int8_matmul;  // of integers, in any order
  Operation<GatedMatmulParams> int8_gated_matmul;
  // The same of e4m3 numbers (numerics 2.2); null where they are not computed.
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
  // Of caches in 8 bits.
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
  // The operations of recurrent layers; null where they are not computed.
  Operation<ShortConvParams> short_conv = nullptr;
  Operation<RecurrentGatesParams> recurrent_gates = nullptr;
  Operation<RecurrentKeysParams> recurrent_keys = nullptr;
  Operation<RecurrenceParams> recurrence = nullptr;
  Operation<GatedNormParams> gated_norm = nullptr;
  // The operations of adapters, in this order; null where they are not computed.
  Operation<AdapterParams> adapter_shrink = nullptr;  // sums = A x
  Operation<AdapterParams> adapter_round = nullptr;   // inner = act(s sums)
  Operation<AdapterParams> adapter_expand = nullptr;  // y = y + B inner
  Operation<AddBiasParams> add_bias = nullptr;
  Operation<GatePairsParams> gate_pairs = nullptr;
};

}  // namespace invar
