// The functions of one instruction set for the elementwise operations, over single rows and heads,
// given as plain pointers because files for wide instruction sets include no other header.
// elementwise.cc and qkv.cc have the loops around them.
#pragma once

#include <cstdint>

namespace invar::cpu {

// Normalisation (when norm is not null) and rotation of one head.
struct HeadTransform {
  const float* norm;  // [size] or null
  float eps;
  const float* cos;  // [size / 2], of the row's position
  const float* sin;
  int64_t size;  // E
};

// The results of a pass over the logits of one row.
struct LogitsPass {
  int32_t argmax;
  bool has_nan;
  float segment_sums[8];  // of exp(x - max); numerics 3
};

// CombineParams, of a row.
struct ExpertSum {
  const void* y;     // of all rows and experts
  int64_t y_stride;  // bytes
  bool is_bf16, rounds;
  const int32_t* place;  // [chosen]
  const float* weights;
  int32_t chosen;
  const float* shared;  // or null
  float gate, scale;
  float* hidden;
};

struct RowFunctions {
  // out[0 .. width) = (x * rs) * weight, as bf16 or f32.
  void (*rms_norm)(const float* x, const float* weight, int64_t width, float eps, void* out,
                   bool is_bf16);
  // out[0 .. width) = ((x - mean) * rs) * weight + bias.
  void (*layer_norm)(const float* x, const float* weight, const float* bias, int64_t width,
                     float eps, void* out, bool is_bf16);
  // A Nonlinearity of numerics/curves.h, as bf16 or f32.
  void (*curve)(int which, const float* x, int64_t width, void* out, bool is_bf16);
  // ScaleLogitsParams, of a row.
  void (*scale_logits)(float* x, int64_t width, float divisor, float cap);
  // x = x * scale.
  void (*scale)(float* x, int64_t width, float scale);
  // y = y + (x (+ bias)) * scale.
  void (*add_scaled)(const float* x, const float* bias, int64_t width, float scale, float* y);
  // One head as f32.
  void (*head)(const HeadTransform&, const float* in, float* out);
  // One head as bf16.
  void (*query)(const HeadTransform&, const float* in, uint16_t* out);
  // One head and its value as the cache holds them; false when one of their elements was not
  // finite.
  bool (*key_value)(const HeadTransform&, const float* key, const float* value, uint16_t* key_out,
                    uint16_t* value_out);
  // Columns [begin, end) of the sum of a row's experts, added to the residual stream; `begin` is a
  // multiple of 16.
  void (*sum_experts)(const ExpertSum&, int64_t begin, int64_t end);
  // Largest logit, and with `sums` the sums for log_sum_exp. Sums and argmax mean nothing when the
  // row has a NaN.
  LogitsPass (*logits)(const float* x, int64_t vocab, bool sums);
  // out[0 .. width) = a Nonlinearity of a gated pair's products, whose panels of 16 take turns.
  void (*gate_pairs)(int which, const float* dots, int64_t width, void* out, bool is_bf16);
};

extern const RowFunctions kAvx2Rows, kAvx512Rows, kAmxRows;

}  // namespace invar::cpu
