// One step of a Hopper tensor core in 8 bits: the addition of 32 products of e4m3 numbers and an
// f32 accumulator (numerics 1.4).
#pragma once

#include <cstdint>

namespace invar {

// acc + sum over i of a[i] * b[i], i = 0..31, as wgmma m64nNk32 computes it of e4m3: with 13 bits
// behind the leading one. The order of the 32 products does not matter. (mma.sync does not compute
// this: on Hopper it widens to f16.)
float hopper8_step(float acc, const uint8_t* a, const uint8_t* b);

}  // namespace invar
