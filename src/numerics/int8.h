// Products of integers: the executable definition of numerics 2.1. Expects flush-to-zero mode.
#pragma once

#include <cstdint>

#include "numerics/dtype.h"

namespace invar::orders {

// An exact sum of so many products of two integers of 8 bits fits into 32 bits.
constexpr int64_t kMostInt8 = 1 << 17;

// One run of a row: q[i] for each x[i], and what they are multiples of. With a NaN or an infinity
// among them all q are 0 and the scale is a NaN.
RunScale quantise_run(const bf16_t* x, int64_t k, int8_t* q);

// The tree over `runs` equal runs of (f32)(exact sum) * (scale of the run * w_scale), then + 0.
float int8_dot(const int8_t* x, const RunScale* scales, const int8_t* w, float w_scale, int64_t k,
               int runs);

}  // namespace invar::orders
