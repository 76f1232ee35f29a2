// Invar's elementary functions, element by element on a GPU.
#pragma once

#include <cstdint>

#include "device/execution.h"

namespace invar::cuda {

// exp2(x), exp(x), log(|x|) where finite, x / (1 + sqrt(|x|)); device addresses.
void elementary(const float* x, int64_t count, float* exp2, float* exp, float* log, float* divide,
                const Execution& on);

// Adds, over every float: how many gates silu_of_tame takes to counts[0], on how many of them it is
// not the activation's definition to counts[1]; of all other floats the same to counts[2] and [3].
void count_tame_gates(unsigned long long* counts, const Execution& on);

// A kernel that stops the GPU's work with an error.
void fail_on_purpose(const Execution& on);

}  // namespace invar::cuda
