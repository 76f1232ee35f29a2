// Products of integers (numerics 2.1) on a GPU, from either layout.
#pragma once

#include "kernels/inference.h"

namespace invar::cuda {

void quantise(const QuantiseParams& p, const Execution& on);
void int8_matmul(const MatmulParams& p, const Execution& on);
void int8_gated_matmul(const GatedMatmulParams& p, const Execution& on);

}  // namespace invar::cuda
