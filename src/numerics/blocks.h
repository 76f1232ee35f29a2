// What a block of elements stands for: the definition of every storage type that has blocks. Also
// runs on GPUs.
#pragma once

#include "numerics/dtype.h"

namespace invar {

// The elements of one block in f32, before the one rounding to bf16 (numerics 0.1).
constexpr void expand_block(DType type, [[maybe_unused]] const uint8_t* values,
                            [[maybe_unused]] const uint8_t* scales, [[maybe_unused]] float* out) {
  switch (type) {
    default:  // no block
      break;
  }
}

}  // namespace invar
