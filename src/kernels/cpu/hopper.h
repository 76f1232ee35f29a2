// Order `hopper` on a CPU: the bits of an H200's tensor cores (numerics 1.2), many outputs at a
// time.
#pragma once

#include "kernels/inference.h"

namespace invar::hopper {

// Replace matmul, gated_matmul and both kinds of attention. The kernels' order is hopper.
void override_avx2(Kernels& kernels);
void override_avx512(Kernels& kernels);

}  // namespace invar::hopper
