// The backward on AVX-512 with the rounding to bf16 that a processor with AMX has.
#include <immintrin.h>

#include <cstdint>

#include "kernels/cpu/backward_rows.h"

namespace invar::cpu {

namespace {

#include "kernels/cpu/amx_tiles_inl.h"

#include "kernels/cpu/vec16_avx512.h"

inline Bits16 to_bf16(Vec16 x) {
  return {_mm512_cvtepu16_epi32(round_to_bf16(x.v))};
}

#include "kernels/cpu/vec16_math.h"

#include "kernels/cpu/backward_inl.h"

}  // namespace

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
