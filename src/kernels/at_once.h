// Several lines of a layer as one operation, where a back end has a kernel for it: of few rows each
// kernel takes less than waiting for the one before it. Each computes what the operations of
// inference.h do one after the other, of any of their operands.
#pragma once

#include "kernels/inference.h"

namespace invar {

// The norm, the router's product of its rows, and the choice by its logits.
struct RouteExpertsParams {
  RmsNormParams norm;
  MatmulParams router;
  ChooseExpertsParams choose;
};

// The order of the rows and what experts read, of at most kMostPairs pairs.
struct SortAndGatherParams {
  SortRowsParams sort;
  GatherRowsParams gather;
};
constexpr int64_t kMostPairs = 2048;

// The norm of one row, and the product of it, whose x is norm.out: nobody else reads that, and it
// need not be written.
struct NormedMatmulParams {
  RmsNormParams norm;
  MatmulParams product;
};
struct NormedGatedMatmulParams {
  RmsNormParams norm;
  GatedMatmulParams product;
};

// Measured: behind longer ones a row waits for the merge of its pieces.
constexpr int32_t kShortContext = 256;

// Null: not there.
struct AtOnce {
  Operation<RouteExpertsParams> route_experts = nullptr;
  Operation<SortAndGatherParams> sort_and_gather = nullptr;
  // As Kernels::rotated_attention, for rows that see at most kShortContext slots.
  Operation<RotatedAttentionParams> short_attention = nullptr;
  // Whether these are there for a matrix.
  bool (*norms_row)(const Matrix& w, const Execution& on) = nullptr;
  Operation<NormedMatmulParams> normed_matmul = nullptr;
  Operation<NormedGatedMatmulParams> normed_gated_matmul = nullptr;
};

// The joined operations beside a table that is no baseline's.
AtOnce at_once(const Kernels& table);

}  // namespace invar
