// Leaves of a panel of blocks as a panel of bf16, in registers: numerics/blocks.h on the vector
// sets. Included after a vec16 header and vec16_math.h.
//
// A format is a class. It is made for one leaf; `even` and `odd` give the integers of pair j of 16
// outputs, from 0 on; `value` makes elements of them.
#pragma once

#include "kernels/cpu/panel_product.h"

namespace invar::cpu {

namespace {

// The values and the scales of a panel's block, as words of 16 outputs.
class BlockWords {
 public:
  BlockWords(DType type, const char* values, const char* scales, int64_t block)
      : values_(reinterpret_cast<const uint16_t*>(values) + block * storage(type).value_bytes * 8),
        scales_(scales + block * storage(type).scale_bytes * 16) {}

  // Bytes 2i and 2i + 1 of each output's values.
  Bits16 values(int i) const { return load_u16(values_ + i * 16); }
  // Of its scales, which are whole words of 4 bytes, or of 2.
  Bits16 scales_4(int i) const { return load_bits(scales_ + i * 64); }
  Bits16 scales_2(int i) const {
    return load_u16(reinterpret_cast<const uint16_t*>(scales_) + i * 16);
  }
  static constexpr const StorageType& storage(DType type) {
    return kStorageTypes[static_cast<int>(type)];
  }

