// Panels of blocks, unpacked in registers: numerics/blocks.h on the vector sets. Included after a
// vec16 header and vec16_math.h, and behind kUnpackedRows: how many rows have their chains in
// registers beside what is unpacked, 2 or 8.
//
// A panel's block holds two bytes of each of 16 outputs in turn. Its elements are made eight
// outputs at a time, in whose lanes the even and the odd element of a pair alternate, as those
// bytes do; two such halves, rounded, are a pair of bf16 of 16 outputs. A format is a class. It is
// made for one leaf; `half` gives the elements of pair j of outputs 8h .. 8h + 7 in f32.
#pragma once

#include "kernels/cpu/panel_product.h"

namespace invar::cpu {

namespace {

// The values and the scales of a panel's block.
class BlockBytes {
 public:
  BlockBytes(DType type, const char* values, const char* scales, int64_t block)
      : values_(values + block * storage(type).value_bytes * 16),
        scales_(scales + block * storage(type).scale_bytes * 16) {}

  // Bytes 2i and 2i + 1 of the values of all outputs; of outputs 8h .. 8h + 7, each in a lane,
  // without and with a sign.
  Bytes32 values(int i) const { return load_bytes(values_ + i * 32); }
  Bits16 lanes(int i, int h) const { return load_u8(values_ + i * 32 + h * 16); }
  Bits16 signed_lanes(int i, int h) const { return load_i8(values_ + i * 32 + h * 16); }
  // The same bytes as a word of each output.
  Bits16 word(int i) const { return load_u16(reinterpret_cast<const uint16_t*>(values_) + i * 16); }
  // Of each output's scales, which are whole words of 4 bytes, or of 2.
  Bits16 scales_4(int i) const { return load_bits(scales_ + i * 64); }
  Bits16 scales_2(int i) const {
    return load_u16(reinterpret_cast<const uint16_t*>(scales_) + i * 16);
  }
  // Byte i of scales of whole words of 4.
  Bits16 scale_byte(int i) const { return (scales_4(i / 4) >> i % 4 * 8) & splat_bits(0xff); }

  static constexpr const StorageType& storage(DType type) {
    return kStorageTypes[static_cast<int>(type)];
  }

