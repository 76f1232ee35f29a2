// Products of blocks: the executable definition of numerics 2.3. Expects flush-to-zero mode.
#pragma once

#include <cstdint>

#include "numerics/blocks.h"

namespace invar::orders {

// Columns of a row at most: then its integers have their place in a core's cache.
constexpr int64_t kMostBlockColumns = 1 << 17;

// A row of weights beside such a product, a part after the other.
struct PartsOfARow {
  int size;                  // elements of a part: 16 or 32
  bool adds;                 // BlockPart::plus, too
  const int8_t* integers;    // [k]
  const BlockPart* factors;  // [k / size]
};

// Integers of a row of bf16, 32 columns at a time, each with a scale. k is a multiple of 32.
void quantise_columns(const bf16_t* x, int64_t k, int8_t* q, RunScale* scales);

// The tree over `runs` equal runs, each one chain over its parts, then + 0.
float block_dot(const int8_t* x, const RunScale* scales, const PartsOfARow& w, int64_t k, int runs);

}  // namespace invar::orders
