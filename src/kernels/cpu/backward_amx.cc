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

const BackwardRows kAmxBackward = {.round = round,
                                   .bias_gradient = bias_gradient,
                                   .norm_backward = norm_backward,
                                   .head_norm_backward = head_norm_backward,
                                   .norm_gradient = norm_gradient,
                                   .gate_backward = gate_backward,
                                   .rotate_back = rotate_back,
                                   .loss = loss,
                                   .squares = squares,
                                   .adam = adam,
                                   .add = add,
                                   .dot_bf16 = dot_bf16,
                                   .weigh = weigh};

}  // namespace invar::cpu
