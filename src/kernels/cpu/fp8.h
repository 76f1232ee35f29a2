// Products of e4m3 numbers for the table of kernels: numerics 2.2, 2.5. A CPU has no such
// instruction and computes the tensor cores' steps with floats.
#pragma once

#include "kernels/cpu/matmul.h"
#include "kernels/reference/reference.h"

namespace invar::cpu {

template <RunProduct run>
void override_fp8(Kernels& kernels) {
  kernels.quantise_fp8 = reference::quantise_fp8;
  kernels.fp8_matmul = matmul<run>;
  kernels.fp8_gated_matmul = [](const GatedMatmulParams& p, const Execution& on) {
    gated_matmul(run, p, nullptr, on);
  };
}

}  // namespace invar::cpu
