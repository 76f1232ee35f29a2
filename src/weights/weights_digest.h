// The digest of a model's weights (numerics 8): it names them in receipts and checkpoints, however
// they are cut into files.
#pragma once

#include <map>
#include <span>
#include <string>
#include <vector>

#include "base/sha256.h"
#include "base/thread_pool.h"
#include "weights/tensor_source.h"

namespace invar {

// SHA-256 over the digests of the tensors `names`, sorted by the bytes of the name. The digest of a
// tensor is SHA-256 over: u64 length of the name, the name, u64 length of the dtype, the dtype
// ("bf16", "f16", "f32"), u64 number of dimensions, u64 each dimension, then the SHA-256 of each
// chunk of 4096 elements in row-major order, the last one short, as stored. Integers and elements
// are little-endian.
Digest weights_digest(const TensorSource& source, std::vector<std::string> names, ThreadPool& pool);

// The same in steps: of a tensor, whose chunks somebody may have hashed already, and of all.
constexpr int64_t kDigestChunk = 4096;
Digest tensor_digest(const TensorSource& source, const std::string& name, ThreadPool& pool);
Digest tensor_digest(const std::string& name, const TensorInfo& info,
                     std::span<const Digest> chunks);
using TensorDigests = std::map<std::string, Digest, std::less<>>;
Digest weights_digest(const TensorDigests& tensors);

}  // namespace invar
