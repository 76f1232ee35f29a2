// Parameters of routing and of the products of experts (numerics 7). The letters of the shapes are
// those of kernels/inference.h.
#pragma once

#include <cstdint>

#include "device/execution.h"
#include "kernels/products.h"
#include "numerics/routing.h"

namespace invar {

// Chooses the experts that each row goes through, `ids`, ascending, and their weights. `given`,
// [T][C] or null: these are chosen, where the first of a row is not negative (on the CPU only).
// `scales`, [experts] or null: weights are multiplied by their expert's.
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

// out[j] = act(out[j] * w) where pair j has the weight w, which becomes 1 then: these weights
// multiply the experts' inputs. Only gathered rows are written; the others' weights become 1, too.
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
// The same for gated products: w is a stack of pairs.
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
  // The baseline (numerics 10) adds in the order of the places and rounds each sum to bf16, as
  // engines do that add to their residual stream as experts end.
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

}  // namespace invar