 private:
  const uint16_t* values_;
  const char* scales_;
};

template <int kBits>
inline Bits16 low_bits(Bits16 x) {
  return x & splat_bits((1u << kBits) - 1);
}
// A small integer from 0 on, less `zero`: 2^23 + it has it in its last bits.
inline Vec16 number(Bits16 x, int zero = 0) {
  return value_of(x | splat_bits(0x4b000000)) - splat(0x1p23f + static_cast<float>(zero));
}

// ---- A leaf is a block

struct Q8_0Leaf {
  static constexpr DType kType = DType::q8_0;
  Q8_0Leaf(const BlockWords& block, int64_t) : block_(block), d_(from_f16(block.scales_2(0))) {}
  Bits16 even(int j) const { return low_bits<8>(block_.values(j) + splat_bits(128)); }
  Bits16 odd(int j) const { return low_bits<8>((block_.values(j) >> 8) + splat_bits(128)); }
  Vec16 value(int, Bits16 q) const { return d_ * number(q, 128); }
  const BlockWords& block_;
  Vec16 d_;
};

// Integers of 4 bits: pair j and pair j + 8 share a word; kSkip words stand before them.
template <int kSkip>
struct FourBits {
  explicit FourBits(const BlockWords& block) : block_(block) {}
  Bits16 even(int j) const { return low_bits<4>(word(j) >> j / 8 * 4); }
  Bits16 odd(int j) const { return low_bits<4>(word(j) >> (8 + j / 8 * 4)); }
  Bits16 word(int j) const { return block_.values(kSkip + j % 8); }
  const BlockWords& block_;
};
// The same with fifth bits in the two words before them.
struct FiveBits : FourBits<2> {
  explicit FiveBits(const BlockWords& block)
      : FourBits(block), high_(block.values(0) | block.values(1) << 16) {}
  Bits16 even(int j) const { return FourBits::even(j) | low_bits<1>(high_ >> 2 * j) << 4; }
  Bits16 odd(int j) const { return FourBits::odd(j) | low_bits<1>(high_ >> (2 * j + 1)) << 4; }
  Bits16 high_;
};

template <DType type, typename Integers, int kZero>
struct ScaledLeaf : Integers {
  static constexpr DType kType = type;
  ScaledLeaf(const BlockWords& block, int64_t) : Integers(block), d_(from_f16(block.scales_2(0))) {}
  Vec16 value(int, Bits16 q) const { return d_ * number(q, kZero); }
  Vec16 d_;
};
// The product is exact, so that one rounding is that of the sum.
template <DType type, typename Integers>
struct ScaledPlusLeaf : Integers {
  static constexpr DType kType = type;
  ScaledPlusLeaf(const BlockWords& block, int64_t) : Integers(block) {
    const Bits16 both = block.scales_4(0);
    d_ = from_f16(low_bits<16>(both));
    plus_ = from_f16(both >> 16);
  }
  Vec16 value(int, Bits16 q) const { return fma(d_, number(q), plus_); }
  Vec16 d_, plus_;
};
struct Iq4NlLeaf : FourBits<0> {
  static constexpr DType kType = DType::iq4_nl;
  Iq4NlLeaf(const BlockWords& block, int64_t) : FourBits(block), d_(from_f16(block.scales_2(0))) {}
  Vec16 value(int, Bits16 q) const {
    alignas(64) static constexpr float kSteps[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                                     1,    13,   25,  38,  53,  69,  89,  113};
    return d_ * lookup(kSteps, q);
  }
  Vec16 d_;
};

// ---- Eight leaves are a block

// Byte i of the scales.
inline Bits16 scale_byte(const BlockWords& block, int i) {
  return low_bits<8>(block.scales_4(i / 4) >> i % 4 * 8);
}

// Of q4_k and q5_k: what minimum and scale a leaf has.
struct ScaledMinusLeaf {
  ScaledMinusLeaf(const BlockWords& block, int part) {
    const Bits16 both = block.scales_4(0);
    const auto byte = [&](int i) { return scale_byte(block, 4 + i); };
    Bits16 scale, minimum;
    if (part < 4) {
      scale = low_bits<6>(byte(part));
      minimum = low_bits<6>(byte(part + 4));
    } else {
      const Bits16 lows = byte(part + 4);
      scale = low_bits<4>(lows) | (byte(part - 4) >> 6) << 4;
      minimum = lows >> 4 | (byte(part) >> 6) << 4;
    }
    d_ = from_f16(low_bits<16>(both)) * number(scale);
    minus_ = from_f16(both >> 16) * number(minimum);
  }
  Vec16 value(int, Bits16 q) const { return fms(d_, number(q), minus_); }
  Vec16 d_, minus_;
};

struct Q4KLeaf : ScaledMinusLeaf {
  static constexpr DType kType = DType::q4_k;
  Q4KLeaf(const BlockWords& block, int64_t part, int skip = 0)
      : ScaledMinusLeaf(block, static_cast<int>(part)),
        block_(block),
        first_(skip + static_cast<int>(part) / 2 * 16),
        shift_(static_cast<int>(part) % 2 * 4) {}
  Bits16 even(int j) const { return low_bits<4>(block_.values(first_ + j) >> shift_); }
  Bits16 odd(int j) const { return low_bits<4>(block_.values(first_ + j) >> (8 + shift_)); }
  const BlockWords& block_;
  int first_, shift_;
};

struct Q5KLeaf : Q4KLeaf {
  static constexpr DType kType = DType::q5_k;
  Q5KLeaf(const BlockWords& block, int64_t part)
      : Q4KLeaf(block, part, 16), part_(static_cast<int>(part)) {}
  Bits16 even(int j) const { return Q4KLeaf::even(j) | high(j, part_); }
  Bits16 odd(int j) const { return Q4KLeaf::odd(j) | high(j, 8 + part_); }
  Bits16 high(int j, int bit) const { return low_bits<1>(block_.values(j) >> bit) << 4; }
  int part_;
};

// A scale for the first 8 pairs and one for the last 8.
struct TwoScales {
  Vec16 d_[2];
};

struct Q6KLeaf : TwoScales {
  static constexpr DType kType = DType::q6_k;
  Q6KLeaf(const BlockWords& block, int64_t part)
      : block_(block),
        low_(static_cast<int>(part / 4 * 32 + part % 2 * 16)),
        high_(static_cast<int>(64 + part / 4 * 16)),
        low_shift_(static_cast<int>(part % 4 / 2 * 4)),
        high_shift_(static_cast<int>(part % 4 * 2)) {
    const Vec16 d = from_f16(block.scales_2(8));
    const Bits16 both = block.scales_2(static_cast<int>(part));  // signed bytes
    d_[0] = d * number(low_bits<8>(both + splat_bits(128)), 128);
    d_[1] = d * number(low_bits<8>((both >> 8) + splat_bits(128)), 128);
  }
  Bits16 even(int j) const { return integer(j, 0); }
  Bits16 odd(int j) const { return integer(j, 8); }
  Bits16 integer(int j, int byte) const {
    return low_bits<4>(block_.values(low_ + j) >> (byte + low_shift_)) |
           low_bits<2>(block_.values(high_ + j) >> (byte + high_shift_)) << 4;
  }
  Vec16 value(int j, Bits16 q) const { return d_[j / 8] * number(q, 32); }
  const BlockWords& block_;
  int low_, high_, low_shift_, high_shift_;
};

// Two bits of four leaves in a byte; kSkip words stand before them.
template <int kSkip>
struct TwoBits {
  TwoBits(const BlockWords& block, int64_t part)
      : block_(block),
        first_(static_cast<int>(kSkip + part / 4 * 16)),
        shift_(static_cast<int>(part % 4 * 2)) {}
  Bits16 even(int j) const { return low_bits<2>(block_.values(first_ + j) >> shift_); }
  Bits16 odd(int j) const { return low_bits<2>(block_.values(first_ + j) >> (8 + shift_)); }
  const BlockWords& block_;
  int first_, shift_;
};

struct Q2KLeaf : TwoBits<0>, TwoScales {
  static constexpr DType kType = DType::q2_k;
  Q2KLeaf(const BlockWords& block, int64_t part) : TwoBits(block, part) {
    const Bits16 both = block.scales_4(4);
    const Vec16 d = from_f16(low_bits<16>(both)), minimum = from_f16(both >> 16);
    for (int half = 0; half < 2; ++half) {
      const Bits16 byte = scale_byte(block, static_cast<int>(part) * 2 + half);
      d_[half] = d * number(low_bits<4>(byte));
      minus_[half] = minimum * number(byte >> 4);
    }
  }
  Vec16 value(int j, Bits16 q) const { return fms(d_[j / 8], number(q), minus_[j / 8]); }
  Vec16 minus_[2];
};

struct Q3KLeaf : TwoBits<16>, TwoScales {
  static constexpr DType kType = DType::q3_k;
  Q3KLeaf(const BlockWords& block, int64_t part)
      : TwoBits(block, part), part_(static_cast<int>(part)) {
    const Vec16 d = from_f16(block.scales_2(6));
    const auto byte = [&](int i) { return block.scales_2(i / 2) >> i % 2 * 8; };
    for (int half = 0; half < 2; ++half) {
      const int i = part_ * 2 + half;  // of the 16 scales
      const Bits16 low = low_bits<4>(byte(i % 8) >> i / 8 * 4);
      const Bits16 high = low_bits<2>(byte(8 + i % 4) >> i / 4 * 2);
      d_[half] = d * number(low | high << 4, 32);
    }
  }
  Bits16 even(int j) const { return TwoBits::even(j) | third(j, part_); }
  Bits16 odd(int j) const { return TwoBits::odd(j) | third(j, 8 + part_); }
  Bits16 third(int j, int bit) const { return low_bits<1>(block_.values(j) >> bit) << 2; }
  Vec16 value(int j, Bits16 q) const { return d_[j / 8] * number(q, 4); }
  int part_;
};

template <typename Leaf>
void expand_leaves(const char* values, const char* scales, int64_t leaf, int64_t leaves,
                   char* out) {
  constexpr int kLeaves = BlockWords::storage(Leaf::kType).block / 32;
  for (; leaves > 0; --leaves, ++leaf) {
    const BlockWords block(Leaf::kType, values, scales, leaf / kLeaves);
    const Leaf q(block, leaf % kLeaves);
#pragma GCC unroll 16
    for (int j = 0; j < 16; ++j, out += 64) {
      const Bits16 even = to_bf16(q.value(j, q.even(j))), odd = to_bf16(q.value(j, q.odd(j)));
      store_bits(out, even | (odd << 16));
    }
  }
}

// Null for types without blocks.
inline ExpandPanel expander_of(DType type) {
  switch (type) {
    case DType::q8_0:
      return expand_leaves<Q8_0Leaf>;
    case DType::q4_0:
      return expand_leaves<ScaledLeaf<DType::q4_0, FourBits<0>, 8>>;
    case DType::q4_1:
      return expand_leaves<ScaledPlusLeaf<DType::q4_1, FourBits<0>>>;
    case DType::q5_0:
      return expand_leaves<ScaledLeaf<DType::q5_0, FiveBits, 16>>;
    case DType::q5_1:
      return expand_leaves<ScaledPlusLeaf<DType::q5_1, FiveBits>>;
    case DType::q2_k:
      return expand_leaves<Q2KLeaf>;
    case DType::q3_k:
      return expand_leaves<Q3KLeaf>;
    case DType::q4_k:
      return expand_leaves<Q4KLeaf>;
    case DType::q5_k:
      return expand_leaves<Q5KLeaf>;
    case DType::q6_k:
      return expand_leaves<Q6KLeaf>;
    case DType::iq4_nl:
      return expand_leaves<Iq4NlLeaf>;
    case DType::bf16:
    case DType::f16:
    case DType::f32:
    case DType::i8:
      break;
  }
  return nullptr;
}

}  // namespace

}  // namespace invar::cpu
