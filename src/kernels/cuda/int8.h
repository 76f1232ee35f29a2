// Products of integers (numerics 2.1) on a GPU, from either layout.
#pragma once

#include "kernels/inference.h"

namespace invar::cuda {

void quantise(const QuantiseParams& p, const Execution& on);
void int8_matmul(const MatmulParams& p, const Execution& on);
void int8_gated_matmul(const GatedMatmulParams& p, const Execution& on);
// Weights in rows: up to 64 rows of x, in runs by themselves, and any number.
void few_int8_matmul(const MatmulParams& p, const Execution& on);
void few_int8_in_runs(const MatmulParams& p, const Execution& on);
void few_int8_gated(const GatedMatmulParams& p, const Execution& on);
void int8_tiles_matmul(const MatmulParams& p, const Execution& on);
void int8_tiles_gated(const GatedMatmulParams& p, const Execution& on);

}  // namespace invar::cuda
