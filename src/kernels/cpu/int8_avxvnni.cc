// Products of integers with AVX-VNNI: VPDPBUSD on 8 outputs, for processors without AVX-512.
#include <immintrin.h>

#include "kernels/cpu/panel_product.h"
// in this order
#include "kernels/cpu/vec16_avx2.h"
// after it
#include "kernels/cpu/vec16_math.h"
// after it
#include "kernels/cpu/product_end_inl.h"
// after it
#include "kernels/cpu/int8_inl.h"

// A test compiles this file with the instruction of AVX-512, for machines without this one.
#ifndef INVAR_DPBUSD
#define INVAR_DPBUSD _mm256_dpbusd_avx_epi32
#endif

namespace invar::cpu {

namespace {

template <int R>
void multiply_tile(const Int8Tile& t, int64_t at, int64_t row_sums) {
  __m256i sum[R][2];
#pragma GCC unroll 4
  for (int r = 0; r < R; ++r)
    sum[r][0] = sum[r][1] = _mm256_set1_epi32(-128 * t.scales[r * t.scales_stride].sum);
  const int8_t* x = t.x;
  const char* w = t.w;
  for (int64_t j = 0; j < t.fours; ++j, x += 4, w += kLine) {
    const auto* halves = reinterpret_cast<const __m256i*>(w);
    const __m256i low = _mm256_load_si256(halves), high = _mm256_load_si256(halves + 1);
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) {
      const __m256i four = _mm256_set1_epi32(four_of(x + r * t.x_stride));
      sum[r][0] = INVAR_DPBUSD(sum[r][0], low, four);
      sum[r][1] = INVAR_DPBUSD(sum[r][1], high, four);
    }
  }
#pragma GCC unroll 4
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
    for (int h = 0; h < 2; ++h)
      _mm256_store_si256(reinterpret_cast<__m256i*>(t.sums + r * row_sums + at) + h, sum[r][h]);
}

using Multiply = void (*)(const Int8Tile&, int64_t, int64_t);
constexpr Multiply kByRows[4] = {multiply_tile<1>, multiply_tile<2>, multiply_tile<3>,
                                 multiply_tile<4>};

struct AvxVnni {
  static constexpr int64_t kRows = 4, kPanels = 2;
  static int64_t panels_of(int64_t) { return kPanels; }
  static void multiply(Int8Tile t, int64_t rows, int64_t panels) {
    for (int64_t q = 0; q < panels; ++q, t.w += t.panel_bytes)
      kByRows[rows - 1](t, q * 16, panels * 16);
  }
  static Vec16 to_float(const int32_t* sums) {
    const auto* halves = reinterpret_cast<const __m256i*>(sums);
    return {_mm256_cvtepi32_ps(_mm256_load_si256(halves)),
            _mm256_cvtepi32_ps(_mm256_load_si256(halves + 1))};
  }
};

}  // namespace

void int8_product_avxvnni(const PanelProduct& p) {
  Int8Product<AvxVnni>(p).run();
}

}  // namespace invar::cpu
