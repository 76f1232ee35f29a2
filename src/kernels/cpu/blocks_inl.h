// Leaves of a panel of blocks as a panel of bf16, in registers: numerics/blocks.h on the vector
// sets. Included after a vec16 header.
#pragma once

#include "kernels/cpu/panel_product.h"

namespace invar::cpu {

namespace {

// Null for types without blocks.
inline ExpandPanel expander_of(DType type) {
  switch (type) {
    default:
      return nullptr;
  }
}

}  // namespace

}  // namespace invar::cpu
