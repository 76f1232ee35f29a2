#include <algorithm>
#include <cstring>
#include <map>

#include "base/check.h"
#include "base/error.h"
#include "numerics/blocks.h"
#include "weights/gguf.h"
#include "weights/source_bases.h"

namespace invar {

namespace {

constexpr int64_t kConverted = 1 << 13;  // elements converted at a time: whole blocks of any type

struct GgufEntry {
  const InputFile* file;
  const GgufTensor* tensor;
  TensorInfo info;
};

class GgufSource final : public ListedTensors<GgufEntry> {
 public:
  explicit GgufSource(std::shared_ptr<const GgufFile> file) : file_(std::move(file)) {
    for (const GgufFile::Part& part : file_->parts())
      for (const GgufTensor& tensor : part.header.tensors)
        entries_[tensor.name] = {&part.file, &tensor, {*tensor.stored->type, tensor.shape}};
    list_names();
  }

  bool has_gguf_names() const override { return true; }

  void read(std::string_view name, int64_t first, int64_t count, DType as,
            void* out) const override {
    const GgufEntry& entry = find(name);
    const DType type = entry.info.dtype;
    const int64_t block = storage_of(type).block;
    CHECK(first % block == 0 && count % block == 0, "a part of a block is read");
    auto* target = static_cast<std::byte*>(out);
    if (type == as) return read_stored(entry, first, count, target);
    std::byte stored[kConverted * sizeof(float)];
    for (int64_t i = 0; i < count; i += kConverted) {
      const int64_t n = std::min(kConverted, count - i);
      read_stored(entry, first + i, n, stored);
      convert_elements(stored, type, n, as, target + i * size_of(as));
    }
  }

  std::string where(std::string_view name) const override {
    const auto entry = entries_.find(name);
    const std::string& file = entry == entries_.end() ? file_->path() : entry->second.file->path();
    return fmt::format("{}: tensor {}", file, json::quoted(name));
  }

 private:
  // As they are stored, but the scales of a block first.
  static void read_stored(const GgufEntry& entry, int64_t first, int64_t count, std::byte* out) {
    const GgmlType& stored = *entry.tensor->stored;
    const StorageType& storage = storage_of(*stored.type);
    const std::span bytes(out, static_cast<size_t>(bytes_of(storage.type, count)));
    // At the end of the memory: padding is put in from its beginning on.
    entry.file->read_at(entry.tensor->begin + stored.bytes(first),
                        bytes.last(static_cast<size_t>(stored.bytes(count))));
    if (stored.padding > 0) return pad_scales(stored, storage, bytes);
    if (stored.scales_before == storage.scale_bytes) return;
    const auto before = static_cast<size_t>(stored.scales_before);
    const auto values = static_cast<size_t>(storage.value_bytes);
    const size_t behind = static_cast<size_t>(storage.scale_bytes) - before;
    std::byte scales[kMaxBlockBytes];
    for (std::byte* at = out + before; at < out + bytes.size(); at += storage.bytes()) {
      std::memcpy(scales, at + values, behind);
      std::memmove(at + behind, at, values);
      std::memcpy(at, scales, behind);
    }
  }

  // Blocks whose scales stand in front, at the end of the memory.
  static void pad_scales(const GgmlType& stored, const StorageType& storage,
                         std::span<std::byte> bytes) {
    const auto padding = static_cast<size_t>(stored.padding);
    const size_t scales = static_cast<size_t>(storage.scale_bytes) - padding;
    const auto values = static_cast<size_t>(storage.value_bytes);
    const size_t blocks = bytes.size() / static_cast<size_t>(storage.bytes());
    const std::byte* from = bytes.data() + blocks * padding;
    for (std::byte* to = bytes.data(); to < bytes.data() + bytes.size();
         to += storage.bytes(), from += scales + values) {
      std::memmove(to, from, scales);
      std::memmove(to + scales + padding, from + scales, values);
      std::memset(to + scales, 0, padding);
    }
  }

  std::shared_ptr<const GgufFile> file_;
};

}  // namespace

std::unique_ptr<TensorSource> open_gguf_tensors(std::shared_ptr<const GgufFile> file) {
  return std::make_unique<GgufSource>(std::move(file));
}

}  // namespace invar
