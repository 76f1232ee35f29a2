// Low-rank adapters for the table of kernels: what each share does. The products are the set's own
// of one matrix.
#pragma once

#include "kernels/adapters.h"
#include "kernels/cpu/row_functions.h"

namespace invar::cpu {

void adapter_shrink(const AdapterParams& p, const Execution& on);
void adapter_expand(const AdapterParams& p, const Execution& on);
void gate_pairs(const RowFunctions& rows, const GatePairsParams& p, const Execution& on);

template <const RowFunctions& rows>
void override_adapters(Kernels& kernels) {
  kernels.adapter_shrink = adapter_shrink;
  kernels.adapter_expand = adapter_expand;
  kernels.gate_pairs = [](const GatePairsParams& p, const Execution& on) {
    gate_pairs(rows, p, on);
  };
}

}  // namespace invar::cpu
