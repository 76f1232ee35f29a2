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

constexpr int32_t kShortContext = 2048;

// Null: not there.
struct AtOnce {
  Operation<RouteExpertsParams> route_experts = nullptr;
  // As Kernels::rotated_attention, for rows that see at most kShortContext slots.
  Operation<RotatedAttentionParams> short_attention = nullptr;
};

// What there is beside a table that is no baseline's.
AtOnce at_once(const Kernels& table);

}  // namespace invar
