// Low-rank adapters beside a product (numerics 2.4): y = y + B act(s A x), of rows that have
// different adapters or none. Rows without an adapter are neither read nor written.
#pragma once

#include <cstdint>

#include "kernels/inference.h"

namespace invar {

// Neighbouring rows of a step.
struct RowRun {
  int32_t first = 0, count = 0;
};

// The part of one adapter that adds to the outputs of one tensor.
struct AdapterOutputs {
  Matrix b;            // [N][rank]
  float scale = 1;     // s
  int64_t inner = 0;   // which of A's outputs is the first that B reads: a multiple of 32
  int64_t output = 0;  // which column of y is its first output (kernels/pack.h, PackPlace)
  int step = 1;        // 2: one of a gated pair, whose panels take turns
};

// One adapter's matrices beside one product, and the rows of the step that have it.
struct AdapterGroup {
  Matrix a;  // [.][K], the A of each tensor in turn, each padded with zeros to whole leaves
  const AdapterOutputs* outputs = nullptr;
  int32_t tensors = 0;
  const RowRun* runs = nullptr;  // ascending
  int32_t num_runs = 0;
  int64_t rows = 0;  // in all
};

// Parameters of the operations below, which run one after the other.
struct AdapterParams {
  const AdapterGroup* groups = nullptr;
  int32_t num_groups = 0;
  Activation x;           // [T][K]
  int split_k = 1;        // the runs of the product beside it
  float* sums = nullptr;  // [T][stride]: A x
  int64_t sums_stride = 0;
  Activation inner;    // [T][.]: act(s A x)
  float* y = nullptr;  // [T][N]
  int64_t y_stride = 0;
  Operation<MatmulParams> matmul = nullptr;  // of the table's own order
};

// x[t][n] = x[t][n] + bias[n], of a product that an adapter adds to before anything follows it.
struct AddBiasParams {
  float* x;  // [T][N]
  int64_t x_stride;
  int64_t rows, width;
  const float* bias;   // [N]
  int64_t output = 0;  // as AdapterOutputs
  int step = 1;
};

// out[t][f] = act(curve(g) * u) of a gated pair's products, whose panels take turns. Pad columns
// are set to zero.
struct GatePairsParams {
  const float* dots;  // [T][2 * round_up(F, 16)]
  int64_t dots_stride;
  int64_t rows, width;  // F
  Nonlinearity curve;
  Activation out;
};

}  // namespace invar
