// Products of blocks as integers on AVX2. Eight outputs by four columns are a vector of weights.
// VPMADDUBSW adds two products to 16 bits, exactly where one factor has no sign and 7 bits of the
// other, as here, are all; of small weights several such sums still fit. Weights of 8 bits go as
// their magnitude, their sign on the other factor.
#include <immintrin.h>

#include "kernels/cpu/panel_product.h"
// in this order
#include "kernels/cpu/vec16_avx2.h"
// after it
#include "kernels/cpu/vec16_math.h"
// after it
#include "kernels/cpu/product_end_inl.h"
// after it
#include "kernels/cpu/block_product_inl.h"

namespace invar::cpu {

namespace {

// Sums of 16 bits that can be added before they may overflow: each is at most 2 * 127 * weight.
template <typename Parts>
constexpr int kAdded = Parts::kBits == 8   ? 1
                       : Parts::kBits == 6 ? 2
                       : Parts::kBits == 5 ? 4
                                           : 8 / Parts::kParts;
static_assert(2 * 127 * (63 * 2) < 1 << 15 && 2 * 127 * (31 * 4) < 1 << 15 &&
              2 * 127 * (15 * 8) < 1 << 15 && 2 * 127 * 128 < 1 << 15);

// Outputs as the shuffles leave them: 0, 1, 4, 5, 2, 3, 6, 7. Twice it is the identity.
inline __m256 in_other_order(__m256 x) {
  return _mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(x), 0xd8));
}

// Splits eight outputs into their fours of even columns and of odd ones.
inline void split(Bits16 eight, __m256i& even, __m256i& odd) {
  const __m256 a = _mm256_castsi256_ps(eight.lo), b = _mm256_castsi256_ps(eight.hi);
  even = _mm256_castps_si256(_mm256_shuffle_ps(a, b, 0x88));
  odd = _mm256_castps_si256(_mm256_shuffle_ps(a, b, 0xdd));
}
inline __m256 half_of(Vec16 x, int half) {
  return in_other_order(half ? x.hi : x.lo);
}
inline __m256i four_times_eight(const int8_t* x) {
  int32_t four;
  __builtin_memcpy(&four, x, sizeof four);
  return _mm256_set1_epi32(four);
}
// The products of a four of weights and one of a row, of two columns each.
template <typename Parts>
inline __m256i products_of(__m256i w, __m256i x) {
  if constexpr (Parts::kBits == 8)
    return _mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(x, w));
  return _mm256_maddubs_epi16(w, x);
}

inline __m256i eight_four_times(const int8_t* x) {
  int64_t eight;
  __builtin_memcpy(&eight, x, sizeof eight);
  return _mm256_set1_epi64x(eight);
}

// Eight outputs of a leaf for one row or two: eights of columns, of four outputs and of the other
// four. They have names, and no loop goes over them: else g++ 12 keeps them in memory.
template <typename Parts>
struct HalfLeaf {
  static constexpr int kParts = Parts::kParts, kEights = 4 / kParts, kFew = kAdded<Parts>;

  [[gnu::always_inline]] HalfLeaf(const Parts& parts, int half)
      : w0(parts.integers(0, half)),
        w1(parts.integers(1, half)),
        w2(parts.integers(2, half)),
        w3(parts.integers(3, half)) {
    factor0 = half_of(parts.factor(0), half);
    if (Parts::kAdds) plus0 = half_of(parts.plus(0), half);
    if constexpr (kParts == 2) {
      factor1 = half_of(parts.factor(1), half);
      if (Parts::kAdds) plus1 = half_of(parts.plus(1), half);
    }
  }

  [[gnu::always_inline]] void add_to(float* chain, const RowLeaf& x) const {
    _mm256_store_ps(chain, add_to(_mm256_load_ps(chain), x));
  }
  [[gnu::always_inline]] __m256 add_to(__m256 chain, const RowLeaf& x) const {
    chain = add_part<0>(chain, x, factor0, plus0);
    if constexpr (kParts == 2) chain = add_part<1>(chain, x, factor1, plus1);
    return chain;
  }

