// Products of e4m3 numbers: the executable definition of numerics 2.2 and 2.5. Expects
// flush-to-zero mode.
#pragma once

#include <cstdint>

#include "numerics/dtype.h"

namespace invar::orders {

// Columns that share a scale, counted from a row's first; a run's end ends a group, too.
constexpr int64_t kFp8Group = 128;

// Groups of a row of k columns in `runs` runs, at most, and that of column i, which lies in run r.
constexpr int64_t fp8_groups(int64_t k, int runs) {
  return (k + kFp8Group - 1) / kFp8Group + runs - 1;
}
constexpr int64_t fp8_group(int64_t i, int run) {
  return i / kFp8Group + run;
}

// One run of a row, from column `first` on: q[i] for each x[i], and the scale of each of its groups
// to scales[fp8_group(...)]. With a NaN or an infinity in a group its q are 0 and its scale is a
// NaN.
void quantise_fp8_run(const bf16_t* x, int64_t first, int64_t k, int run, uint8_t* q,
                      RunScale* scales);

// The tree over `runs` equal runs, each the sum of its groups, then + 0. x and w have k columns,
// w_scales one scale for each 128 of them.
float fp8_dot(const uint8_t* x, const RunScale* scales, const uint8_t* w, const float* w_scales,
              int64_t k, int runs);

// The same by rows (numerics 2.5): a run of k columns has one scale, and so has w.
RunScale quantise_fp8_row(const bf16_t* x, int64_t k, uint8_t* q);
float fp8_row_dot(const uint8_t* x, const RunScale* scales, const uint8_t* w, float w_scale,
                  int64_t k, int runs);

}  // namespace invar::orders
