// Products of blocks as integers for the table of kernels (numerics 2.3), by the widest sums of
// products that a set has.
#pragma once

#include "kernels/cpu/matmul.h"
#include "kernels/cpu/row_leaf.h"

namespace invar::cpu {

// The best product of each set on this processor.
void block_best_avx512(const PanelProduct& p);
void block_best_amx(const PanelProduct& p);

// Blocks by one function, other weights by another.
template <RunProduct run_blocks, RunProduct run>
void product_by_parts(const PanelProduct& p) {
  (storage_of(p.stored).has_blocks() ? run_blocks : run)(p);
}

template <RunProduct run_blocks, RunProduct run>
void override_blocks(Kernels& kernels) {
  override_matmul<product_by_parts<run_blocks, run>>(kernels);
}

}  // namespace invar::cpu
