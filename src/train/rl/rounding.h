// Weights as a quantised sampler has them: for experiments about a sampler that is another policy
// than the one that is trained.
#pragma once

#include <vector>

#include "model/parameters.h"
#include "weights/tensor_source.h"

namespace invar::rl {

constexpr int64_t kInt8Group = 32;

// Every matrix rounded to int8 in groups of kInt8Group neighbours of a row, with scale = largest
// magnitude / 127, and back to bf16; norms and biases as they are. In the layout's order.
std::vector<bf16_t> int8_rounded(const ParameterLayout& layout, const TensorSource& weights);

}  // namespace invar::rl
