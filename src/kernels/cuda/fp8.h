// Products of e4m3 numbers (numerics 2.2, 2.5) on a GPU, from weights in rows.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/inference.h"

namespace invar::cuda {

void quantise_fp8(const QuantiseParams& p, const Execution& on);
void fp8_matmul(const MatmulParams& p, const Execution& on);
void fp8_gated_matmul(const GatedMatmulParams& p, const Execution& on);
// Up to kMostFewFp8Rows rows in runs of whole blocks of 128 columns, in several runs by themselves.
constexpr int kMostFewFp8Rows = 64;
void few_fp8_matmul(const MatmulParams& p, const Execution& on);
void few_fp8_in_runs(const MatmulParams& p, const Execution& on);
void few_fp8_gated(const GatedMatmulParams& p, const Execution& on);
// The same by rows.
void few_fp8_row_matmul(const MatmulParams& p, const Execution& on);
void few_fp8_row_in_runs(const MatmulParams& p, const Execution& on);
void few_fp8_row_gated(const GatedMatmulParams& p, const Execution& on);
void fp8_row_tiles_matmul(const MatmulParams& p, const Execution& on);
void fp8_row_tiles_gated(const GatedMatmulParams& p, const Execution& on);
// Any number of rows and any runs, in groups.
void fp8_tiles_matmul(const MatmulParams& p, const Execution& on);
void fp8_tiles_gated(const GatedMatmulParams& p, const Execution& on);

// Steps of an H200's tensor cores as they were recorded (tests/data/hopper), a few of every kind:
// d[m][n] = hopper8_step(c[m][n], a[m], b[n]).
struct RecordedSteps8 {
  uint8_t a[64][32], b[8][32];
  uint32_t c[64][8], d[64][8];
};
std::span<const RecordedSteps8> hopper8_sample();

// As check_hopper_steps (cuda_kernels.h), where weights are e4m3 numbers.
void check_hopper8_steps(Device& device);

// Adds to *different the outputs of the cases that the GPU computes otherwise. Device addresses.
void count_differing_steps(const RecordedSteps8* cases, size_t count, unsigned* different,
                           const Execution& on);

}  // namespace invar::cuda
