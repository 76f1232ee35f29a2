// Panels of blocks, unpacked in registers: numerics/blocks.h on the vector sets. Included after a
// vec16 header, vec16_math.h and byte_floats_inl.h or a shorter way to the same, and behind
// kUnpackedRows: how many rows have their chains in registers beside what is unpacked, 2 or 8.
//
// A panel's block holds words of four bytes, in turn of the even and of the odd elements of four
// pairs of each of 16 outputs. Elements are made eight outputs at a time, in whose lanes even and
// odd ones alternate, as those words do; two such halves, rounded, are a pair of bf16 of 16
// outputs. A format is a class. It is made for one leaf and says in two steps what elements are:
//   integers(i, h)   those of pairs 4i .. 4i + 3 of outputs 8h .. 8h + 7, a byte each
//   value(q, j, h)   of such bytes the element of pair j, in f32
#pragma once

#include "kernels/cpu/block_bytes_inl.h"

namespace invar::cpu {

namespace {

// Values of the outputs, for the lanes of both halves.
struct Twice {
  explicit Twice(Vec16 x)
      : half{value_of(lower_twice(bits_of(x))), value_of(upper_twice(bits_of(x)))} {}
  Vec16 half[2];
};

// ---- What bytes stand for

// d * (q - kZero), exactly; with kZero = 0 the bytes q have a sign.
template <int kZero>
class Scaled {
 public:
  explicit Scaled(Vec16 d)
      : d_(d * splat(1 / Float::kUnit)),
        plus_{d_.half[0] * splat(-Float::kOrigin), d_.half[1] * splat(-Float::kOrigin)} {}
  Vec16 value(Bits16 q, int j, int h) const {
    const Vec16 number = Float::of(q, j % 4);
    return Float::kOrigin == 0 ? d_.half[h] * number : fma(d_.half[h], number, plus_[h]);
  }

