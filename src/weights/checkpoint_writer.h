// Writes the weights of a model directory: model.safetensors, or shards and their index.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "base/thread_pool.h"
#include "weights/tensor_source.h"

namespace invar {

// A tensor of a type that TensorSource does not have: numbers of I64, one vector.
struct IntegerTensor {
  std::string name;
  std::vector<int64_t> values;
};

struct CheckpointOptions {
  // Tensors are put into shards of at most this size (a larger tensor has one of its own).
  int64_t max_shard_bytes = int64_t{5} << 30;
  // Called on the calling thread after every tensor with the bytes written and the bytes in all.
  std::function<void(int64_t, int64_t)> progress = {};
  // The name of the type of numbers of a byte: integers, DType::i8, or others that a source gives
  // as such.
  const char* byte_type = "I8";
  // Written in front of the source's tensors, into the first shard.
  std::vector<IntegerTensor> integers = {};
};

// Metadata of a tensor whose bytes, as a U8 tensor, are blocks: this and its name; the value is the
// name of its storage type. A convention of Invar's own, for tests.
constexpr const char* kStorageKey = "storage:";

// Writes every tensor of `source` as it is stored there, streaming: memory is a small buffer for
// each thread. Tensors begin at 64 bytes of their file when their sizes allow it, f32 before 16-bit
// ones, then by name. No file has its name before all are complete, the index comes last. Throws
// Error when the directory cannot be written, the disk is full, or weights are there already.
void write_checkpoint(const std::string& directory, const TensorSource& source, ThreadPool& pool,
                      const CheckpointOptions& options = {});

// The same as one file of any name, which appears whole or not at all and may replace another.
void write_tensors(const std::string& path, const TensorSource& source, ThreadPool& pool);

}  // namespace invar
