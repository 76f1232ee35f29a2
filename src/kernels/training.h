// Every operation that training needs beside those of inference.h, in the same manner: a table of
// functions over plain parameter structs, shares that write disjoint outputs, no allocation.
// Letters are those of inference.h; the orders are numerics 9.
//
// A sum over rows is a chain over leaves of 32 rows, begun at what the gradient holds: it starts as
// zero and goes on from batch to batch. T is therefore a multiple of 32.
#pragma once

#include "kernels/inference.h"

namespace invar {

// Two matrices of the same width whose columns take turns, 16 of one and 16 of the other, as a
// gated pair has them: column i of matrix 0 or 1.
constexpr int64_t paired_column(int64_t i, int matrix) {
  return i / kPanelWidth * 2 * kPanelWidth + matrix * kPanelWidth + i % kPanelWidth;
}

// The column of a gated pair's dots: as the outputs of a matrix that is the pair of this layout.
constexpr int64_t dots_column(int64_t i, int matrix, int64_t width, WeightLayout layout) {
  return layout == WeightLayout::rows ? matrix * round_up(width, 8) + i : paired_column(i, matrix);
}

// A run of columns of an activation, or one matrix of a pair.
struct Columns {
  int64_t first = 0;  // 0 when paired
  int64_t count = 0;
  int pair = -1;  // -1: not a pair; else which of the two

