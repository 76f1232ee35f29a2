// Puts row-major weights into a packed matrix (kernels/matrix.h): into its panels, or into
// its rows.
#pragma once

#include "kernels/matrix.h"

namespace invar {

// Where rows of a source matrix become outputs of a packed one: row i is output
// `output` + i when `step` is 1, at any offset; with step 2, as in a gated pair, `output` is a
// multiple of 16 (0 for gate, 16 for up) and every second panel is left to the other matrix.
struct PackPlace {
  int64_t output = 0;
  int step = 1;
};

// A gated pair as one matrix, and which of its outputs are those of gate (0) or up (1): panels take
// turns, rows of the one stand behind those of the other.
inline Matrix as_one(Matrix pair) {
  pair.n = pair.count * pair.units() * pair.unit_outputs();
  pair.count = 1;
  return pair;
}
inline PackPlace column_of_pair(const Matrix& pair, int64_t which) {
  if (pair.layout == WeightLayout::panels) return {which * kPanelWidth, 2};
  return {which * pair.all_rows(), 1};
}

// Packs rows [first, first + count) of a matrix of bf16 or f32. `rows` is row `first`; rows are
// `stride` elements apart and have k columns, which become the inner elements, padded with zeros to
// whole leaves. Outputs that no row goes to keep what they hold (allocated memory is zero). Any
// thread may pack any rows: outputs share no byte.
void pack_rows(DType type, const void* rows, int64_t stride, int64_t first, int64_t count,
               int64_t k, PackPlace place, void* packed);
// The same into either layout, and for types with blocks: `rows` are as a file has them, `stride`
// and k are whole blocks. `w` says which, its data is not read.
void pack_rows(const Matrix& w, const void* rows, int64_t stride, int64_t first, int64_t count,
               PackPlace place, void* packed);
// The scales of rows [first, first + count) of a matrix of i8.
void pack_scales(const Matrix& w, const float* scales, int64_t first, int64_t count,
                 PackPlace place, void* packed);

}  // namespace invar
