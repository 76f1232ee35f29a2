// The products of order `hopper`, by how they are cut; chosen among in product_hopper.cc. All take
// weights in rows and launch on the stream.
#pragma once

#include "kernels/cuda/cuda_kernels.h"

namespace invar::cuda {

// Any number of rows, one run: tiles of 128 x 128, two at a time, by blocks alone or in pairs that
// share weights (TileTeam); of 128 x kColumns, one at a time.
template <int kPair>
void ping_pong_matmul(const MatmulParams& p, const Execution& on);
template <int kPair>
void ping_pong_gated(const GatedMatmulParams& p, const Execution& on);
template <int kColumns, int kGroups>
void shared_tile_matmul(const MatmulParams& p, const Execution& on);
template <int kColumns, int kGroups>
void shared_tile_gated(const GatedMatmulParams& p, const Execution& on);

// Any number of rows, 2, 4 or 8 split-K parts: tiles of 128 x kColumns, by one block or (4 or 8
// parts) by two; or by blocks in pairs that share weights (TileTeam).
template <int kColumns, int kBlocks, int kPair = 1>
void tree_matmul(const MatmulParams& p, const Execution& on);

// Up to 8 rows, one part, few outputs.
bool thin_can(const ProductShape& shape);
void thin_matmul(const MatmulParams& p, const Execution& on);

// Up to kTokens rows; one part, and 2, 4 or 8 parts.
template <int kTokens>
void few_matmul(const MatmulParams& p, const Execution& on);
template <int kTokens>
void few_gated(const GatedMatmulParams& p, const Execution& on);
template <int kTokens>
void few_split_k_matmul(const MatmulParams& p, const Execution& on);

}  // namespace invar::cuda
