// The values of a block of elements: the definition of every storage type that has blocks (numerics
// 0.1). Also runs on GPUs.
//
// Each format is a function of the values q and the scales s of a block, and of an element's
// number. Products are exact in f32; where something is added, that rounds once.
#pragma once

#include "numerics/e4m3.h"

namespace invar {

namespace blocks {

constexpr float f16_at(const uint8_t* bytes) {
  return f16_to_f32(static_cast<uint16_t>(bytes[0] | bytes[1] << 8));
}

// ---- Blocks of 32

// Integers of 4 bits: of 16 bytes the lower halves, then the upper ones.
constexpr int four_bits(const uint8_t* q, int i) {
  return i < 16 ? q[i] & 15 : q[i - 16] >> 4;
}
// The same with fifth bits, one after the other in the 4 bytes before them.
constexpr int five_bits(const uint8_t* q, int i) {
  return four_bits(q + 4, i) | (q[i / 8] >> i % 8 & 1) << 4;
}
// The values of the 16 codes of iq4_nl: -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38,
// 53, 69, 89, 113.
constexpr int uneven_step(int code) {
  constexpr uint64_t low = 0xf6eaddcfbfad9881u, high = 0x7159453526190d01u;  // a byte for each
  return static_cast<int8_t>((code < 8 ? low >> 8 * code : high >> 8 * (code - 8)) & 0xff);
}
// Twice what those of mxfp4 do: 0, 1, 2, 3, 4, 6, 8, 12, then the same negative.
constexpr int twice_step(int code) {
  const int twice = code & 4 ? (code & 2 ? 8 + 4 * (code & 1) : 4 + 2 * (code & 1)) : code & 3;
  return code & 8 ? -twice : twice;
}
// A step times 2^(s[0] - 127), by their bits: no subnormal number meets an operation, and a step of
// 0 has a sign. s[0] = 255 is NaN.
constexpr float mxfp4(const uint8_t* q, const uint8_t* s, int i) {
  const int code = four_bits(q, i), twice = twice_step(code & 7);
  const uint32_t sign = static_cast<uint32_t>(code & 8) << 28, infinity = 0x7f800000;
  const uint32_t bits = std::bit_cast<uint32_t>(static_cast<float>(twice));
  const int exponent = static_cast<int>(bits >> 23) + s[0] - 128;
  if (s[0] == 255) return std::bit_cast<float>(infinity | 0x400000);
  if (twice == 0 || exponent < 1) return std::bit_cast<float>(sign);
  if (exponent > 254) return std::bit_cast<float>(sign | infinity);
  return std::bit_cast<float>(sign | static_cast<uint32_t>(exponent) << 23 | (bits & 0x7fffff));
}
// 2^(s - 128), and zero where that is subnormal.
constexpr float half_power(int s) {
  return s < 2 ? 0.0f : std::bit_cast<float>(static_cast<uint32_t>(s - 1) << 23);
}

// ---- Blocks of 256: f16 numbers and, for parts of 32 or 16 elements, small integers

// Scale and minimum of part j of 8, 6 bits each in 12 bytes.
constexpr int scale_6(const uint8_t* s, int j) {
  return j < 4 ? s[j] & 63 : (s[j + 4] & 15) | s[j - 4] >> 6 << 4;
}
constexpr int minimum_6(const uint8_t* s, int j) {
  return j < 4 ? s[j + 4] & 63 : s[j + 4] >> 4 | s[j] >> 6 << 4;
}
// 64 elements in 32 bytes: the lower halves, then the upper ones.
constexpr int four_of_64(const uint8_t* q, int i) {
  return q[i / 64 * 32 + i % 32] >> (i / 32 % 2 * 4) & 15;
}
// 128 elements in 64 bytes with 4 bits and 32 bytes with the upper 2.
constexpr int six_of_128(const uint8_t* q, int i) {
  const int half = i / 128, quarter = i / 32 % 4, at = i % 32;
  const int low = q[half * 64 + quarter % 2 * 32 + at] >> (quarter / 2 * 4) & 15;
  return low | (q[128 + half * 32 + at] >> 2 * quarter & 3) << 4;
}
// 128 elements in 32 bytes, each with 2 bits of four of them.
constexpr int two_bits(const uint8_t* q, int i) {
  return q[i / 128 * 32 + i % 32] >> (i / 32 % 4 * 2) & 3;
}
// Scale j of 16, 6 bits each: the lower 4 in 8 bytes, the upper 2 in 4.
constexpr int scale_of_16(const uint8_t* s, int j) {
  const int low = s[j % 8] >> j / 8 * 4 & 15;
  return (low | (s[8 + j % 4] >> j / 4 * 2 & 3) << 4) - 32;
}

// ---- A block of 128 numbers of 8 bits with a scale of f32

constexpr float f32_at(const uint8_t* bytes) {
  uint32_t bits = 0;
  for (int i = 3; i >= 0; --i) bits = bits << 8 | bytes[i];
  return std::bit_cast<float>(bits);
}
constexpr float e4m3(const uint8_t* q, const uint8_t* s, int i) {
  return bf16_to_f32(invar::e4m3::to_bf16(q[i])) * f32_at(s);
}

}  // namespace blocks

// Elements that stand side by side share a factor (numerics 2.3): each is factor * its integer, and
// where the type adds something, plus that. Both are exact.
struct BlockPart {
  float factor = 0, plus = 0;
};
// How many elements that are. 0: the type has no such integers. (No look into the table of types,
// as in expand_block.)
constexpr int part_size(DType type) {
  switch (type) {
    case DType::q2_k:
    case DType::q3_k:
    case DType::q6_k:
      return 16;
    case DType::bf16:
    case DType::f16:
    case DType::f32:
    case DType::i8:
    case DType::e4m3:
    case DType::e4m3_row:
      return 0;
    default:
      return 32;
  }
}
constexpr bool adds_something(DType type) {
  return type == DType::q4_1 || type == DType::q5_1 || type == DType::q2_k || type == DType::q4_k ||
         type == DType::q5_k;
}

// The integer of element i of a block.
constexpr int block_integer(DType type, const uint8_t* q, int i) {
  switch (type) {
    case DType::q8_0:
      return static_cast<int8_t>(q[i]);
    case DType::q4_0:
      return blocks::four_bits(q, i) - 8;
    case DType::q4_1:
      return blocks::four_bits(q, i);
    case DType::q5_0:
      return blocks::five_bits(q, i) - 16;
    case DType::q5_1:
      return blocks::five_bits(q, i);
    case DType::q2_k:
      return blocks::two_bits(q, i);
    case DType::q3_k:  // 32 bytes of third bits (unset: 4 less), then the others
      return blocks::two_bits(q + 32, i) - (q[i % 32] >> i / 32 & 1 ? 0 : 4);
    case DType::q4_k:
      return blocks::four_of_64(q, i);
    case DType::q5_k:
      return blocks::four_of_64(q + 32, i) | (q[i % 32] >> i / 32 & 1) << 4;
    case DType::q6_k:
      return blocks::six_of_128(q, i) - 32;
    case DType::iq4_nl:
      return blocks::uneven_step(blocks::four_bits(q, i));
    case DType::mxfp4:
      return blocks::twice_step(blocks::four_bits(q, i));
    case DType::e4m3:
    case DType::e4m3_row:
    case DType::bf16:
    case DType::f16:
    case DType::f32:
    case DType::i8:
      break;
  }
  return 0;
}
// Part j of a block.
constexpr BlockPart block_part(DType type, const uint8_t* s, int j) {
  using blocks::f16_at;
  switch (type) {
    case DType::q8_0:
    case DType::q4_0:
    case DType::q5_0:
    case DType::iq4_nl:
      return {f16_at(s)};
    case DType::q4_1:
    case DType::q5_1:
      return {f16_at(s), f16_at(s + 2)};
    case DType::q2_k:  // for each part a scale in the lower half of a byte, a minimum in the upper
      return {f16_at(s + 16) * static_cast<float>(s[j] & 15),
              -(f16_at(s + 18) * static_cast<float>(s[j] >> 4))};
    case DType::q3_k:
      return {f16_at(s + 12) * static_cast<float>(blocks::scale_of_16(s, j))};
    case DType::q4_k:
    case DType::q5_k:
      return {f16_at(s) * static_cast<float>(blocks::scale_6(s + 4, j)),
              -(f16_at(s + 2) * static_cast<float>(blocks::minimum_6(s + 4, j)))};
    case DType::q6_k:
      return {f16_at(s + 16) * static_cast<float>(static_cast<int8_t>(s[j]))};
    case DType::mxfp4:
      return {blocks::half_power(s[0])};
    case DType::e4m3:
    case DType::e4m3_row:
    case DType::bf16:
    case DType::f16:
    case DType::f32:
    case DType::i8:
      break;
  }
  return {};
}

// Element i of a block in f32, before the one rounding to bf16 (numerics 0.1).
constexpr float block_element(DType type, const uint8_t* values, const uint8_t* scales, int i) {
  if (type == DType::mxfp4) return blocks::mxfp4(values, scales, i);
  if (is_e4m3(type)) return blocks::e4m3(values, scales, i);
  if (part_size(type) == 0) return 0;
  const BlockPart part = block_part(type, scales, i / part_size(type));
  const float scaled = part.factor * static_cast<float>(block_integer(type, values, i));
  return adds_something(type) ? scaled + part.plus : scaled;
}
// All of them. Takes a row of kStorageTypes, since the table itself is no memory of a GPU's: there
// an index that is not a constant makes a kernel that is one trap.
constexpr void expand_block(const StorageType& storage, const uint8_t* values,
                            const uint8_t* scales, float* out) {
  for (int i = 0; i < storage.block; ++i) out[i] = block_element(storage.type, values, scales, i);
}

// Whether all elements of a block are finite: its scales are, and nothing else can make an element
// large enough. (Of the largest scales of mxfp4 and e4m3 some may be and are not said to be;
// numbers of e4m3 that are NaN are refused where they are read.)
constexpr bool is_finite_block(DType type, const uint8_t* scales) {
  if (type == DType::mxfp4) return scales[0] < 253;
  if (is_e4m3(type)) return (scales[3] & 0x7f) < 0x7b;  // below 2^119
  const StorageType& storage = storage_of(type);
  for (int i = 0; i < storage.halves; ++i)
    if ((scales[storage.halves_at + 2 * i + 1] & 0x7c) == 0x7c) return false;
  return true;
}

}  // namespace invar
