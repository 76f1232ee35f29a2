// Heads with a state in float64, a row at a time: the recurrences as they are published.
#pragma once

#include <cstdint>
#include <vector>

namespace invar {

using RowsF64 = std::vector<std::vector<double>>;

struct HeadsF64 {
  int64_t key_heads, heads, key_size, value_size;
  bool is_delta, doubles;  // the gated delta rule; else Mamba 2
  bool has_channels;       // each channel of a key has a decay; gates are logistic functions
  double least, most;      // of Mamba 2's steps
  int64_t norm_groups;
  double norm_eps;
  const double *bias, *rate, *skip;  // [heads], a bias with channels [heads * key_size]
  const double* norm;                // [value_size], of Mamba 2 of all values
};

// The results of products and short convolutions.
struct RowsOfHeads {
  RowsF64 queries, keys, values;
  RowsF64 decays, factors;  // [heads], decays as biases; factors of the delta rule alone
  RowsF64 gates;
};

// The input of the output product.
RowsF64 run_heads_f64(const HeadsF64& of, RowsOfHeads rows);

}  // namespace invar
