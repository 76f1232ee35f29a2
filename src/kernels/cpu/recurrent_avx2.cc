#include <immintrin.h>

#include <cstdint>

#include "kernels/cpu/recurrent_functions.h"
// in this order
#include "kernels/cpu/vec16_avx2.h"
// after it
#include "kernels/cpu/vec16_math.h"
// after it
#include "kernels/cpu/recurrent_inl.h"

namespace invar::cpu {

const RecurrentFunctions kAvx2Recurrent = {
    keep,  convolve,    steps, logistic, multiply, key_head, gated_norm,   decays,    decayed,
    weigh, channel_dot, value, leave,    take,     output,   decayed_keys, step_state};

}  // namespace invar::cpu