 private:
  using Float = ByteFloat<kZero>;
  Twice d_;
  Vec16 plus_[2];
};

// d * q + plus, where one rounding is that of the sum: the product is exact.
struct ScaledPlus {
  ScaledPlus(Vec16 d, Vec16 plus) : d_(d), plus_(plus) {}
  Vec16 value(Bits16 q, int j, int h) const {
    return fma(d_.half[h], from_integer(byte_of(q, j % 4)), plus_.half[h]);
  }
  Twice d_, plus_;
};
// d * q - minus, q the lowest kBits of a byte, above which others may stand if they are 4.
template <int kBits>
struct ScaledMinus {
  ScaledMinus(Vec16 d, Vec16 minus) : d_(d), minus_(minus) {}
  Vec16 value(Bits16 q, int j, int h) const {
    const Vec16 number = kBits == 4 ? nibble_of(q, j % 4) : from_integer(byte_of(q, j % 4));
    return fms(d_.half[h], number, minus_.half[h]);
  }
  Twice d_, minus_;
};
// One for the first 8 pairs and one for the last 8.
template <typename Values>
struct OfHalves {
  Vec16 value(Bits16 q, int j, int h) const { return of[j / 8].value(q, j, h); }
  Values of[2];
};

// ---- A leaf is a block

struct Q8_0Leaf : Scaled<0> {
  static constexpr DType kType = DType::q8_0;
  Q8_0Leaf(const BlockBytes& block, int64_t) : Scaled(block.f16_scales(0)), block_(block) {}
  Bits16 integers(int i, int h) const { return block_.fours(i, h); }
  const BlockBytes& block_;
};

template <DType type, typename Integers, int kZero>
struct ScaledLeaf : Integers, Scaled<kZero> {
  static constexpr DType kType = type;
  ScaledLeaf(const BlockBytes& block, int64_t)
      : Integers(block), Scaled<kZero>(block.f16_scales(0)) {}
};
template <DType type, typename Integers>
struct ScaledPlusLeaf : Integers, ScaledPlus {
  static constexpr DType kType = type;
  ScaledPlusLeaf(const BlockBytes& block, int64_t)
      : Integers(block),
        ScaledPlus(from_f16(low_bits<16>(block.scales_4(0))), from_f16(block.scales_4(0) >> 16)) {}
};
struct Iq4NlLeaf : UnevenSteps, Scaled<0> {
  static constexpr DType kType = DType::iq4_nl;
  Iq4NlLeaf(const BlockBytes& block, int64_t) : UnevenSteps(block), Scaled(block.f16_scales(0)) {}
};

// The scale is a power of two, in two factors, of which none is subnormal.
struct Mxfp4Leaf : FourBits {
  static constexpr DType kType = DType::mxfp4;
  static constexpr bool kIsBf16 = true;  // of any magnitude
  Mxfp4Leaf(const BlockBytes& block, int64_t)
      : FourBits(block),
        half_(power(low_bits<8>(block.scales_2(0)) >> 1, 64)),
        other_(power((low_bits<8>(block.scales_2(0)) + splat_bits(1)) >> 1, 63)) {}
  static Vec16 power(Bits16 exponent, uint32_t bias) {
    return value_of((exponent + splat_bits(bias)) << 23);
  }
  Vec16 value(Bits16 q, int j, int h) const {
    alignas(64) static constexpr float kSteps[16] = {0,     .5f,  1,  1.5f,  2,  3,  4,  6,
                                                     -0.0f, -.5f, -1, -1.5f, -2, -3, -4, -6};
    return (lookup(kSteps, byte_of(q, j % 4)) * half_.half[h]) * other_.half[h];
  }
  Twice half_, other_;
};

// ---- Eight leaves are a block

// For q4_k and q5_k: the scale and the minimum of a leaf.
template <int kBits>
struct ScaleAndMinimum : ScaledMinus<kBits> {
  ScaleAndMinimum(const BlockBytes& block, int64_t part)
      : ScaledMinus<kBits>(scale_of_8(block, static_cast<int>(part)),
                           minimum_of_8(block, static_cast<int>(part))) {}
};

struct Q4KLeaf : ScaleAndMinimum<4> {
  static constexpr DType kType = DType::q4_k;
  Q4KLeaf(const BlockBytes& block, int64_t part)
      : ScaleAndMinimum(block, part), bits_(block, part / 2 * 32, part % 2 * 4) {}
  Bits16 integers(int i, int h) const { return bits_.lowest(i, h); }
  SomeBits<4> bits_;
};

struct Q5KLeaf : ScaleAndMinimum<5>, FiveOf64 {
  static constexpr DType kType = DType::q5_k;
  Q5KLeaf(const BlockBytes& block, int64_t part)
      : ScaleAndMinimum(block, part), FiveOf64(block, part) {}
};

struct Q6KLeaf : OfHalves<Scaled<32>>, SixOf128 {
  static constexpr DType kType = DType::q6_k;
  Q6KLeaf(const BlockBytes& block, int64_t part)
      : OfHalves{Scaled<32>(signed_scale_of_16(block, 2 * part)),
                 Scaled<32>(signed_scale_of_16(block, 2 * part + 1))},
        SixOf128(block, part) {}
};

struct Q2KLeaf : TwoOf128, OfHalves<ScaledPlus> {
  static constexpr DType kType = DType::q2_k;
  Q2KLeaf(const BlockBytes& block, int64_t part)
      : TwoOf128(block, part), OfHalves{values(block, 2 * part), values(block, 2 * part + 1)} {}
  static ScaledPlus values(const BlockBytes& block, int64_t i) {
    return {scale_of_16(block, i), plus_of_16(block, i)};
  }
};

struct Q3KLeaf : OfHalves<Scaled<4>>, ThreeOf128 {
  static constexpr DType kType = DType::q3_k;
  Q3KLeaf(const BlockBytes& block, int64_t part)
      : OfHalves{Scaled<4>(six_bit_scale_of_16(block, 2 * part)),
                 Scaled<4>(six_bit_scale_of_16(block, 2 * part + 1))},
        ThreeOf128(block, part) {}
};

// ---- What is done with leaves

// Leaves in a block.
template <typename Leaf>
constexpr int kLeavesOf = BlockBytes::storage(Leaf::kType).block / 32;

// Calls use(j, element of pair j of outputs 0 .. 7, of outputs 8 .. 15) with numbers that are not
// rounded yet, j ascending.
template <typename Leaf, typename Use>
inline void for_pairs(const Leaf& leaf, const Use& use) {
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    const Bits16 first = leaf.integers(i, 0), second = leaf.integers(i, 1);
#pragma GCC unroll 4
    for (int j = 4 * i; j < 4 * i + 4; ++j)
      use(j, leaf.value(first, j, 0), leaf.value(second, j, 1));
  }
}
template <typename Leaf>
constexpr bool kIsRounded = requires {
  Leaf::kIsBf16;
};

// A leaf as a tile of weights: 16 rows of 64 bytes.
template <typename Leaf>
inline void store_leaf(const Leaf& leaf, char* out) {
  for_pairs(
      leaf, [out](int j, Vec16 a, Vec16 b) __attribute__((always_inline)) {
        store_bits(out + j * 64,
                   kIsRounded<Leaf> ? upper_words(bits_of(a), bits_of(b)) : bf16_pairs(a, b));
      });
}

template <typename Leaf>
void expand_leaves(const char* values, const char* scales, int64_t leaf, int64_t leaves,
                   char* out) {
  for (; leaves > 0; --leaves, ++leaf, out += 1024) {
    const BlockBytes block(Leaf::kType, values, scales, leaf / kLeavesOf<Leaf>);
    store_leaf(Leaf(block, leaf % kLeavesOf<Leaf>), out);
  }
}

// As much of what comes next as `bytes` that are read now.
inline void fetch(FetchedNext& next, int64_t bytes) {
  constexpr int64_t kLine = 64, kStreams = FetchedNext::kStreams;
  const int64_t stream = next.bytes / kStreams, end = (next.done + bytes) / kStreams;
  int64_t at = (next.done / kStreams + kLine - 1) / kLine * kLine;
  next.done += bytes;
  if (!next.first) return;
  for (; at < end; at += kLine)
    for (int q = 0; q < kStreams; ++q) __builtin_prefetch(next.first + q * stream + at, 0, 2);
}
template <typename Leaf>
constexpr int64_t kLeafBytes = BlockBytes::storage(Leaf::kType).bytes() * 16 / kLeavesOf<Leaf>;

// In two neighbouring lanes an output has its even and its odd chain, and then both times its
// whole.
template <typename Leaf, int R>
void multiply_rows(const BlockTile& t) {
  const float* x = t.x;
  FetchedNext next = t.next;
  Vec16 chain[R][2];
  for (int r = 0; r < R; ++r) {
    const Twice begin(t.first ? splat(0) : load(t.chains + r * 16));
    for (int h = 0; h < 2; ++h) chain[r][h] = begin.half[h];
  }
  for (int64_t i = t.leaf; i < t.leaf + t.leaves; ++i, x += 32) {
    fetch(next, kLeafBytes<Leaf>);
    const BlockBytes block(Leaf::kType, t.values, t.scales, i / kLeavesOf<Leaf>);
    Vec16 sum[R][2];
    for (int r = 0; r < R; ++r) sum[r][0] = sum[r][1] = splat(0);
    for_pairs(
        Leaf(block, i % kLeavesOf<Leaf>), [&](int j, Vec16 a,
                                              Vec16 b) __attribute__((always_inline)) {
          const Vec16 w[2] = {kIsRounded<Leaf> ? a : to_8_bits(a),
                              kIsRounded<Leaf> ? b : to_8_bits(b)};
          for (int r = 0; r < R; ++r)
            for (int h = 0; h < 2; ++h)
              sum[r][h] = fma(eight_times(x + r * t.x_stride + 2 * j), w[h], sum[r][h]);
        });
    for (int r = 0; r < R; ++r)
      for (int h = 0; h < 2; ++h)
        chain[r][h] = chain[r][h] + (sum[r][h] + swap_neighbours(sum[r][h]));
  }
  for (int r = 0; r < R; ++r) store(t.chains + r * 16, even_lanes(chain[r][0], chain[r][1]));
}

// As many rows as have their chains in registers.
template <typename Leaf>
void multiply_leaves(const BlockTile& t) {
  if (t.rows == 1) return multiply_rows<Leaf, 1>(t);
  if (t.rows == 2) return multiply_rows<Leaf, 2>(t);
  if constexpr (kUnpackedRows == 8)
    t.rows == 4 ? multiply_rows<Leaf, 4>(t) : multiply_rows<Leaf, 8>(t);
}

// Calls use.operator()<Leaf>() with the class of a type; false for one without blocks.
template <typename Use>
inline bool with_leaf_of(DType type, const Use& use) {
  switch (type) {
    case DType::q8_0:
      return use.template operator()<Q8_0Leaf>(), true;
    case DType::q4_0:
      return use.template operator()<ScaledLeaf<DType::q4_0, FourBits, 8>>(), true;
    case DType::q4_1:
      return use.template operator()<ScaledPlusLeaf<DType::q4_1, FourBits>>(), true;
    case DType::q5_0:
      return use.template operator()<ScaledLeaf<DType::q5_0, FiveBits, 16>>(), true;
    case DType::q5_1:
      return use.template operator()<ScaledPlusLeaf<DType::q5_1, FiveBits>>(), true;
    case DType::q2_k:
      return use.template operator()<Q2KLeaf>(), true;
    case DType::q3_k:
      return use.template operator()<Q3KLeaf>(), true;
    case DType::q4_k:
      return use.template operator()<Q4KLeaf>(), true;
    case DType::q5_k:
      return use.template operator()<Q5KLeaf>(), true;
    case DType::q6_k:
      return use.template operator()<Q6KLeaf>(), true;
    case DType::iq4_nl:
      return use.template operator()<Iq4NlLeaf>(), true;
    case DType::mxfp4:
      return use.template operator()<Mxfp4Leaf>(), true;
    case DType::bf16:
    case DType::f16:
    case DType::f32:
    case DType::i8:
    case DType::e4m3:
    case DType::e4m3_row:
      break;
  }
  return false;
}

inline BlockFunctions block_functions(DType type) {
  BlockFunctions functions;
  with_leaf_of(type, [&]<typename Leaf>() {
    functions = {expand_leaves<Leaf>, multiply_leaves<Leaf>, kUnpackedRows};
  });
  return functions;
}

}  // namespace

}  // namespace invar::cpu
