// The table of the baseline on a GPU (numerics 10).
#pragma once

#include "kernels/inference.h"

namespace invar::cuda {

// Throws Error when cuBLAS is not there.
Kernels baseline_kernels();

}  // namespace invar::cuda