 private:
  template <int i>
  [[gnu::always_inline]] __m256i weights(bool upper) const {
    const Bits16& w = i == 0 ? w0 : i == 1 ? w1 : i == 2 ? w2 : w3;
    return upper ? w.hi : w.lo;
  }
  // The products of eights i .. i + count - 1, of two columns each, added.
  template <int i, int count>
  [[gnu::always_inline]] __m256i products(const RowLeaf& x, bool upper) const {
    if constexpr (count > 1)
      return _mm256_add_epi16(products<i, count / 2>(x, upper),
                              products<i + count / 2, count / 2>(x, upper));
    return products_of<Parts>(weights<i>(upper), eight_four_times(x.x + 8 * i));
  }
  // The same to 32 bits, of four columns each.
  template <int i, int count>
  [[gnu::always_inline]] __m256i sums(const RowLeaf& x, bool upper) const {
    if constexpr (count > kFew)
      return _mm256_add_epi32(sums<i, count / 2>(x, upper),
                              sums<i + count / 2, count / 2>(x, upper));
    return _mm256_madd_epi16(products<i, count>(x, upper), _mm256_set1_epi16(1));
  }
  template <int part>
  [[gnu::always_inline]] __m256 add_part(__m256 acc, const RowLeaf& x, __m256 factor,
                                         __m256 plus) const {
    __m256i all = _mm256_hadd_epi32(sums<part * kEights, kEights>(x, false),
                                    sums<part * kEights, kEights>(x, true));
    if (Parts::kZero) all = _mm256_sub_epi32(all, _mm256_set1_epi32(x.more[part]));
    const __m256 scale = _mm256_mul_ps(_mm256_broadcast_ss(&x.scale), factor);
    acc = _mm256_fmadd_ps(_mm256_cvtepi32_ps(all), scale, acc);
    return Parts::kAdds ? _mm256_fmadd_ps(_mm256_broadcast_ss(&x.plus[part]), plus, acc) : acc;
  }

  Bits16 w0, w1, w2, w3;
  __m256 factor0, factor1, plus0, plus1;
};

// Rows that have their sums of a leaf in registers.
template <typename Parts>
constexpr int kTileRows = kAdded<Parts> == 8 / Parts::kParts || Parts::kBits == 8 ? 4 : 3;

// A leaf for several rows, unpacked once.
template <typename Parts>
struct WholeLeaf {
  static constexpr int kParts = Parts::kParts, kFours = 8 / kParts, kFew = kAdded<Parts>;

