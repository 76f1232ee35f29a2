// The backward on AVX-512 with the rounding to bf16 that a processor with AMX has.
#include <immintrin.h>

#include <cstdint>

#include "kernels/cpu/backward_rows.h"
// in this order
#include "kernels/cpu/vec16_amx.h"
// after it
#include "kernels/cpu/vec16_math.h"
// after it
#include "kernels/cpu/backward_inl.h"

namespace invar::cpu {

const BackwardRows kAmxBackward = kBackwardRows;

}  // namespace invar::cpu
