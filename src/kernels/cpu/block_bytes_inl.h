// The contents of a panel's blocks: integers and scales of 16 outputs (numerics 0.1, 2.3) on the
// vector sets. Included after a vec16 header.
//
// A panel's block holds words of four bytes, in turn of the even and of the odd elements of four
// pairs of each of 16 outputs. A class of integers says by integers(i, h) those of pairs 4i .. 4i +
// 3 of outputs 8h .. 8h + 7 of a leaf, a byte each.
#pragma once

#include "kernels/cpu/panel_product.h"

namespace invar::cpu {

namespace {

// The values and the scales of a panel's block.
class BlockBytes {
 public:
  BlockBytes(DType type, const char* values, const char* scales, int64_t block)
      : values_(values + block * storage(type).value_bytes * 16),
        fours_(values_ + storage(type).lead * 16),
        scales_(scales + block * storage(type).scale_bytes * 16) {}

  // Bytes 8i .. 8i + 7 of the values of outputs 8h .. 8h + 7.
  Bits16 fours(int i, int h) const { return load_bits(fours_ + i * 128 + h * 64); }
  // The word before them, one for each output.
  Bits16 lead() const { return load_bits(values_); }
  // Scales of each output, which are whole words of 4 bytes, or of 2.
  Bits16 scales_4(int i) const { return load_bits(scales_ + i * 64); }
  Bits16 scales_2(int i) const { return load_u16(words(i)); }
  Vec16 f16_scales(int i) const { return load_f16(words(i)); }
  // Byte i of scales of whole words of 4.
  Bits16 scale_byte(int i) const { return (scales_4(i / 4) >> i % 4 * 8) & splat_bits(0xff); }

  static constexpr const StorageType& storage(DType type) {
    return kStorageTypes[static_cast<int>(type)];
  }

 private:
  const uint16_t* words(int i) const { return reinterpret_cast<const uint16_t*>(scales_) + i * 16; }

  const char* values_;
  const char* fours_;
  const char* scales_;
};

template <int kBits>
inline Bits16 low_bits(Bits16 x) {
  return x & splat_bits((1u << kBits) - 1);
}
// Bits of each of the four bytes.
template <int kBits>
inline Bits16 low_bits_of_bytes(Bits16 x) {
  return x & splat_bits(((1u << kBits) - 1) * 0x01010101u);
}
// Bytes with a sign.
inline Vec16 from_signed(Bits16 byte) {
  return from_integer(low_bits<8>(byte + splat_bits(128))) - splat(128);
}

// ---- Scales

// For q4_k and q5_k: 8 scales and minima of 6 bits in 12 bytes.
[[gnu::always_inline]] inline Bits16 scale_bits_of_8(const BlockBytes& block, int part) {
  const int shift = part % 4 * 8;
  if (part < 4) return low_bits<6>(block.scales_4(1) >> shift);
  return low_bits<4>(block.scales_4(3) >> shift) |
         ((block.scales_4(1) >> shift >> 2) & splat_bits(0x30));
}
[[gnu::always_inline]] inline Bits16 minimum_bits_of_8(const BlockBytes& block, int part) {
  const int shift = part % 4 * 8;
  if (part < 4) return low_bits<6>(block.scales_4(2) >> shift);
  return low_bits<4>(block.scales_4(3) >> shift >> 4) |
         ((block.scales_4(2) >> shift >> 2) & splat_bits(0x30));
}
[[gnu::always_inline]] inline Vec16 scale_of_8(const BlockBytes& block, int part) {
  return from_f16(low_bits<16>(block.scales_4(0))) * from_integer(scale_bits_of_8(block, part));
}
[[gnu::always_inline]] inline Vec16 minimum_of_8(const BlockBytes& block, int part) {
  return from_f16(block.scales_4(0) >> 16) * from_integer(minimum_bits_of_8(block, part));
}
// For q6_k: 16 signed bytes.
[[gnu::always_inline]] inline Vec16 signed_of_16(const BlockBytes& block, int64_t i) {
  const Bits16 both = block.scales_2(static_cast<int>(i / 2));
  return from_signed(both >> static_cast<int>(i % 2 * 8));
}
[[gnu::always_inline]] inline Vec16 signed_scale_of_16(const BlockBytes& block, int64_t i) {
  return block.f16_scales(8) * signed_of_16(block, i);
}
// For q2_k: 16 bytes of a scale and a minimum.
[[gnu::always_inline]] inline Vec16 low_of_16(const BlockBytes& block, int64_t i) {
  return from_integer(low_bits<4>(block.scale_byte(static_cast<int>(i))));
}
[[gnu::always_inline]] inline Vec16 high_of_16(const BlockBytes& block, int64_t i) {
  return from_integer(block.scale_byte(static_cast<int>(i)) >> 4);
}
[[gnu::always_inline]] inline Vec16 scale_of_16(const BlockBytes& block, int64_t i) {
  return from_f16(low_bits<16>(block.scales_4(4))) * low_of_16(block, i);
}
[[gnu::always_inline]] inline Vec16 plus_of_16(const BlockBytes& block, int64_t i) {
  return from_f16(block.scales_4(4) >> 16) * (splat(0) - high_of_16(block, i));
}
// For q3_k: 16 scales of 6 bits.
[[gnu::always_inline]] inline Vec16 six_bits_of_16(const BlockBytes& block, int64_t which) {
  const int i = static_cast<int>(which);
  const auto byte = [&](int b) { return block.scales_2(b / 2) >> b % 2 * 8; };
  const Bits16 low = low_bits<4>(byte(i % 8) >> i / 8 * 4);
  const Bits16 high = low_bits<2>(byte(8 + i % 4) >> i / 4 * 2);
  return from_integer(low | high << 4) - splat(32);
}
[[gnu::always_inline]] inline Vec16 six_bit_scale_of_16(const BlockBytes& block, int64_t i) {
  return block.f16_scales(6) * six_bits_of_16(block, i);
}

// ---- Integers

// Integers of 4 bits: those of the last 8 pairs are the upper halves of the first ones' bytes.
struct FourBits {
  explicit FourBits(const BlockBytes& block) : block_(block) {}
  Bits16 integers(int i, int h) const {
    const Bits16 both = block_.fours(i % 2, h);
    return low_bits_of_bytes<4>(i < 2 ? both : both >> 4);
  }
  const BlockBytes& block_;
};
// The same with fifth bits before them.
struct FiveBits : FourBits {
  explicit FiveBits(const BlockBytes& block) : FourBits(block) {
    alignas(64) static constexpr uint32_t kOddElement[16] = {0, 1, 0, 1, 0, 1, 0, 1,
                                                             0, 1, 0, 1, 0, 1, 0, 1};
    const Bits16 odd = load_bits(kOddElement);
    high_[0] = lower_twice(block.lead()) >> odd;
    high_[1] = upper_twice(block.lead()) >> odd;
  }
  [[gnu::always_inline]] Bits16 integers(int i, int h) const {
    // Bits 0, 2, 4 and 6 of byte i; carried to bit 7 of a byte each.
    const Bits16 bits = all_bytes(high_[h], i) & splat_bits(0x40100401);
    const Bits16 carried = bits + splat_bits(0x40707c7f);
    return FourBits::integers(i, h) | ((carried >> 3) & splat_bits(0x10101010));
  }
  // Byte i of each lane in all of its bytes.
  static Bits16 all_bytes(Bits16 x, int i) {
    alignas(16) static constexpr uint8_t kFirst[16] = {0, 0, 0, 0, 4,  4,  4,  4,
                                                       8, 8, 8, 8, 12, 12, 12, 12};
    return lookup_bytes(x, four_times(kFirst) + splat_bits(0x01010101u * static_cast<uint32_t>(i)));
  }
  Bits16 high_[2];
};

// Codes of 4 bits that stand for bytes with a sign.
struct UnevenSteps : FourBits {
  explicit UnevenSteps(const BlockBytes& block) : FourBits(block) {}
  Bits16 integers(int i, int h) const {
    alignas(16) static constexpr int8_t kSteps[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                                      1,    13,   25,  38,  53,  69,  89,  113};
    return lookup_bytes(four_times(kSteps), FourBits::integers(i, h));
  }
};
// Twice those of mxfp4, and 12, so that none has a sign.
struct StepsFrom12 : FourBits {
  explicit StepsFrom12(const BlockBytes& block) : FourBits(block) {}
  Bits16 integers(int i, int h) const {
    alignas(16) static constexpr uint8_t kSteps[16] = {12, 13, 14, 15, 16, 18, 20, 24,
                                                       12, 11, 10, 9,  8,  6,  4,  0};
    return lookup_bytes(four_times(kSteps), FourBits::integers(i, h));
  }
};

// Some bits of 32 bytes, from a bit on that a leaf has.
template <int kBits>
class SomeBits {
 public:
  SomeBits(const BlockBytes& block, int64_t first_byte, int64_t shift)
      : block_(block),
        first_(static_cast<int>(first_byte / 8)),
        shift_(splat_bits(static_cast<uint32_t>(shift))) {}
  Bits16 integers(int i, int h) const { return low_bits_of_bytes<kBits>(lowest(i, h)); }
  // The same with other bits above them.
  Bits16 lowest(int i, int h) const { return block_.fours(first_ + i, h) >> shift_; }