  explicit WholeLeaf(const Parts& parts) {
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i)
#pragma GCC unroll 2
      for (int h = 0; h < 2; ++h) split(parts.integers(i, h), w[2 * i][h], w[2 * i + 1][h]);
#pragma GCC unroll 2
    for (int j = 0; j < kParts; ++j)
#pragma GCC unroll 2
      for (int h = 0; h < 2; ++h) {
        factor[j][h] = half_of(parts.factor(j), h);
        plus[j][h] = half_of(parts.plus(j), h);
      }
  }

  void add_rows(float* chains, const RowLeaf* x, int64_t rows) const {
    constexpr int kRows = kTileRows<Parts>;
    for (; rows >= kRows; rows -= kRows, chains += kRows * 16, x += kRows) add_to<kRows>(chains, x);
    switch (rows) {
      case 3:
        return add_to<3>(chains, x);
      case 2:
        return add_to<2>(chains, x);
      case 1:
        return add_to<1>(chains, x);
    }
  }

 private:
  // R rows, at most 4.
  template <int R>
  [[gnu::noinline]] void add_to(float* chains, const RowLeaf* x) const {
    add_part<R>(chains, x, 0);
    if (kParts == 2) add_part<R>(chains, x, kParts - 1);
  }

  // The sums of the 16 outputs of a row. Those of several rows have names: else g++ 12 keeps them
  // in memory.
  struct Sums {
    __m256i low = _mm256_setzero_si256(), high = _mm256_setzero_si256();
    void add(__m256i first, __m256i second, const int8_t* x) {
      const __m256i each = four_times_eight(x);
      low = _mm256_add_epi16(low, products_of<Parts>(first, each));
      high = _mm256_add_epi16(high, products_of<Parts>(second, each));
    }
    void add(const Sums& few) {
      const __m256i ones = _mm256_set1_epi16(1);
      low = _mm256_add_epi32(low, _mm256_madd_epi16(few.low, ones));
      high = _mm256_add_epi32(high, _mm256_madd_epi16(few.high, ones));
    }
  };

  template <int R>
  void add_part(float* chains, const RowLeaf* x, int part) const {
    Sums all0, all1, all2, all3;
    const __m256i(*weights)[2] = w + part * kFours;
    const int8_t* fours = x->x + part * kFours * 4;
    constexpr int64_t kRow = sizeof(RowLeaf);
#pragma GCC unroll 8
    for (int few = 0; few < kFours; few += kFew) {
      Sums few0, few1, few2, few3;
#pragma GCC unroll 8
      for (int g = 0; g < kFew; ++g, ++weights, fours += 4) {
        const __m256i first = (*weights)[0], second = (*weights)[1];
        few0.add(first, second, fours);
        if (R > 1) few1.add(first, second, fours + kRow);
        if (R > 2) few2.add(first, second, fours + 2 * kRow);
        if (R > 3) few3.add(first, second, fours + 3 * kRow);
      }
      all0.add(few0);
      if (R > 1) all1.add(few1);
      if (R > 2) all2.add(few2);
      if (R > 3) all3.add(few3);
    }
    end_part(all0, chains, x[0], part);
    if (R > 1) end_part(all1, chains + 16, x[1], part);
    if (R > 2) end_part(all2, chains + 32, x[2], part);
    if (R > 3) end_part(all3, chains + 48, x[3], part);
  }

  void end_part(const Sums& all, float* chain, const RowLeaf& x, int part) const {
    end_half(all.low, chain, x, part, 0);
    end_half(all.high, chain + 8, x, part, 1);
  }
  void end_half(__m256i sum, float* chain, const RowLeaf& x, int part, int half) const {
    if (Parts::kZero) sum = _mm256_sub_epi32(sum, _mm256_set1_epi32(x.more[part]));
    const __m256 scale = _mm256_mul_ps(_mm256_broadcast_ss(&x.scale), factor[part][half]);
    __m256 acc = _mm256_fmadd_ps(_mm256_cvtepi32_ps(sum), scale, _mm256_load_ps(chain));
    if (Parts::kAdds)
      acc = _mm256_fmadd_ps(_mm256_broadcast_ss(&x.plus[part]), plus[part][half], acc);
    _mm256_store_ps(chain, acc);
  }

  __m256i w[8][2];
  __m256 factor[kParts][2], plus[kParts][2];
};

struct Avx2 {
  template <typename Parts>
  static constexpr int zero_of() {
    return Parts::kZero;
  }
  template <typename Parts>
  static void add(const LeavesOfPanel& t) {
    if (t.rows == 1) return add_row<Parts>(t);
    if (t.rows == 2) return add_two_rows<Parts>(t);
    for_each_leaf<Parts>(t, [&](int64_t i, const Parts& parts) {
      WholeLeaf<Parts>(parts).add_rows(t.chains, t.x + i * t.rows, t.rows);
    });
  }
  template <typename Parts>
  static void add_row(const LeavesOfPanel& t) {
    __m256 low = _mm256_load_ps(t.chains), high = _mm256_load_ps(t.chains + 8);
    for_each_leaf<Parts>(t, [&](int64_t i, const Parts& parts) {
      low = HalfLeaf<Parts>(parts, 0).add_to(low, t.x[i]);
      high = HalfLeaf<Parts>(parts, 1).add_to(high, t.x[i]);
    });
    _mm256_store_ps(t.chains, low);
    _mm256_store_ps(t.chains + 8, high);
  }
  template <typename Parts>
  static void add_two_rows(const LeavesOfPanel& t) {
    for_each_leaf<Parts>(t, [&](int64_t i, const Parts& parts) {
      for (int half = 0; half < 2; ++half) {
        const HalfLeaf<Parts> leaf(parts, half);
        for (int r = 0; r < 2; ++r) leaf.add_to(t.chains + r * 16 + half * 8, t.x[2 * i + r]);
      }
    });
  }
  template <typename Parts>
  static void begin() {}
  static void end() {}
  static void in_order(float* chains, int64_t vectors) {
    for (int64_t i = 0; i < vectors * 16; i += 8)
      _mm256_store_ps(chains + i, in_other_order(_mm256_load_ps(chains + i)));
  }
};

// ---- Rows

inline __m256i load_256(const void* x) {
  return _mm256_loadu_si256(static_cast<const __m256i*>(x));
}

