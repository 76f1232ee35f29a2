#include "weights/tensor_source.h"

#include <immintrin.h>

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "base/error.h"
#include "numerics/blocks.h"

namespace invar {

int64_t TensorInfo::elements() const {
  int64_t product = 1;
  for (const int64_t size : shape) product *= size;
  return product;
}

int64_t TensorInfo::row_elements() const {
  int64_t product = 1;
  for (size_t i = 1; i < shape.size(); ++i) product *= shape[i];
  return product;
}

void TensorSource::read_rows(std::string_view name, int64_t first_row, int64_t rows, DType as,
                             void* out) const {
  const int64_t width = info(name).row_elements();
  read(name, first_row * width, rows * width, as, out);
}

void TensorSource::read_row_scales(std::string_view name, int64_t, int64_t, float*) const {
  fail("{}: expected elements of BF16, F16 or F32, found I8 without scales", where(name));
}

namespace {

constexpr int64_t kBlock = 4096;  // elements handled at once, so that they stay in the first cache

template <typename T>
T load(const void* data, int64_t index) {
  T value;
  std::memcpy(&value, static_cast<const char*>(data) + index * sizeof(T), sizeof(T));
  return value;
}

template <typename T>
void store(void* data, int64_t index, T value) {
  std::memcpy(static_cast<char*>(data) + index * sizeof(T), &value, sizeof(T));
}

void widen_bf16(const void* from, int64_t count, void* to) {
  for (int64_t i = 0; i < count; ++i)
    store(to, i, static_cast<uint32_t>(load<uint16_t>(from, i)) << 16);
}

// The hardware's conversion is exact too; it ignores the denormals-are-zero mode.
void widen_f16(const void* from, int64_t count, void* to) {
  int64_t i = 0;
  for (; i + 8 <= count; i += 8) {
    const __m128i halves =
        _mm_loadu_si128(reinterpret_cast<const __m128i*>(static_cast<const char*>(from) + i * 2));
    _mm256_storeu_ps(reinterpret_cast<float*>(static_cast<char*>(to) + i * 4),
                     _mm256_cvtph_ps(halves));
  }
  for (; i < count; ++i) store(to, i, f16_to_f32(load<uint16_t>(from, i)));
}

void round_f32(const void* from, int64_t count, void* to) {
  for (int64_t i = 0; i < count; ++i) store(to, i, f32_to_bf16(load<float>(from, i)));
}

void expand_blocks(const void* from, const StorageType& type, int64_t count, DType to_type,
                   void* to) {
  const auto* block = static_cast<const uint8_t*>(from);
  float elements[kMaxBlock];
  for (int64_t i = 0; i < count; i += type.block, block += type.bytes()) {
    expand_block(type, block + type.scale_bytes, block, elements);
    for (int j = 0; j < type.block; ++j) {
      const bf16_t element = f32_to_bf16(elements[j]);
      if (to_type == DType::bf16)
        store(to, i + j, element);
      else
        store(to, i + j, bf16_to_f32(element));
    }
  }
}

}  // namespace

void convert_elements(const void* from, DType from_type, int64_t count, DType to_type, void* to) {
  if (from_type == to_type) {
    std::memcpy(to, from, static_cast<size_t>(bytes_of(to_type, count)));
  } else if (from_type == DType::i8 || to_type == DType::i8) {
    fail("expected elements of BF16, F16 or F32, found I8 without scales");
  } else if (storage_of(from_type).has_blocks()) {
    CHECK(!storage_of(to_type).has_blocks() && to_type != DType::f16, "nothing is put into blocks");
    expand_blocks(from, storage_of(from_type), count, to_type, to);
  } else if (to_type == DType::f32) {
    (from_type == DType::bf16 ? widen_bf16 : widen_f16)(from, count, to);
  } else {
    CHECK(to_type == DType::bf16, "nothing is converted to f16");
    if (from_type == DType::f32) return round_f32(from, count, to);
    float wide[kBlock];
    for (int64_t i = 0; i < count; i += kBlock) {
      const int64_t n = std::min(kBlock, count - i);
      widen_f16(static_cast<const char*>(from) + i * 2, n, wide);
      round_f32(wide, n, static_cast<char*>(to) + i * 2);
    }
  }
}

namespace {

// Whether some element's exponent is all ones. (A maximum, since compilers make vectors of it.)
template <typename T, T exponent>
bool any_non_finite(const void* data, int64_t begin, int64_t end) {
  T largest = 0;
  for (int64_t i = begin; i < end; ++i) largest = std::max<T>(largest, load<T>(data, i) & exponent);
  return largest == exponent;
}

bool any_non_finite(const void* data, DType type, int64_t begin, int64_t end) {
  if (type == DType::f32) return any_non_finite<uint32_t, 0x7f800000>(data, begin, end);
  if (type == DType::f16) return any_non_finite<uint16_t, 0x7c00>(data, begin, end);
  return any_non_finite<uint16_t, 0x7f80>(data, begin, end);
}

// Whether every block is one by is_finite_block, without a branch for each.
bool are_finite_blocks(const uint8_t* block, DType type, int64_t blocks) {
  const StorageType storage = storage_of(type);
  const int bytes = storage.bytes();
  // The byte that tells: an f16's upper one, mxfp4's exponent, that of an f32.
  struct Byte {
    int count, at;
    uint8_t mask, limit;
  };
  const Byte byte = type == DType::mxfp4 ? Byte{1, 0, 0xff, 253}
                    : is_e4m3(type)      ? Byte{1, 3, 0x7f, 0x7b}
                                         : Byte{storage.halves, storage.halves_at + 1, 0x7c, 0x7c};
  uint8_t largest = 0;
  for (int i = 0; i < byte.count; ++i)
    for (int64_t b = 0; b < blocks; ++b)
      largest = std::max<uint8_t>(largest, block[b * bytes + byte.at + 2 * i] & byte.mask);
  return largest < byte.limit;
}

// The same of whole blocks: of the bf16 that they stand for.
int64_t first_non_finite_in_blocks(const void* data, DType type, int64_t count) {
  const StorageType& storage = storage_of(type);
  const auto* block = static_cast<const uint8_t*>(data);
  if (are_finite_blocks(block, type, count / storage.block)) return -1;
  for (int64_t begin = 0; begin < count; begin += storage.block, block += storage.bytes()) {
    if (is_finite_block(type, block)) continue;
    bf16_t elements[kMaxBlock];
    convert_elements(block, type, storage.block, DType::bf16, elements);
    const int64_t index = first_non_finite(elements, DType::bf16, storage.block);
    if (index >= 0) return begin + index;
  }
  return -1;
}

}  // namespace

int64_t first_non_finite(const void* data, DType type, int64_t count) {
  if (type == DType::i8) return -1;
  if (storage_of(type).has_blocks()) return first_non_finite_in_blocks(data, type, count);
  for (int64_t begin = 0; begin < count; begin += kBlock) {
    const int64_t end = std::min(begin + kBlock, count);
    if (!any_non_finite(data, type, begin, end)) continue;
    for (int64_t i = begin; i < end; ++i)
      if (any_non_finite(data, type, i, i + 1)) return i;
  }
  return -1;
}

void check_finite(const TensorSource& source, std::string_view name, ThreadPool& pool) {
  const TensorInfo& info = source.info(name);
  std::vector<int64_t> found(pool.size(), -1);
  run_or_throw(pool, [&](Part part) {
    const auto run = part.of(info.elements(), kBlock);
    alignas(64) std::byte block[kBlock * 4];
    for (int64_t i = run.begin; i < run.end && found[part.index] < 0; i += kBlock) {
      const int64_t n = std::min(kBlock, run.end - i);
      source.read(name, i, n, info.dtype, block);
      const int64_t index = first_non_finite(block, info.dtype, n);
      if (index >= 0) found[part.index] = i + index;
    }
  });
  for (const int64_t index : found)  // shares ascend, so the first found is the first of all
    if (index >= 0) fail_non_finite(source, name, index);
}

void fail_non_finite(const TensorSource& source, std::string_view name, int64_t index) {
  const TensorInfo& info = source.info(name);
  const int64_t block = storage_of(info.dtype).block;
  float values[kMaxBlock];
  source.read(name, index / block * block, block, DType::f32, values);
  const int64_t width = std::max<int64_t>(info.row_elements(), 1);
  fail("{}: expected finite weights, found {} in row {}, column {}", source.where(name),
       values[index % block], index / width, index % width);
}

}  // namespace invar
