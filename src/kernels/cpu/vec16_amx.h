// Sixteen f32 lanes on AVX-512 with the rounding to bf16 that a processor with AMX has.
#pragma once

#include "kernels/cpu/amx_tiles_inl.h"
#include "kernels/cpu/vec16_avx512.h"

namespace invar::cpu {

namespace {

inline Bits16 to_bf16(Vec16 x) {
  return {_mm512_cvtepu16_epi32(round_to_bf16(x.v))};
}
inline void store_bf16(uint16_t* p, Vec16 x) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), round_to_bf16(x.v));
}
inline void store_bf16(uint16_t* p, Vec16 x, int64_t count) {
  _mm256_mask_storeu_epi16(p, first_lanes(count), round_to_bf16(x.v));
}

}  // namespace

}  // namespace invar::cpu