// The largest magnitude of 32 numbers, as bits.
inline uint32_t largest_of(__m256i first, __m256i second) {
  const __m256i magnitude = _mm256_set1_epi16(0x7fff);
  const __m256i both =
      _mm256_max_epu16(_mm256_and_si256(first, magnitude), _mm256_and_si256(second, magnitude));
  const __m128i eight =
      _mm_max_epu16(_mm256_castsi256_si128(both), _mm256_extracti128_si256(both, 1));
  // The smallest of what is left to 0xffff.
  const __m128i left = _mm_minpos_epu16(_mm_xor_si128(eight, _mm_set1_epi16(-1)));
  return static_cast<uint32_t>(_mm_cvtsi128_si32(left) & 0xffff) ^ 0xffff;
}

// The even, or the odd, of 16 neighbours as integers.
inline __m256i rounded(__m256i bits, __m256 inverse) {
  return _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_castsi256_ps(bits), inverse));
}

// 32 columns: of each eight the even ones first.
inline __m256i integers_of(__m256i first, __m256i second, __m256 inverse) {
  const __m256i upper = _mm256_set1_epi32(static_cast<int>(0xffff0000));
  // Words of 16 bits: of lane 0 the even ones of columns 0 .. 7, then of 16 .. 23; of lane 1 those
  // behind these.
  const __m256i even = _mm256_packs_epi32(rounded(_mm256_slli_epi32(first, 16), inverse),
                                          rounded(_mm256_slli_epi32(second, 16), inverse));
  const __m256i odd = _mm256_packs_epi32(rounded(_mm256_and_si256(first, upper), inverse),
                                         rounded(_mm256_and_si256(second, upper), inverse));
  // Fours of bytes: E0 E2 O0 O2 | E1 E3 O1 O3 of eights 0 .. 3.
  const __m256i bytes = _mm256_packs_epi16(even, odd);
  return _mm256_permutevar8x32_epi32(bytes, _mm256_setr_epi32(0, 2, 4, 6, 1, 3, 5, 7));
}

// Totals of the first 16 columns and of the others.
inline void totals_of(__m256i integers, int32_t (&total)[2]) {
  const __m256i pairs = _mm256_maddubs_epi16(_mm256_set1_epi8(1), integers);
  const __m256i fours = _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
  const __m256i twos = _mm256_add_epi32(fours, _mm256_shuffle_epi32(fours, 0x4e));
  const __m256i all = _mm256_add_epi32(twos, _mm256_shuffle_epi32(twos, 0xb1));
  total[0] = _mm_cvtsi128_si32(_mm256_castsi256_si128(all));
  total[1] = _mm_cvtsi128_si32(_mm256_extracti128_si256(all, 1));
}

inline void quantise_leaf(const char* x, int parts, int zero, RowLeaf& out) {
  const __m256i first = load_256(x), second = load_256(x + 32);
  const uint32_t largest = largest_of(first, second);
  if (largest >= 0x7f80) {
    __builtin_memset(&out, 0, sizeof out);
    out.scale = out.plus[0] = out.plus[1] = __builtin_nanf("");
    return;
  }
  float scale = __builtin_bit_cast(float, largest << 16) / 127.0f;
  if (scale == 0.0f) scale = 1.0f;
  const __m256i integers = integers_of(first, second, _mm256_set1_ps(1.0f / scale));
  _mm256_store_si256(reinterpret_cast<__m256i*>(out.x), integers);
  int32_t total[2];
  totals_of(integers, total);
  if (parts == 1) total[0] += total[1];
  out.scale = scale;
  for (int j = 0; j < 2; ++j) {
    out.more[j] = zero * total[j];
    out.plus[j] = static_cast<float>(total[j]) * scale;
  }
}

}  // namespace

void quantise_leaves_avx2(const void* x, int64_t stride, int64_t rows, int64_t leaves, int parts,
                          int zero, RowLeaf* out) {
  const char* row = static_cast<const char*>(x);
  for (int64_t r = 0; r < rows; ++r, row += stride)
    for (int64_t i = 0; i < leaves; ++i)
      quantise_leaf(row + i * kLeaf * 2, parts, zero, out[i * rows + r]);
}

void block_product_avx2(const PanelProduct& p) {
  block_product<Avx2>(p);
}

}  // namespace invar::cpu
