// Mixture of experts for the table of kernels: shares out the products of all experts. The products
// themselves are the set's own of one matrix.
#pragma once

#include "kernels/cpu/row_functions.h"
#include "kernels/inference.h"

namespace invar::cpu {

void expert_matmul(const ExpertMatmulParams& p, const Execution& on);
void expert_gated_matmul(const ExpertGatedMatmulParams& p, const Execution& on);
// The product of heads, whose rows are all rows.
void heads_matmul(const HeadsMatmulParams& p, const Execution& on);
void combine(const RowFunctions& rows, const CombineParams& p, const Execution& on);

template <const RowFunctions& rows>
void override_experts(Kernels& kernels) {
  kernels.expert_matmul = expert_matmul;
  kernels.expert_gated_matmul = expert_gated_matmul;
  kernels.heads_matmul = heads_matmul;
  kernels.combine_norm = nullptr;  // as add_norm
  kernels.combine = [](const CombineParams& p, const Execution& on) { combine(rows, p, on); };
}

}  // namespace invar::cpu
