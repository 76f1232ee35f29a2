// Number formats and their conversions (numerics 0).
#pragma once

#include <bit>
#include <cstdint>
#include <string_view>

#include "numerics/storage.h"

namespace invar {

// A bfloat16 as its bits: the upper half of a binary32.
using bf16_t = uint16_t;

constexpr const StorageType& storage_of(DType type) {
  return kStorageTypes[static_cast<int>(type)];
}
// Bytes of one element of a type that stores each in bytes of its own.
constexpr int64_t size_of(DType type) {
  return storage_of(type).value_bytes / storage_of(type).block;
}
// Bytes of so many elements: whole blocks.
constexpr int64_t bytes_of(DType type, int64_t elements) {
  const StorageType& storage = storage_of(type);
  return elements / storage.block * storage.bytes();
}
// Whether the element is a number of e4m3, stored beside a scale.
constexpr bool is_e4m3(DType type) {
  return type == DType::e4m3 || type == DType::e4m3_row;
}
// Whether the element of a product is this itself, and what it meets is made such numbers (numerics
// 2.1, 2.2, 2.5).
constexpr bool is_quantised(DType type) {
  return type == DType::i8 || is_e4m3(type);
}
constexpr std::string_view name_of(DType type) {
  return storage_of(type).name;
}

constexpr float bf16_to_f32(bf16_t x) {
  return std::bit_cast<float>(static_cast<uint32_t>(x) << 16);
}

// Round to nearest even; subnormal -> signed zero, NaN -> 0x7fff. This is VCVTNEPS2BF16.
constexpr bf16_t f32_to_bf16(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  const uint32_t magnitude = bits & 0x7fffffff;
  if (magnitude > 0x7f800000) return 0x7fff;
  if (magnitude < 0x00800000) return static_cast<bf16_t>((bits >> 16) & 0x8000);
  return static_cast<bf16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

// Every binary16 is exact in binary32, subnormals included.
constexpr float f16_to_f32(uint16_t x) {
  const uint32_t sign = static_cast<uint32_t>(x & 0x8000) << 16;
  const uint32_t exponent = (x >> 10) & 31, mantissa = x & 0x3ff;
  if (exponent == 31) return std::bit_cast<float>(sign | 0x7f800000 | mantissa << 13);
  if (exponent) return std::bit_cast<float>(sign | (exponent + 112) << 23 | mantissa << 13);
  const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
  return sign ? -magnitude : magnitude;
}
// Round to nearest even; NaN keeps being NaN.
uint16_t f32_to_f16(float x);

// A key or value as the cache may have it: finite. NaN -> +0, infinities -> the largest finite bf16
// (numerics 4).
constexpr bf16_t f32_to_cached_bf16(float x) {
  const bf16_t y = f32_to_bf16(x);
  if ((y & 0x7fff) > 0x7f80) return 0;
  if ((y & 0x7fff) == 0x7f80) return static_cast<bf16_t>((y & 0x8000) | 0x7f7f);
  return y;
}

// The same where the cache holds f32: NaN -> +0, infinities -> the largest finite one.
constexpr float f32_to_cached_f32(float x) {
  constexpr float kLargest = 0x1.fffffep127f;
  return x != x ? 0.0f : x > kLargest ? kLargest : x < -kLargest ? -kLargest : x;
}

}  // namespace invar
