// Where a row of a recurrent layer reads and writes.
#pragma once

#include "kernels/recurrent.h"

namespace invar::cuda {

// A row, where its state and its chunk are, and where what it leaves goes: the cells of the list
// from `begin` to `end`, mostly one. All heads of a row ask for these once.
struct RowPlace {
  __device__ RowPlace(const RecurrenceParams& p, int64_t t)
      : t(t),
        position(p.places.positions[t]),
        state(p.state_of[t]),
        cell(p.places.cell_of(t, position)),
        begin(p.places.write_begin[t]),
        end(p.places.write_begin[t + 1]),
        first(begin < end ? p.places.write_cell[begin] : -1) {}
  template <typename Use>
  __device__ void each_cell(const RecurrenceParams& p, const Use& use) const {
    if (begin < end) use(first);
#pragma unroll 1
    for (int w = begin + 1; w < end; ++w) use(p.places.write_cell[w]);
  }
  int64_t t;
  int32_t position, state, cell, begin, end, first;
};

}  // namespace invar::cuda