  constexpr int64_t at(int64_t i) const { return pair < 0 ? first + i : paired_column(i, pair); }
};

// A gated product whose dots are kept, too: [T][2 * round_up(F, 16)], columns as dots_column says.
struct KeptGatedMatmulParams {
  GatedMatmulParams product;
  float* dots;
};

// Row i of out is column columns.at(i) of x: the gradient of a product's outputs as the activation
// that meets its inputs, row by row.
struct TransposeParams {
  Activation x;  // [T][N], bf16
  int64_t rows;
  Columns columns;
  Activation out;  // [columns.count][T]; pad columns set to zero
};

// Columns of x as outputs of a packed matrix whose inner elements are x's rows. Row i becomes inner
// element inner.at(i); `out` has k = inner_size.
struct PackColumnsParams {
  const bf16_t* x;  // [T][N]
  int64_t x_stride;
  int64_t rows, width;
  Columns inner;
  int64_t inner_size;
  bf16_t* out;                                 // elements that no row goes to keep what they hold
  WeightLayout layout = WeightLayout::panels;  // of a CPU's
};

// gradient[i] += dy[t][columns.at(i)] over rows: what the weight of an input that is always 1 gets.
struct BiasGradientParams {
  Activation dy;  // [T][N], bf16
  int64_t rows;
  Columns columns;
  float* gradient;
};

// The gradient of RmsNorm's input, added to dx; numerics 9.
struct NormBackwardParams {
  const float* dy;      // [T][D]
  const float* x;       // [T][D]
  const float* weight;  // [D]
  float eps;
  int64_t rows, width;
  float* dx;  // [T][D]
  float* rs;  // [T], out: for NormGradientParams
};

// The gradient of a norm's weight: gradient[i] += dy[t][h][i] * (x[t][h][i] * rs[t][h]) over rows,
// and within a leaf of rows over heads.
struct NormGradientParams {
  const float* dy;
  int64_t dy_stride;  // from row to row; head h begins at h * width
  const float* x;
  int64_t x_stride;
  const float* rs;
  int64_t rs_stride;
  int64_t rows, heads, width;
  float* gradient;
};

// The same of a LayerNorm: of its input, added to dx, and of its weight and bias.
struct LayerNormBackwardParams {
  NormBackwardParams norm;
  float* mean;  // [T], out: as rs
};
struct LayerNormGradientParams {
  NormGradientParams norm;  // of one head
  const float* mean;        // [T]
  float* bias_gradient;     // [D]
};

// The gradient of x from that of curve(x).
struct CurveBackwardParams {
  const float* x;       // [T][F]
  const float* dy;      // [T][F]
  int64_t rows, width;  // F
  Nonlinearity curve;   // silu, gelu_tanh or gelu
  Activation out;       // [T][F]; pad columns set to zero
};

// The gradients of gate and up from that of curve(g) * u.
struct GateBackwardParams {
  const float* gate_up;    // [T][2 * round_up(F, 16)]: the products, columns as dots_column says
  const float* gate_bias;  // [F] or null
  const float* up_bias;
  const float* d_gated;  // [T][F]
  int64_t rows, width;   // F
  Activation out;        // [T][2 * round_up(F, 16)], columns paired; pad columns set to zero
  Nonlinearity curve = Nonlinearity::silu;
  WeightLayout layout = WeightLayout::panels;  // of the pair whose dots these are
};

// The factor that the gradient of a score passes through; scores under a cap have none.
inline float gradient_scale(const AttentionParams& p) {
  const double e = p.kv.head_dim;
  return static_cast<float>(p.score_scale > 0 ? p.score_scale : 1 / __builtin_sqrt(e));
}

// Attention's backward: dq, dk and dv of rotated queries and keys, from the forward's results.
// Rows of one table are the positions 0, 1, 2 ... of one sequence, all of it, in order.
struct AttentionBackwardParams {
  AttentionParams forward;  // `out` as the forward left it; bf16
  const float* max;         // [T][H] each, of the forward; see PartialAttentionParams
  const float* sum;
  Activation d_out;       // [T][H * E], bf16
  int64_t max_positions;  // no sequence is longer
  float* d_qkv;           // [T][(H + 2G) * E], laid out as QkvParams::qkv
  int64_t d_qkv_stride;
  std::byte* scratch;  // TrainingKernels::attention_scratch bytes for each share
  int64_t scratch_stride;
};

// From dq, dk, dv to the gradient of the product of q, k and v weights: rotates back and passes
// through the heads' norms. d_qkv becomes the gradient of the norms' outputs, for
// NormGradientParams.
struct QkvBackwardParams {
  float* d_qkv;  // [T][(H + 2G) * E]
  int64_t d_qkv_stride;
  const float* qkv;  // [T][(H + 2G) * E] as the forward had it; null without norms
  int64_t qkv_stride;
  int64_t rows;
  int32_t heads, kv_heads, head_dim;
  const float* q_norm;  // [E] or null
  const float* k_norm;
  float norm_eps;
  const int32_t* positions;
  const float* cos;  // [position][E/2]
  const float* sin;
  float* rs;  // [T][H + G], out; unused without norms
  // All queries of a row are one vector of a norm, all its keys another one: weights [H * E] and
  // [G * E], rs [T][2].
  bool is_joint = false;
  Activation out;  // [T][(H + 2G) * E]; pad columns set to zero
};

// gradient[token[t]] += dx[t] * scale, rows ascending.
struct EmbedGradientParams {
  const int32_t* tokens;
  const float* dx;  // [T][D]
  int64_t rows, width;
  float* gradient;  // [V][D]
  float scale = 1;
};

// The gradient of a weighted sum of cross-entropies: d[t][v] = weight[t] * (p_v - wanted_v), p_v =
// exp(log-probability of v). Without a teacher wanted is 1 at the target, else 0; with one it is
// (1 - share) * that + share * (the teacher's probability). A row of weight 0 gets zeros whatever
// its target is.
struct LossParams {
  const float* logits;  // [T][V]
  int64_t rows, stride, vocab;
  const float* max;  // [T]; see LogitsParams
  const float* log_sum;
  const int32_t* targets;  // [T]
  const float* weights;    // [T]
  const float* teacher;    // [T][V] logits with the same stride, or null
  const float* teacher_max;
  const float* teacher_log_sum;
  float teacher_share;
  Activation out;  // [T][V]; pad columns set to zero
};

// sums[i] = sum64 of the squares of tensor i.
struct SquaresParams {
  const float* const* tensors;
  const int64_t* counts;
  int64_t count;  // tensors
  float* sums;
};

// One step of AdamW (Loshchilov and Hutter 2019) on f32 master weights; numerics 9 has the
// sequence. `weights` gets the master weights rounded to bf16.
struct AdamParams {
  const float* gradient;
  float* master;
  float* first;   // m
  float* second;  // v
  bf16_t* weights;
  int64_t count;
  float gradient_scale;  // clipping
  float rate, beta1, beta2, eps, decay;
  float first_scale, second_scale;  // 1 / (1 - beta^step)
};

// ---- Experts. Pair (t, i) of a row and one of its experts stands at place[t * C + i], as
// SortRowsParams has it.

// The gradient that goes back through each expert, out = act(w * d), and the gradient of each
// weight, sum64 by fma of (d, act(y)).
struct PairGradientsParams {
  const float* d;        // [T][D], of the residual stream
  const int32_t* place;  // [T][C]
  const float* weights;  // [T][C]
  int32_t chosen;        // C
  int64_t rows, width;   // T, D
  Activation y;          // [T * C][D], f32: what each expert made of the row
  Activation out;        // [T * C][D]; pad columns set to zero
  float* d_weights;      // [T][C]
};

// out[t] = the sum over a row's pairs, ascending, from +0.
struct SumPairsParams {
  const float* x;  // [T * C][D]
  int64_t x_stride;
  const int32_t* place;
  int32_t chosen;
  int64_t rows, width;
  float* out;  // [T][D]
};

// The gradients of an expert that all rows go through behind a gate g, the logistic function of z:
// out = act(g * d) goes back through it, and g's is sum64 by fma of (d, y).
struct SharedGradientsParams {
  const float* d;  // [T][D], of the residual stream
  const float* z;  // [T], `z_stride` apart
  const float* y;  // [T][D], `y_stride` apart: what the expert made of the row
  int64_t z_stride, y_stride;
  int64_t rows, width;  // T, D
  Activation out;       // [T][D]; pad columns set to zero
  float* d_gates;       // [T]
};

// The gradient of the router's logits, whose scores are a softmax over all experts, or each the
// logistic function of its logit.
struct RouterBackwardParams {
  Routing how;
  const float* logits;  // [T][experts (+ the shared expert's gate)]
  int64_t stride;
  const int32_t* ids;      // [T][C]
  const float* d_weights;  // [T][C]
  // Where there is a loss that balances experts, what it adds to the gradient of every score, of
  // each `balance_rows` rows: [.][experts]; or null.
  const float* balance;
  int64_t balance_rows;
  const float* d_gates;  // [T] the gradients of the shared expert's gates, or null without one
  int64_t rows;
  Activation out;  // [T][experts (+ 1)]; pad columns set to zero
};

// out[j] = row from[j] of x, or zeros where that is -1.
struct GatherLeavesParams {
  Activation x;
  const int32_t* from;
  int64_t rows, width;
  Activation out;
};

// out[t] = x[t][columns[t]].
struct PickParams {
  const float* x;  // [T][.]
  int64_t stride;
  const int32_t* columns;  // [T]
  int64_t rows;
  float* out;  // [T]
};

// y = y + x: where two chains meet.
struct AddGradientParams {
  const float* x;
  int64_t count;
  float* y;
};

// Rows of bf16 as outputs of a matrix: from output `first` on, or all of one of a pair.
struct PackOutputsParams {
  const bf16_t* x;  // [rows][to.k]
  int64_t rows;
  int64_t first = 0;
  int number = -1;  // -1: no pair; else which of the two
  Matrix to;        // its memory is written; elements that no row goes to stay
};

// out = x in f32.
struct WidenParams {
  const bf16_t* x;
  int64_t count;
  float* out;
};

// The operations of layers with a state are in recurrent_backward.h.
struct ShortConvBackwardParams;
struct GatedNormBackwardParams;
struct RecurrentGatesBackwardParams;
struct RecurrentKeysBackwardParams;
struct RecurrenceBackwardParams;
struct RowSumsParams;
struct OutputGateBackwardParams;

struct TrainingKernels {
  const char* name;
  Order order;

