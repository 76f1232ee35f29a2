// Which implementations this machine can run, and the choice among them. Made once, at start.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "kernels/training.h"

namespace invar {

// Names of all instruction sets known to this build, slowest first: "scalar", "avx2", "avx512",
// "amx".
const std::vector<std::string>& instruction_sets();
// Whether this machine can run it (for "amx" this asks the kernel for the right to use the tiles).
bool is_supported(std::string_view instruction_set);

// The kernels of an order for an instruction set; "auto" is the fastest supported one. Entries that
// an instruction set does not override come from the next slower set. Throws UsageError for unknown
// or unsupported names.
Kernels select_kernels(Order order, std::string_view instruction_set);
// Those of order `portable` that multiply blocks as integers (numerics 2.3).
Kernels select_block_kernels(std::string_view instruction_set);
// The same as the first for training.
TrainingKernels select_training_kernels(Order order, std::string_view instruction_set);

}  // namespace invar
