// How elements of bf16 become e4m3 numbers (numerics 2.2, 2.5).
#pragma once

#include <cstdint>

#include "kernels/cuda/int8_rows.cuh"

namespace invar::cuda {

// Four numbers to nearest, ties to even, as bytes.
__device__ __forceinline__ uint32_t four_e4m3(uint2 elements, float inverse) {
  const auto pair = [&](uint32_t word) {
    const float low = __uint_as_float(word << 16) * inverse,
                high = __uint_as_float(word & 0xffff0000) * inverse;
    uint16_t both;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(both) : "f"(high), "f"(low));
    return static_cast<uint32_t>(both);
  };
  return pair(elements.x) | pair(elements.y) << 16;
}

// The scale of e4m3 numbers, whose largest is 448.
struct Fp8Scale : NumberScale<448> {
  float inverse;

  __device__ __forceinline__ explicit Fp8Scale(int largest)
      : NumberScale(largest), inverse(1.0f / scale) {}
  // Four elements as bytes; those of what is not finite are zeros.
  __device__ __forceinline__ uint32_t four(uint32_t low, uint32_t high) const {
    return is_finite ? four_e4m3({low, high}, inverse) : 0;
  }
};

}  // namespace invar::cuda
