#include "weights/weights_digest.h"

#include <algorithm>

namespace invar {

namespace {

constexpr int64_t kChunk = 4096;

void append_u64(std::string& out, uint64_t value) {
  for (int byte = 0; byte < 8; ++byte) out += static_cast<char>(value >> (8 * byte));
}

void append_text(std::string& out, std::string_view text) {
  append_u64(out, text.size());
  out += text;
}

Digest tensor_digest(const TensorSource& source, const std::string& name, ThreadPool& pool) {
  const TensorInfo& info = source.info(name);
  std::string head;
  append_text(head, name);
  append_text(head, name_of(info.dtype));
  append_u64(head, info.shape.size());
  for (const int64_t size : info.shape) append_u64(head, size);

  const int64_t elements = info.elements();
  std::vector<Digest> chunks((elements + kChunk - 1) / kChunk);
  run_or_throw(pool, [&](Part part) {
    Sha256 hash;
    std::byte block[kChunk * 4];
    const auto run = part.of(std::ssize(chunks));
    for (int64_t i = run.begin; i < run.end; ++i) {
      const int64_t count = std::min(kChunk, elements - i * kChunk);
      source.read(name, i * kChunk, count, info.dtype, block);
      hash.update(std::span(block).first(bytes_of(info.dtype, count)));
      chunks[i] = hash.finish();
      hash.restart();
    }
  });

  Sha256 hash;
  hash.update(std::as_bytes(std::span(head)));
  hash.update(std::as_bytes(std::span(chunks)));
  return hash.finish();
}

}  // namespace

Digest weights_digest(const TensorSource& source, std::vector<std::string> names,
                      ThreadPool& pool) {
  std::sort(names.begin(), names.end());
  Sha256 hash;
  for (const std::string& name : names) {
    const Digest tensor = tensor_digest(source, name, pool);
    hash.update(std::as_bytes(std::span(tensor)));
  }
  return hash.finish();
}

}  // namespace invar
