// Products of integers for the table of kernels: numerics 2.1 in every order, by the widest sums of
// products that a set has.
#pragma once

#include "kernels/cpu/matmul.h"

namespace invar::cpu {

void quantise(const QuantiseParams& p, const Execution& on);

// The best product of each set on this processor.
void int8_best_avx2(const PanelProduct& p);
void int8_best_avx512(const PanelProduct& p);
void int8_best_amx(const PanelProduct& p);

template <RunProduct run>
void override_int8(Kernels& kernels) {
  kernels.quantise = quantise;
  kernels.int8_matmul = matmul<run>;
  kernels.int8_gated_matmul = [](const GatedMatmulParams& p, const Execution& on) {
    gated_matmul(run, p, nullptr, on);
  };
}

}  // namespace invar::cpu
