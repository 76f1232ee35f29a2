// The functions of one instruction set for the backward, over single rows, heads and runs of
// columns, as plain data because files for wide instruction sets include no other header.
// backward.cc and attention_backward.cc have the loops around them; numerics 9 the sequences.
#pragma once

#include <cstdint>

namespace invar::cpu {

// The gradient of a norm's weight for a run of columns.
struct NormColumns {
  const float* dy;  // row 0, head 0, first column
  int64_t dy_stride;
  const float* x;
  int64_t x_stride;
  const float* rs;  // row 0, head 0
  int64_t rs_stride;
  int64_t leaves, heads;
  int64_t width;  // from head to head
  int64_t count;  // columns
  float* gradient;
};

struct GateRow {
  const float* gate_up;
  const float* gate_bias;  // or null
  const float* up_bias;
  const float* d_gated;
  int64_t width;
  uint16_t* out;
  bool is_gelu;
};

struct LossRow {
  const float* logits;
  float max, log_sum, weight;
  int64_t target;
  const float* teacher;  // or null
  float teacher_max, teacher_log_sum, teacher_share;
  int64_t vocab;
  uint16_t* out;
};

struct AdamRun {
  const float* gradient;
  float *master, *first, *second;
  uint16_t* weights;
  int64_t count;
  float gradient_scale, rate, beta1, beta2, eps, decay, first_scale, second_scale;
};

// Scores of a block of slots and queries to p and ds. Row i is slot `slot` + i, column t query
// `query` + t; both counts are multiples of 32. A slot sees queries from its own position on, with
// a window only so many, and none from `queries_end` on.
struct ScoreBlock {
  int64_t slot, slots;
  int64_t query, queries, queries_end;
  int64_t window;          // 0: none
  const float* scores;     // [slot][query], rows `stride` apart
  const float* d_weights;  // dot(d_out, v)
  int64_t stride;
  const float* max;  // [query]: M, 1 / L and D
  const float* one_by_sum;
  const float* mean;
  float c, scale;
  uint16_t* p;  // [slot][query] bf16, rows `out_stride` apart
  uint16_t* ds;
  int64_t out_stride;
  uint16_t* ds_packed;  // ds as a packed matrix: queries are outputs, slots inner elements
};

struct BackwardRows {
  void (*round)(const float* x, int64_t width, uint16_t* out);
  // Sums over rows of up to 64 columns, begun at `gradient`.
  void (*bias_gradient)(const uint16_t* dy, int64_t stride, int64_t leaves, int64_t count,
                        float* gradient);
  // Adds the gradient of the norm's input to dx; returns rs.
  float (*norm_backward)(const float* dy, const float* x, const float* weight, int64_t width,
                         float eps, float* dx);
  // The same as bf16, for a head.
  float (*head_norm_backward)(const float* dy, const float* x, const float* weight, int64_t width,
                              float eps, uint16_t* dx);
  void (*norm_gradient)(const NormColumns&);
  void (*gate_backward)(const GateRow&);
  void (*rotate_back)(float* x, const float* cos, const float* sin, int64_t half);
  void (*loss)(const LossRow&);
  float (*squares)(const float* x, int64_t count);
  void (*adam)(const AdamRun&);
  void (*add)(const float* x, int64_t count, float* y);
  float (*dot_bf16)(const uint16_t* x, const uint16_t* y, int64_t count);  // sum64 by fma
  void (*weigh)(const ScoreBlock&);
};

extern const BackwardRows kAvx2Backward, kAvx512Backward, kAmxBackward;

}  // namespace invar::cpu
