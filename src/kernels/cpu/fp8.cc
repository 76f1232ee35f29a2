#include "kernels/cpu/fp8.h"

#include "kernels/reference/reference.h"

namespace invar::cpu {

void fp8_matmul(const MatmulParams& p, const Execution& on) {
  matmul(fp8_product_avx2, p, false, on);
}

void override_fp8(Kernels& kernels) {
  kernels.quantise_fp8 = reference::quantise_fp8;
  kernels.fp8_matmul = fp8_matmul;
  kernels.fp8_gated_matmul = [](const GatedMatmulParams& p, const Execution& on) {
    gated_matmul(fp8_product_avx2, p, nullptr, on);
  };
}

}  // namespace invar::cpu
