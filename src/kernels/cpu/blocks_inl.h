// Leaves of a panel of blocks as a panel of bf16, in registers: numerics/blocks.h on the vector
// sets. Included after a vec16 header and vec16_math.h.
#pragma once

#include "kernels/cpu/panel_product.h"

namespace invar::cpu {

namespace {

// A leaf is a block: its 16 scales, and for each of its 16 pairs those of 16 outputs.
inline void expand_q8_0(const char* values, const char* scales, int64_t leaf, int64_t leaves,
                        char* out) {
  const uint16_t* pairs = reinterpret_cast<const uint16_t*>(values) + leaf * 256;
  const uint16_t* scale = reinterpret_cast<const uint16_t*>(scales) + leaf * 16;
  // An integer from its byte: 2^23 + 128 + it has it in its last bits.
  const auto number = [](Bits16 byte) {
    const Bits16 above = (byte + splat_bits(128)) & splat_bits(0xff);
    return value_of(above | splat_bits(0x4b000000)) - splat(0x1p23f + 128);
  };
  for (; leaves > 0; --leaves, scale += 16) {
    const Vec16 d = load_f16(scale);
    for (int j = 0; j < 16; ++j, pairs += 16, out += 64) {
      const Bits16 both = load_u16(pairs);
      const Bits16 even = to_bf16(d * number(both)), odd = to_bf16(d * number(both >> 8));
      store_bits(out, even | (odd << 16));
    }
  }
}

// Null for types without blocks.
inline ExpandPanel expander_of(DType type) {
  switch (type) {
    case DType::q8_0:
      return expand_q8_0;
    default:
      return nullptr;
  }
}

}  // namespace

}  // namespace invar::cpu