 private:
  const char* values_;
  const char* scales_;
};

template <int kBits>
inline Bits16 low_bits(Bits16 x) {
  return x & splat_bits((1u << kBits) - 1);
}
// Bytes with a sign.
inline Vec16 from_signed(Bits16 byte) {
  return from_integer(low_bits<8>(byte + splat_bits(128))) - splat(128);
}

template <int kBits>
inline Bytes32 low_bits(Bytes32 x) {
  return x & splat_byte((1 << kBits) - 1);
}
// Of outputs 8h .. 8h + 7.
inline Bits16 lanes_of(Bytes32 x, int h) {
  return h ? upper_bytes(x) : lower_bytes(x);
}

// What outputs have, for the lanes of both halves.
struct Twice {
  explicit Twice(Vec16 x)
      : half{value_of(lower_twice(bits_of(x))), value_of(upper_twice(bits_of(x)))} {}
  Vec16 half[2];
};

// ---- A leaf is a block

struct Q8_0Leaf {
  static constexpr DType kType = DType::q8_0;
  Q8_0Leaf(const BlockBytes& block, int64_t) : block_(block), d_(from_f16(block.scales_2(0))) {}
  Vec16 half(int j, int h) const { return d_.half[h] * from_integer(block_.signed_lanes(j, h)); }
  const BlockBytes& block_;
  Twice d_;
};

// Integers of 4 bits: pair j and pair j + 8 share bytes; kSkip words stand before them.
template <int kSkip>
struct FourBits {
  explicit FourBits(const BlockBytes& block) : block_(block) {}
  Bits16 integer(int j, int h) const {
    const Bits16 both = block_.lanes(kSkip + j % 8, h);
    return j < 8 ? low_bits<4>(both) : both >> 4;
  }
  const BlockBytes& block_;
};
// The same with fifth bits in the two words before them.
struct FiveBits : FourBits<2> {
  explicit FiveBits(const BlockBytes& block) : FourBits(block) {
    alignas(64) static constexpr uint32_t kOddElement[16] = {0, 1, 0, 1, 0, 1, 0, 1,
                                                             0, 1, 0, 1, 0, 1, 0, 1};
    const Bits16 bits = block.word(0) | block.word(1) << 16, odd = load_bits(kOddElement);
    high_[0] = lower_twice(bits) >> odd;
    high_[1] = upper_twice(bits) >> odd;
  }
  Bits16 integer(int j, int h) const {
    return FourBits::integer(j, h) | low_bits<1>(high_[h] >> 2 * j) << 4;
  }
  Bits16 high_[2];
};

// d * q + plus, where one rounding is that of the sum: the product is exact.
template <typename Integers>
struct PlusLeaf : Integers {
  PlusLeaf(const BlockBytes& block, Vec16 d, Vec16 plus) : Integers(block), d_(d), plus_(plus) {}
  Vec16 half(int j, int h) const {
    return fma(d_.half[h], from_integer(Integers::integer(j, h)), plus_.half[h]);
  }
  Twice d_, plus_;
};
// d * (q - zero) is exact, and so is what is added here.
template <DType type, typename Integers, int kZero>
struct ScaledLeaf : PlusLeaf<Integers> {
  static constexpr DType kType = type;
  ScaledLeaf(const BlockBytes& block, int64_t)
      : PlusLeaf<Integers>(block, d(block), d(block) * splat(-kZero)) {}
  static Vec16 d(const BlockBytes& block) { return from_f16(block.scales_2(0)); }
};
template <DType type, typename Integers>
struct ScaledPlusLeaf : PlusLeaf<Integers> {
  static constexpr DType kType = type;
  ScaledPlusLeaf(const BlockBytes& block, int64_t)
      : PlusLeaf<Integers>(block, from_f16(low_bits<16>(block.scales_4(0))),
                           from_f16(block.scales_4(0) >> 16)) {}
};
struct Iq4NlLeaf : FourBits<0> {
  static constexpr DType kType = DType::iq4_nl;
  Iq4NlLeaf(const BlockBytes& block, int64_t) : FourBits(block), d_(from_f16(block.scales_2(0))) {}
  Vec16 half(int j, int h) const {
    alignas(64) static constexpr float kSteps[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                                     1,    13,   25,  38,  53,  69,  89,  113};
    return d_.half[h] * lookup(kSteps, integer(j, h));
  }
  Twice d_;
};

// The scale is a power of two, in two factors, of which none is subnormal.
struct Mxfp4Leaf : FourBits<0> {
  static constexpr DType kType = DType::mxfp4;
  static constexpr bool kIsBf16 = true;  // of any magnitude
  Mxfp4Leaf(const BlockBytes& block, int64_t)
      : FourBits(block),
        half_(power(low_bits<8>(block.scales_2(0)) >> 1, 64)),
        other_(power((low_bits<8>(block.scales_2(0)) + splat_bits(1)) >> 1, 63)) {}
  static Vec16 power(Bits16 exponent, uint32_t bias) {
    return value_of((exponent + splat_bits(bias)) << 23);
  }
  Vec16 half(int j, int h) const {
    alignas(64) static constexpr float kSteps[16] = {0,     .5f,  1,  1.5f,  2,  3,  4,  6,
                                                     -0.0f, -.5f, -1, -1.5f, -2, -3, -4, -6};
    return (lookup(kSteps, integer(j, h)) * half_.half[h]) * other_.half[h];
  }
  Twice half_, other_;
};

// ---- Eight leaves are a block

// Some bits of bytes, from a bit on that a leaf has.
template <int kBits>
class SomeBits {
 public:
  SomeBits(const BlockBytes& block, int64_t first, int64_t shift)
      : block_(block), first_(static_cast<int>(first)), shift_(static_cast<int>(shift)) {}
  Bytes32 bytes(int j) const { return low_bits<kBits>(block_.values(first_ + j) >> shift_); }

