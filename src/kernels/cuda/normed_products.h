// Products of one row that is the norm of another, which every block makes for itself (order
// `hopper`; row_in_block.cuh).
#pragma once

#include "kernels/inference.h"

namespace invar::cuda {

// The row that a product multiplies is the norm of x; no x: it is there.
struct RowNorm {
  const float* x = nullptr;
  const float* weight = nullptr;
  float eps = 0;
  int width = 0;
};

// By bf16 and integers, where there is such a product.
bool few_norms(const Matrix& w, const Execution& on);
void few_normed_matmul(const MatmulParams& p, const RowNorm& norm, const Execution& on);
void few_normed_gated(const GatedMatmulParams& p, const RowNorm& norm, const Execution& on);
// By blocks.
bool blocks_norm(const Matrix& w, const Execution& on);
void normed_matmul_by_blocks(const MatmulParams& p, const RowNorm& norm, const Execution& on);
void normed_gated_by_blocks(const GatedMatmulParams& p, const RowNorm& norm, const Execution& on);

}  // namespace invar::cuda
