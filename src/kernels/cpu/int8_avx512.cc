// Products of integers with AVX-512 VNNI: one VPDPBUSD adds four products to each of 16 outputs.
// 8 rows by 2 panels, or up to 4 by 4, have sums enough in flight, at a load or broadcast for every
// second VPDPBUSD; and two panels of an ordinary width stay in L1 while all rows pass.
// The loops over sums are unrolled by name: else g++ 12 keeps the sums in memory, at 0.7 times the
// speed.
#include <immintrin.h>

#include "kernels/cpu/panel_product.h"
// in this order
#include "kernels/cpu/vec16_avx512.h"
// after it
#include "kernels/cpu/vec16_math.h"
// after it
#include "kernels/cpu/product_end_inl.h"
// after it
#include "kernels/cpu/int8_inl.h"

namespace invar::cpu {

namespace {

template <int R, int P, bool kFetches>
void multiply_tile(const Int8Tile& t) {
  __m512i sum[R][P];
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
    for (int p = 0; p < P; ++p)
      sum[r][p] = _mm512_set1_epi32(-128 * t.scales[r * t.scales_stride].sum);
  const int8_t* x = t.x;
  const char* w = t.w;
  for (int64_t j = 0; j < t.fours; ++j, x += 4, w += kLine) {
    __m512i weights[P];
#pragma GCC unroll 4
    for (int p = 0; p < P; ++p) {
      weights[p] = _mm512_load_si512(w + p * t.panel_bytes);
      if (kFetches) _mm_prefetch(w + (p + P) * t.panel_bytes, _MM_HINT_T1);
    }
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      const __m512i four = _mm512_set1_epi32(four_of(x + r * t.x_stride));
#pragma GCC unroll 4
      for (int p = 0; p < P; ++p) sum[r][p] = _mm512_dpbusd_epi32(sum[r][p], weights[p], four);
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
    for (int p = 0; p < P; ++p) _mm512_store_si512(t.sums + (r * P + p) * 16, sum[r][p]);
}

using Multiply = void (*)(const Int8Tile&);
template <int P, bool kFetches>
constexpr Multiply kFewRows[4] = {multiply_tile<1, P, kFetches>, multiply_tile<2, P, kFetches>,
                                  multiply_tile<3, P, kFetches>, multiply_tile<4, P, kFetches>};
template <int P, bool kFetches>
constexpr Multiply kManyRows[4] = {multiply_tile<5, P, kFetches>, multiply_tile<6, P, kFetches>,
                                   multiply_tile<7, P, kFetches>, multiply_tile<8, P, kFetches>};
template <bool kFetches>
constexpr const Multiply* kByPanels[4] = {kFewRows<1, kFetches>, kFewRows<2, kFetches>,
                                          kFewRows<3, kFetches>, kFewRows<4, kFetches>};
template <bool kFetches>
Multiply multiply_of(int64_t rows, int64_t panels) {
  if (rows <= 4) return kByPanels<kFetches>[panels - 1][rows - 1];
  return (panels == 1 ? kManyRows<1, kFetches> : kManyRows<2, kFetches>)[rows - 5];
}

struct Avx512Vnni {
  static constexpr int64_t kRows = 8, kPanels = 4;
  static int64_t panels_of(int64_t rows) { return rows <= 4 ? 4 : 2; }
  static void multiply(const Int8Tile& t, int64_t rows, int64_t panels) {
    (t.fetches ? multiply_of<true> : multiply_of<false>)(rows, panels)(t);
  }
  static Vec16 to_float(const int32_t* sums) {
    return {_mm512_cvtepi32_ps(_mm512_load_si512(sums))};
  }
};

}  // namespace

void int8_product_avx512(const PanelProduct& p) {
  Int8Product<Avx512Vnni>(p).run();
}

}  // namespace invar::cpu
