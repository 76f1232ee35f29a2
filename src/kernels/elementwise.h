// Parameters of the operations that compute each row for itself: embedding, norms, curves, sums
// and rounding. The letters of the shapes are those of kernels/inference.h.
#pragma once

#include <cstdint>

#include "kernels/matrix.h"
#include "numerics/curves.h"

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
  bool keeps_pad = false;  // pad columns stay: they belong to another activation
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

// out[t][f] = act(curve(x[t][f])), behind a product that is no gated pair's. Pad columns are set to
// zero.
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

// x[t][i] = act(x[t][i] * 1 / (1 + exp(-gate[t][i]))), between attention and the product behind it
// (numerics 4). Pad columns stay.
struct OutputGateParams {
  Activation x;       // [T][width]
  const float* gate;  // [T][width]
  int64_t gate_stride;
  int64_t rows, width;
};

// x = x * factor[0], in place.
struct ScaleRowsParams {
  float* x;  // [T][D]
  int64_t rows, width;
  const float* factor;  // where the kernels read
};

// out = act(x): rows that no norm made, gradients too, enter a matrix product so (numerics 9). Pad
// columns are set to zero.
struct RoundParams {
  const float* x;  // [.][N]
  int64_t x_stride;
  const int32_t* rows_of;  // as RmsNormParams
  int64_t rows, width;
  Activation out;
};

// y = y + (x (+ bias)) * scale: the end of a row-parallel product whose tree went over several
// ranks, or which a norm follows.
struct AddParams {
  const float* x;  // [T][D]
  int64_t x_stride;
  const float* bias;  // [D] or null
  int64_t rows, width;
  float* y;  // [T][D]
  float scale = 1.0f;
};

// The end of a row-parallel product that does not add to y itself, and the beginning of the next
// one: y = y + z * scale, z = x (+ bias), or with `norm` RMSNorm(x); then out = RMSNorm(y) with the
// weight `next`, or without one y, as rows that enter a product.
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

// y = y + x / (1 + exp(-x))
struct AddSiluParams {
  const float* x;
  int64_t count;
  float* y;
};

// x = bf16(x), in place: the residual stream of the baseline (numerics 10).
struct RoundInPlaceParams {
  float* x;
  int64_t count;
};

}  // namespace invar
