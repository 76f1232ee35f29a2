// Attention where queries and cache are f32 (weight mode exact).
#pragma once

#include "kernels/inference.h"

namespace invar::cuda {

// Head sizes up to 256; a cache in panels.
void attention_f32(const AttentionParams& p, const Execution& on);

}  // namespace invar::cuda
