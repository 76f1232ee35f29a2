// Leaves of blocks as integers and what they are multiples of (numerics 2.3), on the vector sets.
// Included after a vec16 header.
//
// A class stands for one leaf of 16 outputs, made of its block (Block: the bytes, and what of them
// all of its leaves need) and the leaf's number in it:
//   integers(i, h)   as block_bytes_inl.h says
//   factor(j)        of part j, and with kAdds plus(j) of it
#pragma once

#include "kernels/cpu/block_bytes_inl.h"

namespace invar::cpu {

namespace {

// Integers of kBits without a sign, of which kZero stands for 0; kBits = 8: with a sign.
template <DType type, int bits, int zero = 0, int parts = 1, bool adds = false>
struct Form {
  using Block = BlockBytes;
  static constexpr DType kType = type;
  static constexpr int kBits = bits, kZero = zero, kParts = parts;
  static constexpr bool kAdds = adds;
  static constexpr int kLeaves = BlockBytes::storage(type).block / 32;  // of a block
};

template <DType type, typename Integers, typename Of>
struct ScaledParts : Integers, Of {
  ScaledParts(const BlockBytes& block, int64_t) : Integers(block), factor_(block.f16_scales(0)) {}
  Vec16 factor(int) const { return factor_; }
  Vec16 plus(int) const { return splat(0); }
  Vec16 factor_;
};
template <DType type, typename Integers, int bits>
struct ScaledPlusParts : Integers, Form<type, bits, 0, 1, true> {
  ScaledPlusParts(const BlockBytes& block, int64_t) : Integers(block), both_(block.scales_4(0)) {}
  Vec16 factor(int) const { return from_f16(low_bits<16>(both_)); }
  Vec16 plus(int) const { return from_f16(both_ >> 16); }
  Bits16 both_;
};

struct EightBits {
  explicit EightBits(const BlockBytes& block) : block_(block) {}
  Bits16 integers(int i, int h) const { return block_.fours(i, h); }
  const BlockBytes& block_;
};

template <DType type, int bits, int zero = 0, int parts = 1, bool adds = false,
          typename Integers = EightBits>
using Simple = ScaledParts<type, Integers, Form<type, bits, zero, parts, adds>>;

using Q8_0Parts = Simple<DType::q8_0, 8>;
using Q4_0Parts = Simple<DType::q4_0, 4, 8, 1, false, FourBits>;
using Q5_0Parts = Simple<DType::q5_0, 5, 16, 1, false, FiveBits>;
using Q4_1Parts = ScaledPlusParts<DType::q4_1, FourBits, 4>;
using Q5_1Parts = ScaledPlusParts<DType::q5_1, FiveBits, 5>;
using Iq4NlParts = Simple<DType::iq4_nl, 8, 0, 1, false, UnevenSteps>;

struct Mxfp4Parts : StepsFrom12, Form<DType::mxfp4, 5, 12> {
  Mxfp4Parts(const BlockBytes& block, int64_t)
      : StepsFrom12(block), exponent_(low_bits<8>(block.scales_2(0))) {}
  Vec16 factor(int) const {  // what is subnormal counts as zero
    return value_of(max_signed(exponent_ + splat_bits(0xffffffff), splat_bits(0)) << 23);
  }
  Vec16 plus(int) const { return splat(0); }
  Bits16 exponent_;
};

// With the numbers of f16 that scales and minima of a block are multiples of.
struct BlockWithScale : BlockBytes {
  BlockWithScale(const BlockBytes& block, Vec16 scale) : BlockBytes(block), factor(scale) {}
  Vec16 factor;
};
struct BlockWithTwo : BlockWithScale {
  BlockWithTwo(const BlockBytes& block, Bits16 both)
      : BlockWithScale(block, from_f16(low_bits<16>(both))),
        plus(splat(0) - from_f16(both >> 16)) {}
  Vec16 plus;
};
struct BlockOf8 : BlockWithTwo {
  explicit BlockOf8(const BlockBytes& block) : BlockWithTwo(block, block.scales_4(0)) {}
};
struct Q6KBlock : BlockWithScale {
  explicit Q6KBlock(const BlockBytes& block) : BlockWithScale(block, block.f16_scales(8)) {}
};
struct Q3KBlock : BlockWithScale {
  explicit Q3KBlock(const BlockBytes& block) : BlockWithScale(block, block.f16_scales(6)) {}
};
struct Q2KBlock : BlockWithTwo {
  explicit Q2KBlock(const BlockBytes& block) : BlockWithTwo(block, block.scales_4(4)) {}
};

template <typename Integers, DType type, int bits>
struct ScaleAndMinimumParts : Integers, Form<type, bits, 0, 1, true> {
  using Block = BlockOf8;
  ScaleAndMinimumParts(const Block& block, int64_t leaf)
      : Integers(block, leaf), of_(block), leaf_(static_cast<int>(leaf)) {}
  [[gnu::always_inline]] Vec16 factor(int) const {
    return of_.factor * from_integer(scale_bits_of_8(of_, leaf_));
  }
  [[gnu::always_inline]] Vec16 plus(int) const {
    return of_.plus * from_integer(minimum_bits_of_8(of_, leaf_));
  }
  const Block& of_;
  int leaf_;
};
using Q4KParts = ScaleAndMinimumParts<FourOf64, DType::q4_k, 4>;
using Q5KParts = ScaleAndMinimumParts<FiveOf64, DType::q5_k, 5>;

template <typename Integers, typename BlockOf16, DType type, int bits, int zero, bool adds,
          Vec16 (*scale)(const BlockBytes&, int64_t)>
struct PartsOf16 : Integers, Form<type, bits, zero, 2, adds> {
  using Block = BlockOf16;
  PartsOf16(const Block& block, int64_t leaf) : Integers(block, leaf), of_(block), leaf_(leaf) {}
  [[gnu::always_inline]] Vec16 factor(int j) const {
    return of_.factor * scale(of_, 2 * leaf_ + j);
  }
  [[gnu::always_inline]] Vec16 plus(int j) const {
    if constexpr (adds) return of_.plus * high_of_16(of_, 2 * leaf_ + j);
    return splat(0);
  }
  const Block& of_;
  int64_t leaf_;
};
using Q6KParts = PartsOf16<SixOf128, Q6KBlock, DType::q6_k, 6, 32, false, signed_of_16>;
using Q2KParts = PartsOf16<TwoOf128, Q2KBlock, DType::q2_k, 2, 0, true, low_of_16>;
using Q3KParts = PartsOf16<ThreeOf128, Q3KBlock, DType::q3_k, 3, 4, false, six_bits_of_16>;

// Calls use.operator()<Parts>() with the class of a type; false for one without such integers.
template <typename Use>
inline bool with_parts_of(DType type, const Use& use) {
  switch (type) {
    case DType::q8_0:
      return use.template operator()<Q8_0Parts>(), true;
    case DType::q4_0:
      return use.template operator()<Q4_0Parts>(), true;
    case DType::q4_1:
      return use.template operator()<Q4_1Parts>(), true;
    case DType::q5_0:
      return use.template operator()<Q5_0Parts>(), true;
    case DType::q5_1:
      return use.template operator()<Q5_1Parts>(), true;
    case DType::q2_k:
      return use.template operator()<Q2KParts>(), true;
    case DType::q3_k:
      return use.template operator()<Q3KParts>(), true;
    case DType::q4_k:
      return use.template operator()<Q4KParts>(), true;
    case DType::q5_k:
      return use.template operator()<Q5KParts>(), true;
    case DType::q6_k:
      return use.template operator()<Q6KParts>(), true;
    case DType::iq4_nl:
      return use.template operator()<Iq4NlParts>(), true;
    case DType::mxfp4:
      return use.template operator()<Mxfp4Parts>(), true;
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

}  // namespace

}  // namespace invar::cpu
