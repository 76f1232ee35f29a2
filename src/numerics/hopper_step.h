// One step of a Hopper tensor core: the addition of 16 bf16 products and an f32 accumulator
// (numerics 1.2).
#pragma once

#include "numerics/dtype.h"

namespace invar {

// acc + sum over i of a[i] * b[i], i = 0..15, as wgmma and mma.sync m16n8k16 compute it. The order
// of the 16 products does not matter.
float hopper_step(float acc, const bf16_t* a, const bf16_t* b);

}  // namespace invar
