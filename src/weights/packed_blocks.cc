// A matrix as blocks of a storage type, where these hold its very elements.
#include <cstring>

#include "base/error.h"
#include "weights/packed_parts.h"

namespace invar {

using packed::Kind, packed::number, packed::Raw, packed::word;

bool PackedMatrix::has_fp8_blocks(const PackedFormat& format, int64_t columns) {
  const int64_t block = storage_of(DType::e4m3).block;
  return format.kind == Kind::fp8 && format.group % block == 0 && columns % block == 0;
}
bool PackedMatrix::has_fp8_rows(const PackedFormat& format, int64_t columns) {
  return has_fp8_blocks(format, columns) && format.group == 0;
}

namespace {

// Whether every column has its place's group.
bool is_in_order(const Raw& order, int64_t group) {
  if (order.dtype != "I32") return false;
  for (int64_t i = 0; i < std::ssize(order.bytes) / 4; ++i)
    if (word(order, i) != static_cast<uint32_t>(group ? i / group : 0)) return false;
  return true;
}

bool are_f16(const Raw& scales) {
  const int64_t count = std::ssize(scales.bytes) / (scales.dtype == "F32" ? 4 : 2);
  for (int64_t i = 0; i < count; ++i)
    if (const float s = number(scales, i); f16_to_f32(f32_to_f16(s)) != s) return false;
  return true;
}

}  // namespace

DType PackedMatrix::block_type(const PackedFormat& format, const TensorSource& source,
                               const RawTensors& raw, const std::string& module, int64_t columns) {
  const bool is_integer = format.kind != Kind::fp8 && format.kind != Kind::nf4;
  const DType type = format.bits == 8      ? DType::q8_0
                     : format.is_symmetric ? DType::q4_0
                                           : DType::q5_0;
  const int64_t block = storage_of(type).block;
  if (!is_integer || (type == DType::q8_0 && !format.is_symmetric) || columns % block ||
      format.group % block)
    return DType::bf16;
  const std::string order = module + (format.kind == Kind::gptq ? "g_idx" : "weight_g_idx");
  if (source.has(order) ? !is_in_order(raw.read_raw(order), format.group) : format.has_order)
    return DType::bf16;
  const Raw scales = raw.read_raw(module + format.scale, false);
  if (scales.dtype == "F16") return type;
  const bool is_float = scales.dtype == "BF16" || scales.dtype == "F32";
  return is_float && are_f16(raw.read_raw(module + format.scale)) ? type : DType::bf16;
}

void PackedMatrix::blocks(DType type, int64_t row, int64_t first, int64_t count,
                          uint8_t* out) const {
  const StorageType& storage = storage_of(type);
  for (int64_t b = first; b < first + count; ++b, out += storage.bytes())
    is_e4m3(type) ? fp8_block(row, b * storage.block, out)
                  : integer_block(type, row, b * storage.block, out);
}

void PackedMatrix::fp8_block(int64_t row, int64_t column, uint8_t* out) const {
  const StorageType& storage = storage_of(DType::e4m3);
  const float factor = scale(row, group_of(column));
  std::memcpy(out, &factor, sizeof factor);
  const auto* values =
      reinterpret_cast<const uint8_t*>(elements_.bytes.data()) + row * columns_ + column;
  for (int i = 0; i < storage.block; ++i)
    if ((values[i] & 0x7f) == 0x7f)
      fail("expected finite weights, found NaN in row {}, column {}", row, column + i);
  std::memcpy(out + storage.scale_bytes, values, static_cast<size_t>(storage.block));
}

// ggml's blocks: an f16 scale; in q5_0 a fifth bit of each element; a byte for each of 32 elements,
// or one for the first and the last 16. Stored integers are above zero but for q8_0.
void PackedMatrix::integer_block(DType type, int64_t row, int64_t column, uint8_t* out) const {
  const int64_t group = group_of(column);
  const uint16_t factor = f32_to_f16(scale(row, group));
  std::memcpy(out, &factor, sizeof factor);
  const int least = type == DType::q8_0 ? 0 : type == DType::q4_0 ? -8 : -16;
  const int less = zero(row, group) + least;
  uint8_t* values = out + sizeof factor + storage_of(type).lead;
  int q[32];
  elements(row, column, 32, q);
  uint32_t fifth = 0;
  for (int i = 0; i < 32; ++i) {
    const int value = q[i] - less;
    fifth |= static_cast<uint32_t>(value >> 4 & 1) << i;
    if (type == DType::q8_0)
      values[i] = static_cast<uint8_t>(value);
    else if (i < 16)
      values[i] = static_cast<uint8_t>(value & 15);
    else
      values[i - 16] |= static_cast<uint8_t>((value & 15) << 4);
  }
  if (type == DType::q5_0) std::memcpy(out + sizeof factor, &fifth, sizeof fifth);
}

}  // namespace invar
