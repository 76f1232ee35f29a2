// AVX2: one lane per output, half a panel at a time; hopper_avx512.cc with eight lanes, the
// expanded weights in memory and the last rounding by hand.
#include <immintrin.h>

#include "kernels/cpu/hopper_panel.h"

namespace invar::hopper {

namespace {

constexpr int kLanes = 8;

using Ints = __m256i;
using Floats = __m256;

inline Ints all(uint32_t x) {
  return _mm256_set1_epi32(static_cast<int>(x));
}

inline Ints at_least(Ints a, Ints b) {  // unsigned a >= b, as a mask of lanes
  return _mm256_cmpeq_epi32(_mm256_max_epu32(a, b), a);
}

inline Ints largest_of_pair(Ints sums) {
  return _mm256_max_epu32(_mm256_slli_epi32(sums, 16), _mm256_and_si256(sums, all(0xffff0000)));
}

struct Weights {
  Floats value[kStep];
  Ints exponents[kStep / 2];
  Ints floor;
};

inline void expand_weights(const uint16_t* panel, Weights& w) {
  Ints largest = _mm256_setzero_si256();
  for (int j = 0; j < kStep / 2; ++j) {
    const Ints pair = _mm256_loadu_si256(reinterpret_cast<const Ints*>(panel + j * 32));
    w.value[2 * j] = _mm256_castsi256_ps(_mm256_slli_epi32(pair, 16));
    w.value[2 * j + 1] = _mm256_castsi256_ps(_mm256_and_si256(pair, all(0xffff0000)));
    w.exponents[j] = _mm256_and_si256(pair, all(0x7f807f80));
    largest = _mm256_max_epu16(largest, w.exponents[j]);
  }
  const Ints field = largest_of_pair(largest);
  w.floor = _mm256_add_epi32(_mm256_max_epu32(field, all(kLowestField << 23)), all(kMargin << 23));
  w.floor = _mm256_or_si256(w.floor, at_least(field, all((kLargestField + 1) << 23)));
}

// int32 to f32, rounded toward zero. Clearing the bits of |x| that stand where |x| >> 24 has ones
// clears the highest bit that does not fit and touches none that does, so that rounding to nearest
// goes down.
inline Floats to_float_toward_zero(Ints x) {
  const Ints magnitude = _mm256_abs_epi32(x);
  const Ints kept = _mm256_andnot_si256(_mm256_srli_epi32(magnitude, 24), magnitude);
  return _mm256_cvtepi32_ps(_mm256_sign_epi32(kept, x));
}

inline Floats step(const Weights& w, const StepInput& x, Floats acc, Ints& good) {
  Ints sums = _mm256_setzero_si256();
#pragma GCC unroll 8
  for (int j = 0; j < kStep / 2; ++j)
    sums = _mm256_max_epu16(sums, _mm256_add_epi16(w.exponents[j], all(x.exponents[j])));
  const Ints acc_field = _mm256_and_si256(_mm256_castps_si256(acc), all(0x7f800000));
  const Ints largest =
      _mm256_max_epu32(largest_of_pair(sums), _mm256_add_epi32(acc_field, all(127u << 23)));
  good = at_least(largest, _mm256_max_epu32(w.floor, all(x.floor)));
  good = _mm256_and_si256(good, at_least(all((kSumEnd << 23) - 1), largest));

  const Floats up = _mm256_castsi256_ps(_mm256_sub_epi32(all((254u + 25 + 127) << 23), largest));
  const Floats down = _mm256_castsi256_ps(_mm256_sub_epi32(largest, all((254u + 25 - 127) << 23)));
  Ints sum = _mm256_setzero_si256();
#pragma GCC unroll 16
  for (int j = 0; j < kStep; ++j) {
    const Floats product = _mm256_mul_ps(w.value[j], _mm256_set1_ps(x.value[j]));
    sum = _mm256_add_epi32(sum, _mm256_cvttps_epi32(_mm256_mul_ps(product, up)));
  }
  constexpr uint32_t kRoom = (1u << 31) - (1u << 26);
  good = _mm256_and_si256(good, at_least(all(kRoom), _mm256_abs_epi32(sum)));
  sum = _mm256_add_epi32(sum, _mm256_cvttps_epi32(_mm256_mul_ps(acc, up)));
  return _mm256_mul_ps(to_float_toward_zero(sum), down);
}

}  // namespace

void panel_avx2(const StepInput* x, int rows, const uint16_t* panel, int steps, uint32_t outputs,
                float (*acc)[kStep]) {
  for (int s = 0; s < steps; ++s, x += kBlockRows, panel += kStep * kStep) {
    uint32_t slow[kBlockRows] = {}, any_slow = 0;
    for (int half = 0; half < kStep; half += kLanes) {
      Weights w;
      expand_weights(panel + 2 * half, w);
      for (int r = 0; r < rows; ++r) {
        float* lanes = acc[r] + half;
        Ints good;
        const Floats after = step(w, x[r], _mm256_load_ps(lanes), good);
        _mm256_maskstore_ps(lanes, good, after);
        const uint32_t good_lanes = _mm256_movemask_ps(_mm256_castsi256_ps(good));
        slow[r] |= (outputs >> half & 0xff & ~good_lanes) << half;
        any_slow |= slow[r];
      }
    }
    if (any_slow)
      for (int r = 0; r < rows; ++r)
        if (slow[r]) exact_step(x[r], panel, slow[r], acc[r]);
  }
}

}  // namespace invar::hopper
