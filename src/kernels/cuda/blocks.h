// Matrices of blocks on a GPU: some outputs at a time become bf16 in scratch memory, which the
// order's products read.
#pragma once

#include "kernels/inference.h"

namespace invar::cuda {

// Memory for that (MatmulParams::scratch).
constexpr size_t kBlocksScratch = size_t{64} << 20;

// How many outputs of each matrix of the stack fit into the scratch at a time: whole tiles.
int64_t outputs_at_once(const Matrix& w);
// Outputs [first, first + count) of each matrix of the stack, in `scratch`.
Matrix expand(const Matrix& w, int64_t first, int64_t count, void* scratch, const Execution& on);

void embed_blocks(const EmbedParams& p, const Execution& on);

}  // namespace invar::cuda
