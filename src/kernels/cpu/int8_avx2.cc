// Products of integers on AVX2. VPMADDUBSW would saturate, so both factors are widened to 16 bits:
// the even and the odd of four neighbours, of which VPMADDWD adds two products each, exactly.
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

namespace invar::cpu {

namespace {

// A row's four as its even and its odd ones in 16 bits.
inline __m256i even_of(__m256i fours) {
  return _mm256_srai_epi16(_mm256_slli_epi16(fours, 8), 8);
}
inline __m256i odd_of(__m256i fours) {
  return _mm256_srai_epi16(fours, 8);
}

template <int R>
void multiply_tile(const Int8Tile& t, int64_t at, int64_t row_sums) {
  __m256i sum[R][2];
  for (int r = 0; r < R; ++r)
    sum[r][0] = sum[r][1] = _mm256_set1_epi32(-128 * t.scales[r * t.scales_stride].sum);
  const int8_t* x = t.x;
  const char* w = t.w;
  const __m256i low = _mm256_set1_epi16(0xff);
  for (int64_t j = 0; j < t.fours; ++j, x += 4, w += kLine) {
    __m256i four[R][2];
    for (int r = 0; r < R; ++r) {
      const __m256i both = _mm256_set1_epi32(four_of(x + r * t.x_stride));
      four[r][0] = even_of(both);
      four[r][1] = odd_of(both);
    }
    for (int h = 0; h < 2; ++h) {
      const __m256i weights = _mm256_load_si256(reinterpret_cast<const __m256i*>(w) + h);
      const __m256i even = _mm256_and_si256(weights, low), odd = _mm256_srli_epi16(weights, 8);
      for (int r = 0; r < R; ++r) {
        const __m256i products = _mm256_add_epi32(_mm256_madd_epi16(even, four[r][0]),
                                                  _mm256_madd_epi16(odd, four[r][1]));
        sum[r][h] = _mm256_add_epi32(sum[r][h], products);
      }
    }
  }
  for (int r = 0; r < R; ++r)
    for (int h = 0; h < 2; ++h)
      _mm256_store_si256(reinterpret_cast<__m256i*>(t.sums + r * row_sums + at) + h, sum[r][h]);
}

struct Avx2 {
  static constexpr int64_t kRows = 3, kPanels = 4;
  static int64_t panels_of(int64_t) { return kPanels; }
  static void multiply(Int8Tile t, int64_t rows, int64_t panels) {
    for (int64_t q = 0; q < panels; ++q, t.w += t.panel_bytes)
      (rows == 1   ? multiply_tile<1>
       : rows == 2 ? multiply_tile<2>
                   : multiply_tile<3>)(t, q * 16, panels * 16);
  }
  static Vec16 to_float(const int32_t* sums) {
    const auto* halves = reinterpret_cast<const __m256i*>(sums);
    return {_mm256_cvtepi32_ps(_mm256_load_si256(halves)),
            _mm256_cvtepi32_ps(_mm256_load_si256(halves + 1))};
  }
};

inline __m256i load_256(const uint16_t* x) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(x));
}

// Sixteen of a row as f32 multiples, rounded to integers of 32 bits.
inline void round_16(const uint16_t* x, __m256 inverse, __m256i (&out)[2]) {
  const auto* halves = reinterpret_cast<const __m128i*>(x);
  for (int h = 0; h < 2; ++h) {
    const __m256i bits = _mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128(halves + h)), 16);
    out[h] = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_castsi256_ps(bits), inverse));
  }
}

inline int32_t sum_of(__m256i x) {
  alignas(32) int32_t each[8];
  _mm256_store_si256(reinterpret_cast<__m256i*>(each), x);
  int32_t sum = 0;
  for (const int32_t i : each) sum += i;
  return sum;
}

inline uint16_t largest_magnitude(const uint16_t* x, int64_t columns) {
  const __m256i magnitude = _mm256_set1_epi16(0x7fff);
  __m256i largest = _mm256_setzero_si256();
  for (int64_t i = 0; i < columns; i += 16)
    largest = _mm256_max_epu16(largest, _mm256_and_si256(load_256(x + i), magnitude));
  alignas(32) uint16_t each[16];
  _mm256_store_si256(reinterpret_cast<__m256i*>(each), largest);
  uint16_t most = 0;
  for (const uint16_t i : each) most = i > most ? i : most;
  return most;
}

}  // namespace

RunScale quantise_avx2(const uint16_t* x, int64_t k, int8_t* q) {
  const int64_t columns = ceil_div(k, kLeaf) * kLeaf;
  const uint16_t largest = largest_magnitude(x, columns);
  if (largest >= 0x7f80) {
    __builtin_memset(q, 0, static_cast<size_t>(columns));
    return {__builtin_nanf(""), 0};
  }
  float scale = __builtin_bit_cast(float, uint32_t{largest} << 16) / 127.0f;
  if (scale == 0.0f) scale = 1.0f;
  const __m256 inverse = _mm256_set1_ps(1.0f / scale);
  __m256i sum = _mm256_setzero_si256();
  for (int64_t i = 0; i < columns; i += 32) {
    __m256i low[2], high[2];
    round_16(x + i, inverse, low);
    round_16(x + i + 16, inverse, high);
    sum = _mm256_add_epi32(sum, _mm256_add_epi32(_mm256_add_epi32(low[0], low[1]),
                                                 _mm256_add_epi32(high[0], high[1])));
    const __m256i packed = _mm256_packs_epi16(_mm256_packs_epi32(low[0], low[1]),
                                              _mm256_packs_epi32(high[0], high[1]));
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(q + i),
                        _mm256_permutevar8x32_epi32(packed, order));
  }
  return {scale, sum_of(sum)};
}

void int8_product_avx2(const PanelProduct& p) {
  Int8Product<Avx2>(p).run();
}

}  // namespace invar::cpu
