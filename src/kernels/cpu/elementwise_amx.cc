// The elementwise operations of AVX-512 with the rounding to bf16 that a processor with AMX has.
#include <immintrin.h>

#include <cstdint>

#include "kernels/cpu/row_functions.h"

namespace invar::cpu {

namespace {

#include "kernels/cpu/amx_tiles_inl.h"

#include "kernels/cpu/vec16_avx512.h"

inline Bits16 to_bf16(Vec16 x) {
  return {_mm512_cvtepu16_epi32(round_to_bf16(x.v))};
}

#include "kernels/cpu/vec16_math.h"

#include "kernels/cpu/elementwise_inl.h"

}  // namespace

const RowFunctions kAmxRows = {rms_norm, query, key_value, logits};

}  // namespace invar::cpu
