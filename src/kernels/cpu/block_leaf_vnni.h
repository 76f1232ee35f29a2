// A leaf of blocks as fours of columns of 16 outputs, without a sign, as VPDPBUSD and tiles take
// them. Included after vec16_avx512.h and block_product_inl.h.
#pragma once

#include <immintrin.h>

namespace invar::cpu {

namespace {

// The number by which weights are stored too high.
template <typename Parts>
constexpr int unsigned_zero() {
  return Parts::kBits == 8 ? 128 : Parts::kZero;
}

// The even and the odd ones of columns 8i .. 8i + 7.
template <typename Parts>
inline void unsigned_fours(const Parts& parts, int i, __m512i& even, __m512i& odd) {
  __m512i a = parts.integers(i, 0).v, b = parts.integers(i, 1).v;
  if constexpr (Parts::kBits == 8) {
    const __m512i sign = _mm512_set1_epi8(-128);
    a = _mm512_xor_si512(a, sign);
    b = _mm512_xor_si512(b, sign);
  }
  const __m512i evens =
      _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
  const __m512i odds = _mm512_setr_epi32(1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31);
  even = _mm512_permutex2var_epi32(a, evens, b);
  odd = _mm512_permutex2var_epi32(a, odds, b);
}

template <typename Parts>
class WholeLeaf {
 public:
  explicit WholeLeaf(const Parts& parts) {
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) unsigned_fours(parts, i, w_[2 * i], w_[2 * i + 1]);
#pragma GCC unroll 2
    for (int j = 0; j < kParts; ++j) {
      factor_[j] = parts.factor(j).v;
      plus_[j] = parts.plus(j).v;
    }
  }

  void add_rows(float* chains, const RowLeaf* x, int64_t rows) const {
    for (; rows >= 4; rows -= 4, chains += 64, x += 4) add_to<4>(chains, x);
    for (; rows > 0; --rows, chains += 16, ++x) add_to<1>(chains, x);
  }
  // The chain of a row, part j of whose sums is there.
  __m512 end_part(__m512 chain, __m512i sum, const RowLeaf& x, int j) const {
    const __m512 scale = _mm512_mul_ps(_mm512_set1_ps(x.scale), factor_[j]);
    chain = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum), scale, chain);
    return Parts::kAdds ? _mm512_fmadd_ps(_mm512_set1_ps(x.plus[j]), plus_[j], chain) : chain;
  }
  const __m512i* fours() const {
    return w_;
  }

 private:
  static constexpr int kParts = Parts::kParts, kFours = 8 / kParts;

  template <int R>
  void add_to(float* chains, const RowLeaf* x) const {
    __m512 chain[R];
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) chain[r] = _mm512_load_ps(chains + r * 16);
#pragma GCC unroll 2
    for (int j = 0; j < kParts; ++j) {
      __m512i sum[R];
#pragma GCC unroll 4
      for (int r = 0; r < R; ++r) sum[r] = _mm512_set1_epi32(-x[r].more[j]);
#pragma GCC unroll 8
      for (int f = j * kFours; f < (j + 1) * kFours; ++f)
#pragma GCC unroll 4
        for (int r = 0; r < R; ++r) sum[r] = _mm512_dpbusd_epi32(sum[r], w_[f], four_of(x[r], f));
#pragma GCC unroll 4
      for (int r = 0; r < R; ++r) chain[r] = end_part(chain[r], sum[r], x[r], j);
    }
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) _mm512_store_ps(chains + r * 16, chain[r]);
  }

  static __m512i four_of(const RowLeaf& x, int f) {
    int32_t four;
    __builtin_memcpy(&four, x.x + 4 * f, sizeof four);
    return _mm512_set1_epi32(four);
  }

  __m512i w_[8];
  __m512 factor_[kParts], plus_[kParts];
};

}  // namespace

}  // namespace invar::cpu
