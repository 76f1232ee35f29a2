// Parameters of matrix products, and of the quantising of the rows that enter them. The letters of
// the shapes are those of kernels/inference.h.
#pragma once

#include <cstdint>

#include "device/execution.h"
#include "kernels/matrix.h"
#include "numerics/curves.h"

namespace invar {

// Integers of each run of a row, their scale and their sum (numerics 2.1). A run that holds a NaN
// or an infinity gets zeros and a NaN for its scale. Pad columns of out up to whole leaves are
// zero.
struct QuantiseParams {
  Activation x;  // [T][K], bf16
  int64_t rows, width;
  int split_k;     // split-K parts: width is whole leaves in each, or there is 1
  Activation out;  // [T][K], i8, e4m3 or e4m3_row, its scales [T][scales_of_row(...)]
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

// y[t][h] = x[t][h] * w[h], a product for each of `each.w.count` heads; a head's x begins `x_step`
// elements after the one before it, its outputs each.w.n after.
struct HeadsMatmulParams {
  MatmulParams each;  // x of head 0; one run
  int64_t x_step;
  Operation<MatmulParams> matmul;  // of the same table
};

}  // namespace invar
