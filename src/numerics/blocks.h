// What a block of elements stands for: the definition of every storage type that has blocks. Also
// runs on GPUs.
#pragma once

#include "numerics/dtype.h"

namespace invar {

namespace blocks {

constexpr float f16_at(const uint8_t* bytes) {
  return f16_to_f32(static_cast<uint16_t>(bytes[0] | bytes[1] << 8));
}

// d * q, exact in f32.
constexpr void q8_0(const uint8_t* q, const uint8_t* d, float* out) {
  for (int i = 0; i < 32; ++i) out[i] = f16_at(d) * static_cast<float>(static_cast<int8_t>(q[i]));
}

}  // namespace blocks

// The elements of one block in f32, before the one rounding to bf16 (numerics 0.1).
constexpr void expand_block(DType type, const uint8_t* values, const uint8_t* scales, float* out) {
  switch (type) {
    case DType::q8_0:
      return blocks::q8_0(values, scales, out);
    default:  // no block
      break;
  }
}

}  // namespace invar
