// Products of blocks as integers (numerics 2.3) on a GPU, of matrices in panels.
#pragma once

#include "kernels/inference.h"

namespace invar::cuda {

// Rows of bf16 become integers in the product's scratch memory.
void block_matmul(const MatmulParams& p, const Execution& on);
void block_gated_matmul(const GatedMatmulParams& p, const Execution& on);

}  // namespace invar::cuda
