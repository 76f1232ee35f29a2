// Matrices of blocks on a GPU. Order `hopper` multiplies few rows by them as they are; otherwise
// some outputs at a time become bf16 in scratch memory, which the order's products read.
#pragma once

#include "kernels/cuda/normed_products.h"
#include "kernels/inference.h"

namespace invar::cuda {

// Memory for that (MatmulParams::scratch).
constexpr size_t kBlocksScratch = size_t{256} << 20;

// Products that read blocks, of at most so many rows: in runs up to 8 rows or 32 at a time
// (product_blocks.cuh), in one run up to 8 there and else all at once (product_blocks_wide.cuh).
constexpr int kFewRowsOfBlocks = 8, kRowsOfRuns = 32, kMostRowsOfBlocks = 64;
// Whether they can: runs of whole blocks.
bool reads_blocks(const Matrix& w, int64_t rows, int runs);
void matmul_by_blocks(const MatmulParams& p, const Execution& on);
void gated_matmul_by_blocks(const GatedMatmulParams& p, const Execution& on);
// Of one type: few rows, or one that is a norm, and more of one run.
template <DType type>
void few_blocks_matmul(const MatmulParams& p, const Execution& on, const RowNorm& norm);
template <DType type>
void few_blocks_gated(const GatedMatmulParams& p, const Execution& on, const RowNorm& norm);
template <DType type>
void wide_blocks_matmul(const MatmulParams& p, const Execution& on);
template <DType type>
void wide_blocks_gated(const GatedMatmulParams& p, const Execution& on);

// How many outputs of each matrix of the stack are made at a time for so many rows: whole tiles
// that fit into the scratch.
int64_t outputs_at_once(const Matrix& w, int64_t rows);
// Outputs [first, first + count) of each matrix of the stack, in `scratch`.
Matrix expand(const Matrix& w, int64_t first, int64_t count, void* scratch, const Execution& on);

void embed_blocks(const EmbedParams& p, const Execution& on);

}  // namespace invar::cuda
