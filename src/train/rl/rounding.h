// Weights as a quantised sampler has them: for experiments about a sampler that is another policy
// than the one that is trained.
#pragma once

#include <string>
#include <vector>

#include "model/parameters.h"
#include "weights/tensor_source.h"

namespace invar::rl {

constexpr int64_t kRoundingGroup = 32;

// "int8", "int4", "int3", "int2": whole numbers from -127 to 127, -7 to 7, -3 to 3, -1 to 1. "fp8":
// E4M3, 3 bits of mantissa.
const std::vector<std::string>& rounding_formats();

// Every matrix rounded to `format` in groups of kRoundingGroup neighbours of a row, with one scale
// that takes the largest magnitude to the format's largest number, and back to bf16; norms and
// biases as they are. In the layout's order.
std::vector<bf16_t> rounded_weights(const ParameterLayout& layout, const TensorSource& weights,
                                    const std::string& format);

}  // namespace invar::rl
