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
  int step = 1;        // 2: one of a gated pair whose panels take turns
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

// ---- The same as a GPU reads it. A recorded step has other adapters each time, so that what
// depends on them lies in memory of the device. A and B are in panels in every order.

constexpr int kMostAdapterTensors = 3;  // of one product: q, k and v
constexpr int kAdapterUnit = 16;        // outputs, of A or of B, that are computed together

// One adapter beside one product, in a slot; without tensors nothing stands there.
struct AdapterSlot {
  struct Tensor {
    const void* b = nullptr;  // [n][rank]
    float scale = 1;
    int32_t n = 0, rank = 0;
    int32_t inner = 0, output = 0, step = 1;  // as AdapterOutputs
  };
  const void* a = nullptr;  // [.][K]
  int32_t tensors = 0;
  Tensor outputs[kMostAdapterTensors];
};

// Some rows of one slot: elements [first, first + count) of a list of rows. Tiles of no rows stand
// behind the others.
struct AdapterTile {
  int32_t slot = 0, first = 0, count = 0;
};
// The most rows of a tile: where few rows have adapters, and where many do.
constexpr int kFewAdapterRows = 8, kManyAdapterRows = 32;

// A step's tables. What is on the host bounds what lies on the device.
struct AdapterTables {
  const AdapterTile* tiles = nullptr;  // [num_tiles]
  const int32_t* rows = nullptr;       // those that have adapters, by slot
  int32_t num_tiles = 0;
  int32_t tile_rows = kFewAdapterRows;
  const AdapterSlot* slots = nullptr;  // slot s has the element s * slot_stride
  int64_t slot_stride = 0;
  int32_t inner_units = 0;     // the most that A's outputs are in one slot
  int64_t outputs = 0, k = 0;  // of the product

  bool operator==(const AdapterTables&) const = default;
};

// Parameters of the operations below, which run one after the other. A CPU reads the groups, a GPU
// the tables.
struct AdapterParams {
  const AdapterGroup* groups = nullptr;
  int32_t num_groups = 0;
  AdapterTables tables;
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

// out[t][f] = act(curve(g) * u) of a gated pair's products, which stand as in kernels/pack.h,
// column_of_pair. Pad columns are set to zero.
struct GatePairsParams {
  const float* dots;  // [T][as_one(gate_up).n]
  int64_t dots_stride;
  int64_t rows, width;  // F
  Nonlinearity curve;
  Activation out;
};

}  // namespace invar
