// Products of e4m3 numbers for the table of kernels: numerics 2.2. A CPU has no such instruction
// and computes the tensor cores' steps by integers, the same on every set.
#pragma once

#include "kernels/cpu/matmul.h"

namespace invar::cpu {

void fp8_matmul(const MatmulParams& p, const Execution& on);
void override_fp8(Kernels& kernels);

}  // namespace invar::cpu
