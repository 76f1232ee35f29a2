// Products of integers (numerics 2.1) on a GPU, from either layout.
#pragma once

#include "kernels/inference.h"

namespace invar::cuda {

void quantise(const QuantiseParams& p, const Execution& on);
// Whether products of so many rows, of e4m3_row also, take them as bf16, too: few rows that fit
// into shared memory.
bool makes_integers(const Matrix& w, int64_t rows, int split_k);
void int8_matmul(const MatmulParams& p, const Execution& on);
void int8_gated_matmul(const GatedMatmulParams& p, const Execution& on);
// Weights in rows: up to 64 rows of x, in runs by themselves, and any number.
void few_int8_matmul(const MatmulParams& p, const Execution& on);
void few_int8_in_runs(const MatmulParams& p, const Execution& on);
void few_int8_gated(const GatedMatmulParams& p, const Execution& on);
void int8_tiles_matmul(const MatmulParams& p, const Execution& on);
void int8_tiles_gated(const GatedMatmulParams& p, const Execution& on);

}  // namespace invar::cuda
