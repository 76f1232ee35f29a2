#include "weights/gguf_writer.h"

#include <algorithm>
#include <cstring>
#include <filesystem>

#include "base/atomic_file.h"
#include "base/check.h"
#include "base/error.h"
#include "numerics/quantise.h"
#include "weights/gguf.h"

namespace invar {

namespace {

constexpr int64_t kAlignment = 32;
constexpr int64_t kInHand = 1 << 16;  // elements that one thread has in hand

// The types of values.
constexpr uint32_t kU32 = 4, kI32 = 5, kF32 = 6, kBool = 7, kText = 8, kArray = 9;

template <typename T>
void append(std::string& out, T value) {
  char bytes[sizeof(T)];
  std::memcpy(bytes, &value, sizeof(T));
  out.append(bytes, sizeof(T));
}

void append_text(std::string& out, std::string_view text) {
  append<uint64_t>(out, text.size());
  out += text;
}

uint32_t type_of(const json::Value& value, GgufKey::Number number) {
  if (value.is_string()) return kText;
  if (value.is_bool()) return kBool;
  if (value.is_array()) return kArray;
  return number == GgufKey::Number::u32 ? kU32 : number == GgufKey::Number::i32 ? kI32 : kF32;
}

void append_value(std::string& out, const json::Value& value, GgufKey::Number number) {
  switch (type_of(value, number)) {
    case kText:
      return append_text(out, value.as_string());
    case kBool:
      return append<uint8_t>(out, value.as_bool());
    case kU32:
      return append<uint32_t>(out, static_cast<uint32_t>(value.as_integer()));
    case kI32:
      return append<int32_t>(out, static_cast<int32_t>(value.as_integer()));
    case kF32:
      return append<float>(out, static_cast<float>(value.as_number()));
    default:
      break;
  }
  const json::Array& list = value.as_array();
  append<uint32_t>(out, type_of(list.empty() ? json::Value("") : list[0], number));
  append<uint64_t>(out, list.size());
  for (const json::Value& one : list) append_value(out, one, number);
}

int64_t padded(int64_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

int64_t stored_bytes(const GgufItem& item, const TensorSource& source) {
  return bytes_of(item.type, source.info(item.source).elements());
}

// All before the tensors' bytes, padded.
std::string header_of(const GgufContent& content, const TensorSource& source) {
  std::string out = "GGUF";
  append<uint32_t>(out, 3);
  append<uint64_t>(out, content.tensors.size());
  append<uint64_t>(out, content.metadata.size());
  for (const GgufKey& key : content.metadata) {
    append_text(out, key.name);
    append<uint32_t>(out, type_of(key.value, key.number));
    append_value(out, key.value, key.number);
  }
  int64_t offset = 0;
  for (const GgufItem& item : content.tensors) {
    const std::vector<int64_t>& shape = source.info(item.source).shape;
    append_text(out, item.name);
    append<uint32_t>(out, static_cast<uint32_t>(shape.size()));
    for (auto size = shape.rbegin(); size != shape.rend(); ++size)
      append<uint64_t>(out, static_cast<uint64_t>(*size));
    append<uint32_t>(out, ggml_type_of(item.type).id);
    append<uint64_t>(out, static_cast<uint64_t>(offset));
    offset += padded(stored_bytes(item, source));
  }
  out.append(static_cast<size_t>(padded(std::ssize(out)) - std::ssize(out)), '\0');
  return out;
}

// Elements as the file has them. Blocks have their scales first in files of the types that can be
// made.
void read_as(const TensorSource& source, const GgufItem& item, int64_t first, int64_t count,
             std::vector<float>& wide, std::byte* out) {
  const StorageType& storage = storage_of(item.type);
  if (!storage.has_blocks()) return source.read(item.source, first, count, item.type, out);
  CHECK(ggml_type_of(item.type).scales_before == storage.scale_bytes, "scales stand elsewhere");
  wide.resize(static_cast<size_t>(count));
  source.read(item.source, first, count, DType::f32, wide.data());
  if (const int64_t bad = first_non_finite(wide.data(), DType::f32, count); bad >= 0)
    fail_non_finite(source, item.source, first + bad);
  auto* block = reinterpret_cast<uint8_t*>(out);
  for (int64_t i = 0; i < count; i += storage.block, block += storage.bytes())
    put_into_block(item.type, &wide[static_cast<size_t>(i)], block);
}

void write_tensor(AtomicFile& file, int64_t offset, const GgufItem& item,
                  const TensorSource& source, ThreadPool& pool) {
  run_or_throw(pool, [&](Part part) {
    const auto bytes = [&](int64_t n) { return static_cast<size_t>(bytes_of(item.type, n)); };
    const auto run = part.of(source.info(item.source).elements(), kInHand);
    std::vector<std::byte> stored(bytes(kInHand));
    std::vector<float> wide;
    for (int64_t i = run.begin; i < run.end; i += kInHand) {
      const int64_t count = std::min(kInHand, run.end - i);
      read_as(source, item, i, count, wide, stored.data());
      file.write_at(offset + bytes_of(item.type, i), std::span(stored).first(bytes(count)));
    }
  });
}

}  // namespace

void write_gguf(const std::string& path, const GgufContent& content, const TensorSource& source,
                ThreadPool& pool, const std::function<void(int64_t, int64_t)>& progress) {
  std::error_code ignored;
  if (std::filesystem::exists(path, ignored))
    fail("{}: expected a new file, found one that stands there already", path);
  const std::string header = header_of(content, source);
  int64_t offset = std::ssize(header), total = offset;
  for (const GgufItem& item : content.tensors) total += padded(stored_bytes(item, source));
  AtomicFile file(path, total);
  file.write_at(0, std::as_bytes(std::span(header)));
  for (const GgufItem& item : content.tensors) {
    write_tensor(file, offset, item, source, pool);
    offset += padded(stored_bytes(item, source));
    if (progress) progress(offset, total);
  }
  file.commit();
}

}  // namespace invar
