// The foil of numerics 10: a conventional arithmetic that promises nothing, for comparison only. It
// runs on the same tuned kernels; what it does differently is what conventional engines do: it cuts
// the inner size of a product by the number of rows in the step, and keeps its residual stream in
// bf16.
#pragma once

#include <cstdint>

namespace invar::control {

// Runs of a product with inner size k: few rows leave threads idle, so the inner size is split;
// many rows do not.
inline int runs(int64_t rows, int64_t k) {
  const int wanted = rows <= 4 ? 4 : rows <= 16 ? 2 : 1;
  return k % (32 * wanted) == 0 ? wanted : 1;
}

}  // namespace invar::control
