#include <immintrin.h>

#include <cstdint>

#include "kernels/cpu/backward_rows.h"
// in this order
#include "kernels/cpu/vec16_avx512.h"
// after it
#include "kernels/cpu/vec16_math.h"
// after it
#include "kernels/cpu/backward_inl.h"

namespace invar::cpu {

const BackwardRows kAvx512Backward = kBackwardRows;

}  // namespace invar::cpu
