// How a run of bf16 becomes integers (numerics 2.1).
#pragma once

#include <cstdint>

#include "kernels/cuda/elementwise.cuh"

namespace invar::cuda {

// The largest magnitude of two elements, as bits of bf16.
__device__ __forceinline__ int larger(uint32_t word) {
  return max(static_cast<int>(word & 0x7fff), static_cast<int>(word >> 16 & 0x7fff));
}
// Of eight, and of what came before.
__device__ __forceinline__ int largest_of(int before, uint4 v) {
  return max(max(max(before, larger(v.x)), larger(v.y)), max(larger(v.z), larger(v.w)));
}

// The scale of numbers up to kLargest that stand for a run or a group, from the bits of its largest
// magnitude.
template <int kLargest>
struct NumberScale {
  bool is_finite;
  float scale;

  __device__ __forceinline__ explicit NumberScale(int largest) : is_finite(largest < 0x7f80) {
    scale = __fdiv_rn(bf16_to_f32(static_cast<bf16_t>(largest)), static_cast<float>(kLargest));
    if (scale == 0.0f) scale = 1.0f;
  }
  __device__ __forceinline__ float stored() const {
    return is_finite ? scale : __uint_as_float(0x7fffffff);
  }
};

// The scale of integers.
struct RowScale : NumberScale<127> {
  float inverse;

  __device__ __forceinline__ explicit RowScale(int largest)
      : NumberScale(largest), inverse(is_finite ? 1.0f / scale : 0.0f) {}
  // Element 0 or 1 of a word; those of a run that is not finite are zeros.
  __device__ __forceinline__ int quantised(uint32_t word, int i) const {
    return __float2int_rn(bf16_to_f32(static_cast<bf16_t>(word >> 16 * i)) * inverse);
  }
  // Four elements as bytes.
  __device__ __forceinline__ uint32_t four(uint32_t low, uint32_t high) const {
    if (!is_finite) return 0;
    const auto byte = [&](uint32_t word, int i) {
      return static_cast<uint32_t>(quantised(word, i)) & 0xff;
    };
    return byte(low, 0) | byte(low, 1) << 8 | byte(high, 0) << 16 | byte(high, 1) << 24;
  }
};

}  // namespace invar::cuda
