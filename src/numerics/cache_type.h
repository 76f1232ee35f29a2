// What the KV cache stores of keys and values in 8 bits (numerics 4.2): the executable definition.
#pragma once

#include "numerics/dtype.h"

namespace invar {

// f32: of the weight mode exact alone.
enum class CacheType : uint8_t { bf16, int8, fp8_e4m3, f32 };

// As --kv-cache-dtype has it.
constexpr std::string_view name_of(CacheType type) {
  return type == CacheType::int8 ? "int8" : type == CacheType::fp8_e4m3 ? "fp8_e4m3" : "bf16";
}

namespace e4m3 {

// A finite bf16 to the nearest, ties to even; what is larger than 448 becomes 448.
constexpr uint8_t from_bf16(bf16_t x) {
  const uint32_t bits = static_cast<uint32_t>(x & 0x7fff) << 16;
  const uint32_t sign = (x >> 8) & 0x80;
  const float magnitude = std::bit_cast<float>(bits);
  if (magnitude >= 448.0f) return static_cast<uint8_t>(sign | 0x7e);
  if (magnitude < 0x1p-6f)  // multiples of 2^-9
    return static_cast<uint8_t>(sign | std::bit_cast<uint32_t>((magnitude + 0x1.8p14f)) % 16);
  const uint32_t rounded = bits + 0x7ffff + ((bits >> 20) & 1);
  return static_cast<uint8_t>(sign | ((rounded >> 20) - (120 << 3)));
}

// Exactly.
constexpr bf16_t to_bf16(uint8_t x) {
  const uint32_t sign = (x & 0x80u) << 24, magnitude = x & 0x7f;
  const uint32_t bits = magnitude >= 8
                            ? (magnitude + (120 << 3)) << 20
                            : std::bit_cast<uint32_t>(static_cast<float>(magnitude) * 0x1p-9f);
  return static_cast<bf16_t>((sign | bits) >> 16);
}

}  // namespace e4m3

}  // namespace invar