  Operation<KeptGatedMatmulParams> gated_matmul;
  // A product whose chains go on: they begin at y instead of +0. One run, no bias, bf16.
  Operation<MatmulParams> extend_matmul;
  Operation<RoundParams> round;
  Operation<TransposeParams> transpose;
  Operation<PackColumnsParams> pack_columns;
  Operation<BiasGradientParams> bias_gradient;
  Operation<NormBackwardParams> norm_backward;
  Operation<NormGradientParams> norm_gradient;
  Operation<GateBackwardParams> gate_backward;
  Operation<AttentionBackwardParams> attention_backward;
  // Bytes of scratch that one share needs; a multiple of 64.
  int64_t (*attention_scratch)(int64_t max_positions, int64_t head_dim);
  Operation<QkvBackwardParams> qkv_backward;
  Operation<EmbedGradientParams> embed_gradient;
  Operation<LossParams> loss;
  Operation<SquaresParams> squares;
  Operation<AdamParams> adam;
  Operation<AddGradientParams> add_gradient;
  Operation<PickParams> pick;
  // By one definition on every set.
  Operation<LayerNormBackwardParams> layer_norm_backward;
  Operation<LayerNormGradientParams> layer_norm_gradient;
  Operation<CurveBackwardParams> curve_backward;
  Operation<PairGradientsParams> pair_gradients;
  Operation<SumPairsParams> sum_pairs;
  Operation<RouterBackwardParams> router_backward;
  Operation<GatherLeavesParams> gather_leaves;
  Operation<SharedGradientsParams> shared_gradients;
  Operation<ShortConvBackwardParams> short_conv_backward;
  Operation<GatedNormBackwardParams> gated_norm_backward;
  Operation<RecurrentGatesBackwardParams> recurrent_gates_backward;
  Operation<RecurrentKeysBackwardParams> recurrent_keys_backward;
  Operation<RecurrenceBackwardParams> recurrence_backward;
  int64_t (*recurrence_scratch)(int64_t max_positions, int64_t key_size, int64_t value_size);
  Operation<RowSumsParams> row_sums;
  Operation<OutputGateBackwardParams> output_gate_backward;
};

}  // namespace invar
