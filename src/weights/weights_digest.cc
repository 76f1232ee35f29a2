#include "weights/weights_digest.h"

#include <algorithm>

namespace invar {

namespace {

void append_u64(std::string& out, uint64_t value) {
  for (int byte = 0; byte < 8; ++byte) out += static_cast<char>(value >> (8 * byte));
}

void append_text(std::string& out, std::string_view text) {
  append_u64(out, text.size());
  out += text;
}

}  // namespace

Digest tensor_digest(const std::string& name, const TensorInfo& info,
                     std::span<const Digest> chunks) {
  std::string head;
  append_text(head, name);
  append_text(head, name_of(info.dtype));
  append_u64(head, info.shape.size());
  for (const int64_t size : info.shape) append_u64(head, size);
  Sha256 hash;
  hash.update(std::as_bytes(std::span(head)));
  hash.update(std::as_bytes(chunks));
  return hash.finish();
}

Digest tensor_digest(const TensorSource& source, const std::string& name, ThreadPool& pool) {
  const TensorInfo& info = source.info(name);
  const int64_t elements = info.elements();
  std::vector<Digest> chunks((elements + kDigestChunk - 1) / kDigestChunk);
  run_or_throw(pool, [&](Part part) {
    Sha256 hash;
    std::byte block[kDigestChunk * 4];
    const auto run = part.of(std::ssize(chunks));
    for (int64_t i = run.begin; i < run.end; ++i) {
      const int64_t count = std::min(kDigestChunk, elements - i * kDigestChunk);
      source.read(name, i * kDigestChunk, count, info.dtype, block);
      hash.update(std::span(block).first(bytes_of(info.dtype, count)));
      chunks[i] = hash.finish();
      hash.restart();
    }
  });
  return tensor_digest(name, info, chunks);
}

Digest weights_digest(const TensorDigests& tensors) {
  Sha256 hash;
  for (const auto& [name, digest] : tensors) hash.update(std::as_bytes(std::span(digest)));
  return hash.finish();
}

Digest weights_digest(const TensorSource& source, std::vector<std::string> names,
                      ThreadPool& pool) {
  TensorDigests tensors;
  for (const std::string& name : names) tensors[name] = tensor_digest(source, name, pool);
  return weights_digest(tensors);
}

}  // namespace invar