 private:
  const BlockBytes& block_;
  int first_;
  Bits16 shift_;
};

// The integers of a leaf of eight, each from where it stands in a block.
struct FourOf64 : SomeBits<4> {
  FourOf64(const BlockBytes& block, int64_t leaf) : SomeBits(block, leaf / 2 * 32, leaf % 2 * 4) {}
};
struct FiveOf64 {
  FiveOf64(const BlockBytes& block, int64_t leaf)
      : low_(block, 32 + leaf / 2 * 32, leaf % 2 * 4), high_(block, 0, leaf) {}
  [[gnu::always_inline]] Bits16 integers(int i, int h) const {
    return low_.integers(i, h) | high_.integers(i, h) << 4;
  }
  SomeBits<4> low_;
  SomeBits<1> high_;
};
struct SixOf128 {
  SixOf128(const BlockBytes& block, int64_t leaf)
      : low_(block, leaf / 4 * 64 + leaf % 2 * 32, leaf % 4 / 2 * 4),
        high_(block, 128 + leaf / 4 * 32, leaf % 4 * 2) {}
  [[gnu::always_inline]] Bits16 integers(int i, int h) const {
    return low_.integers(i, h) | high_.integers(i, h) << 4;
  }
  SomeBits<4> low_;
  SomeBits<2> high_;
};
struct TwoOf128 : SomeBits<2> {
  TwoOf128(const BlockBytes& block, int64_t leaf) : SomeBits(block, leaf / 4 * 32, leaf % 4 * 2) {}
};
// With third bits of which one that is unset stands for 4 less.
struct ThreeOf128 {
  ThreeOf128(const BlockBytes& block, int64_t leaf)
      : low_(block, 32 + leaf / 4 * 32, leaf % 4 * 2), third_(block, 0, leaf) {}
  [[gnu::always_inline]] Bits16 integers(int i, int h) const {
    return low_.integers(i, h) | third_.integers(i, h) << 2;
  }
  SomeBits<2> low_;
  SomeBits<1> third_;
};

}  // namespace

}  // namespace invar::cpu
