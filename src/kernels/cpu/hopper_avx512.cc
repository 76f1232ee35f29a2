// AVX-512: one lane per output. Truncation to a multiple of 2^(E-25) is a conversion to int32 after
// scaling by 2^(25-E).
#include <immintrin.h>

#include "kernels/cpu/hopper_panel.h"

namespace invar::hopper {

namespace {

using Ints = __m512i;
using Floats = __m512;

inline Ints all(uint32_t x) {
  return _mm512_set1_epi32(static_cast<int>(x));
}

// The larger of each lane's two 16-bit sums of exponent fields, as a sum of fields at bit 23.
inline Ints largest_of_pair(Ints sums) {
  return _mm512_max_epu32(_mm512_slli_epi32(sums, 16), _mm512_and_si512(sums, all(0xffff0000)));
}

// One step's weights, expanded: w[j] holds element j of 16 outputs.
struct Weights {
  Floats value[kStep];
  Ints exponents[kStep / 2];
  Ints floor;
};

inline __attribute__((always_inline)) Weights expand_weights(const uint16_t* panel) {
  Weights w;
  Ints largest = _mm512_setzero_si512();
#pragma GCC unroll 8
  for (int j = 0; j < kStep / 2; ++j) {
    const Ints pair = _mm512_loadu_si512(panel + j * 32);
    w.value[2 * j] = _mm512_castsi512_ps(_mm512_slli_epi32(pair, 16));
    w.value[2 * j + 1] = _mm512_castsi512_ps(_mm512_and_si512(pair, all(0xffff0000)));
    w.exponents[j] = _mm512_and_si512(pair, all(0x7f807f80));
    largest = _mm512_max_epu16(largest, w.exponents[j]);
  }
  const Ints field = largest_of_pair(largest);
  w.floor = _mm512_add_epi32(_mm512_max_epu32(field, all(kLowestField << 23)), all(kMargin << 23));
  w.floor = _mm512_mask_mov_epi32(w.floor, _mm512_cmpgt_epu32_mask(field, all(kLargestField << 23)),
                                  all(~0u));
  return w;
}

// acc after one step, and the lanes for which that is right.
inline __attribute__((always_inline)) Floats step(const Weights& w, const StepInput& x, Floats acc,
                                                  __mmask16& good) {
  Ints sums = _mm512_setzero_si512();
#pragma GCC unroll 8
  for (int j = 0; j < kStep / 2; ++j)
    sums = _mm512_max_epu16(sums, _mm512_add_epi16(w.exponents[j], all(x.exponents[j])));
  const Ints acc_field = _mm512_and_si512(_mm512_castps_si512(acc), all(0x7f800000));
  const Ints largest =
      _mm512_max_epu32(largest_of_pair(sums), _mm512_add_epi32(acc_field, all(127u << 23)));
  good = _mm512_cmpge_epu32_mask(largest, _mm512_max_epu32(w.floor, all(x.floor)));
  good = _mm512_mask_cmplt_epu32_mask(good, largest, all(kSumEnd << 23));

  // E = largest - 254; the scales are 2^(25-E) and its inverse.
  const Floats up = _mm512_castsi512_ps(_mm512_sub_epi32(all((254u + 25 + 127) << 23), largest));
  const Floats down = _mm512_castsi512_ps(_mm512_sub_epi32(largest, all((254u + 25 - 127) << 23)));
  Ints sum = _mm512_setzero_si512();
#pragma GCC unroll 16
  for (int j = 0; j < kStep; ++j) {
    const Floats product = _mm512_mul_ps(w.value[j], _mm512_set1_ps(x.value[j]));
    sum = _mm512_add_epi32(sum, _mm512_cvttps_epi32(_mm512_mul_ps(product, up)));
  }
  // |sum| < 2^31 and |acc| < 2^26 units: where the total might not fit, the lane is not good.
  constexpr uint32_t kRoom = (1u << 31) - (1u << 26);
  good = _mm512_mask_cmplt_epu32_mask(good, _mm512_add_epi32(sum, all(kRoom)), all(2 * kRoom));
  sum = _mm512_add_epi32(sum, _mm512_cvttps_epi32(_mm512_mul_ps(acc, up)));
  return _mm512_mul_ps(_mm512_cvt_roundepi32_ps(sum, _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC), down);
}

}  // namespace

void panel_avx512(const StepInput* x, int rows, const uint16_t* panel, int steps, uint32_t outputs,
                  float (*acc)[kStep]) {
  for (int s = 0; s < steps; ++s, x += kBlockRows, panel += kStep * kStep) {
    const Weights w = expand_weights(panel);
    uint32_t slow[kBlockRows], any_slow = 0;
    for (int r = 0; r < rows; ++r) {
      const Floats before = _mm512_load_ps(acc[r]);
      __mmask16 good;
      const Floats after = step(w, x[r], before, good);
      _mm512_mask_store_ps(acc[r], good, after);
      slow[r] = outputs & ~static_cast<uint32_t>(good);
      any_slow |= slow[r];
    }
    if (any_slow)
      for (int r = 0; r < rows; ++r)
        if (slow[r]) exact_step(x[r], panel, slow[r], acc[r]);
  }
}

}  // namespace invar::hopper