 private:
  const BlockBytes& block_;
  int first_, shift_;
};

// Of q4_k and q5_k: the scale and the minimum of a leaf.
struct ScaleAndMinimum {
  ScaleAndMinimum(const BlockBytes& block, int part) {
    const Bits16 both = block.scales_4(0);
    const auto byte = [&](int i) { return block.scale_byte(4 + i); };
    Bits16 integer, minimum;
    if (part < 4) {
      integer = low_bits<6>(byte(part));
      minimum = low_bits<6>(byte(part + 4));
    } else {
      const Bits16 lows = byte(part + 4);
      integer = low_bits<4>(lows) | (byte(part - 4) >> 6) << 4;
      minimum = lows >> 4 | (byte(part) >> 6) << 4;
    }
    scale = from_f16(low_bits<16>(both)) * from_integer(integer);
    minus = from_f16(both >> 16) * from_integer(minimum);
  }
  Vec16 scale, minus;
};
// Exact products, and one rounding of their difference.
struct ScaledMinus {
  explicit ScaledMinus(const ScaleAndMinimum& s) : d_(s.scale), minus_(s.minus) {}
  Vec16 value(Bits16 q, int h) const { return fms(d_.half[h], from_integer(q), minus_.half[h]); }
  Twice d_, minus_;
};

struct Q4KLeaf : ScaledMinus {
  static constexpr DType kType = DType::q4_k;
  Q4KLeaf(const BlockBytes& block, int64_t part)
      : ScaledMinus(ScaleAndMinimum(block, static_cast<int>(part))),
        q_(block, part / 2 * 16, part % 2 * 4) {}
  Vec16 half(int j, int h) const { return value(lanes_of(q_.bytes(j), h), h); }
  SomeBits<4> q_;
};

struct Q5KLeaf : ScaledMinus {
  static constexpr DType kType = DType::q5_k;
  Q5KLeaf(const BlockBytes& block, int64_t part)
      : ScaledMinus(ScaleAndMinimum(block, static_cast<int>(part))),
        low_(block, 16 + part / 2 * 16, part % 2 * 4),
        high_(block, 0, part) {}
  Vec16 half(int j, int h) const {
    return value(lanes_of(low_.bytes(j) | high_.bytes(j) << 4, h), h);
  }
  SomeBits<4> low_;
  SomeBits<1> high_;
};

// A scale, and what is added, for the first 8 pairs and for the last 8.
struct PlusOf16 {
  PlusOf16(Vec16 first, Vec16 last, Vec16 first_plus, Vec16 last_plus)
      : d_{Twice(first), Twice(last)}, plus_{Twice(first_plus), Twice(last_plus)} {}
  Vec16 value(int j, int h, Bits16 q) const {
    return fma(d_[j / 8].half[h], from_integer(q), plus_[j / 8].half[h]);
  }
  Twice d_[2], plus_[2];
};
// With a zero point, as of ScaledLeaf.
template <int kZero>
struct ScaledOf16 : PlusOf16 {
  ScaledOf16(Vec16 first, Vec16 last)
      : PlusOf16(first, last, first * splat(-kZero), last * splat(-kZero)) {}
};

struct Q6KLeaf : ScaledOf16<32> {
  static constexpr DType kType = DType::q6_k;
  Q6KLeaf(const BlockBytes& block, int64_t part)
      : ScaledOf16(scale(block, part, 0), scale(block, part, 8)),
        low_(block, part / 4 * 32 + part % 2 * 16, part % 4 / 2 * 4),
        high_(block, 64 + part / 4 * 16, part % 4 * 2) {}
  static Vec16 scale(const BlockBytes& block, int64_t part, int shift) {
    const Bits16 both = block.scales_2(static_cast<int>(part));
    return from_f16(block.scales_2(8)) * from_signed(both >> shift);
  }
  Vec16 half(int j, int h) const {
    return value(j, h, lanes_of(low_.bytes(j) | high_.bytes(j) << 4, h));
  }
  SomeBits<4> low_;
  SomeBits<2> high_;
};

struct Q2KLeaf : PlusOf16 {
  static constexpr DType kType = DType::q2_k;
  Q2KLeaf(const BlockBytes& block, int64_t part)
      : PlusOf16(scale(block, 2 * part), scale(block, 2 * part + 1), plus(block, 2 * part),
                 plus(block, 2 * part + 1)),
        q_(block, part / 4 * 16, part % 4 * 2) {}
  // For 16 elements a byte.
  static Vec16 scale(const BlockBytes& block, int64_t i) {
    const Bits16 integer = low_bits<4>(block.scale_byte(static_cast<int>(i)));
    return from_f16(low_bits<16>(block.scales_4(4))) * from_integer(integer);
  }
  static Vec16 plus(const BlockBytes& block, int64_t i) {
    const Bits16 integer = block.scale_byte(static_cast<int>(i)) >> 4;
    return from_f16(block.scales_4(4) >> 16) * (splat(0) - from_integer(integer));
  }
  Vec16 half(int j, int h) const { return value(j, h, lanes_of(q_.bytes(j), h)); }
  SomeBits<2> q_;
};

struct Q3KLeaf : ScaledOf16<4> {
  static constexpr DType kType = DType::q3_k;
  Q3KLeaf(const BlockBytes& block, int64_t part)
      : ScaledOf16(scale(block, static_cast<int>(part) * 2),
                   scale(block, static_cast<int>(part) * 2 + 1)),
        low_(block, 16 + part / 4 * 16, part % 4 * 2),
        third_(block, 0, part) {}
  // Of the 16 scales.
  static Vec16 scale(const BlockBytes& block, int i) {
    const auto byte = [&](int b) { return block.scales_2(b / 2) >> b % 2 * 8; };
    const Bits16 low = low_bits<4>(byte(i % 8) >> i / 8 * 4);
    const Bits16 high = low_bits<2>(byte(8 + i % 4) >> i / 4 * 2);
    return from_f16(block.scales_2(6)) * (from_integer(low | high << 4) - splat(32));
  }
  Vec16 half(int j, int h) const {
    return value(j, h, lanes_of(low_.bytes(j) | third_.bytes(j) << 2, h));
  }
  SomeBits<2> low_;
  SomeBits<1> third_;
};

// ---- What is done with leaves

// Leaves in a block.
template <typename Leaf>
constexpr int kLeavesOf = BlockBytes::storage(Leaf::kType).block / 32;

// Pair j of a leaf of 16 outputs, as bf16.
template <typename Leaf>
inline Bits16 pairs_of(const Leaf& leaf, int j) {
  if constexpr (requires { Leaf::kIsBf16; })
    return upper_words(bits_of(leaf.half(j, 0)), bits_of(leaf.half(j, 1)));
  else
    return bf16_pairs(leaf.half(j, 0), leaf.half(j, 1));
}

template <typename Leaf>
void expand_leaves(const char* values, const char* scales, int64_t leaf, int64_t leaves,
                   char* out) {
  for (; leaves > 0; --leaves, ++leaf) {
    const BlockBytes block(Leaf::kType, values, scales, leaf / kLeavesOf<Leaf>);
    const Leaf q(block, leaf % kLeavesOf<Leaf>);
#pragma GCC unroll 16
    for (int j = 0; j < 16; ++j, out += 64) store_bits(out, pairs_of(q, j));
  }
}

// To the chains of R rows an even or an odd element of each output.
template <int R>
inline void add_products(Vec16 (&chain)[R], const float* x, int64_t stride, Vec16 w) {
  for (int r = 0; r < R; ++r) chain[r] = fma(splat(x[r * stride]), w, chain[r]);
}

template <typename Leaf, int R>
void multiply_rows(const BlockTile& t) {
  constexpr int kBytes = BlockBytes::storage(Leaf::kType).value_bytes * 16 / kLeavesOf<Leaf>;
  constexpr int64_t kAhead = 2048;  // bytes that are fetched before they are read
  const float* x = t.x;
  Vec16 chain[R];
  for (int r = 0; r < R; ++r) chain[r] = t.first ? splat(0) : load(t.chains + r * 16);
  for (int64_t i = t.leaf; i < t.leaf + t.leaves; ++i, x += 32) {
    for (int b = 0; b < kBytes; b += 64) __builtin_prefetch(t.values + i * kBytes + b + kAhead);
    const BlockBytes block(Leaf::kType, t.values, t.scales, i / kLeavesOf<Leaf>);
    const Leaf q(block, i % kLeavesOf<Leaf>);
    Vec16 even[R], odd[R];
    for (int r = 0; r < R; ++r) even[r] = odd[r] = splat(0);
#pragma GCC unroll 16
    for (int j = 0; j < 16; ++j) {
      const Bits16 pairs = pairs_of(q, j);
      add_products(even, x + j, t.x_stride, value_of(pairs << 16));
      add_products(odd, x + 16 + j, t.x_stride, value_of(pairs & splat_bits(0xffff0000)));
    }
    for (int r = 0; r < R; ++r) chain[r] = chain[r] + (even[r] + odd[r]);
  }
  for (int r = 0; r < R; ++r) store(t.chains + r * 16, chain[r]);
}

// As many rows as have their chains in registers.
template <typename Leaf>
void multiply_leaves(const BlockTile& t) {
  if (t.rows == 1) return multiply_rows<Leaf, 1>(t);
  if (t.rows == 2) return multiply_rows<Leaf, 2>(t);
  if constexpr (kUnpackedRows == 8)
    t.rows == 4 ? multiply_rows<Leaf, 4>(t) : multiply_rows<Leaf, 8>(t);
}

template <typename Leaf>
constexpr BlockFunctions kFunctions = {expand_leaves<Leaf>, multiply_leaves<Leaf>, kUnpackedRows};

inline BlockFunctions block_functions(DType type) {
  switch (type) {
    case DType::q8_0:
      return kFunctions<Q8_0Leaf>;
    case DType::q4_0:
      return kFunctions<ScaledLeaf<DType::q4_0, FourBits<0>, 8>>;
    case DType::q4_1:
      return kFunctions<ScaledPlusLeaf<DType::q4_1, FourBits<0>>>;
    case DType::q5_0:
      return kFunctions<ScaledLeaf<DType::q5_0, FiveBits, 16>>;
    case DType::q5_1:
      return kFunctions<ScaledPlusLeaf<DType::q5_1, FiveBits>>;
    case DType::q2_k:
      return kFunctions<Q2KLeaf>;
    case DType::q3_k:
      return kFunctions<Q3KLeaf>;
    case DType::q4_k:
      return kFunctions<Q4KLeaf>;
    case DType::q5_k:
      return kFunctions<Q5KLeaf>;
    case DType::q6_k:
      return kFunctions<Q6KLeaf>;
    case DType::iq4_nl:
      return kFunctions<Iq4NlLeaf>;
    case DType::mxfp4:
      return kFunctions<Mxfp4Leaf>;
    case DType::bf16:
    case DType::f16:
    case DType::f32:
    case DType::i8:
      break;
  }
  return {};
}

}  // namespace

}  // namespace invar::cpu
