// kernels/at_once.h on a GPU, of order hopper.
#pragma once

#include "kernels/at_once.h"

namespace invar::cuda {

AtOnce at_once();
void route_experts(const RouteExpertsParams& p, const Execution& on);
void sort_and_gather(const SortAndGatherParams& p, const Execution& on);
void short_attention(const RotatedAttentionParams& p, const Execution& on);
bool norms_row(const Matrix& w, const Execution& on);
void normed_matmul(const NormedMatmulParams& p, const Execution& on);
void normed_gated_matmul(const NormedGatedMatmulParams& p, const Execution& on);

}  // namespace invar::cuda
