// Writes a GGUF file, version 3.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/thread_pool.h"
#include "weights/tensor_source.h"

namespace invar {

// A value of metadata. Texts, booleans and arrays are what the JSON value is; numbers are written
// as the type says, an array's too.
struct GgufKey {
  enum class Number : uint8_t { u32, i32, f32 };
  std::string name;
  json::Value value;
  Number number = Number::u32;
};

// A tensor of the source under its name in the file, and as what it is stored: f32, f16 (only of
// f16), bf16 or blocks that numerics/quantise.h makes.
struct GgufItem {
  std::string name, source;
  DType type = DType::f32;
};

struct GgufContent {
  std::vector<GgufKey> metadata;
  std::vector<GgufItem> tensors;
};

// Streams the tensors: memory is a buffer for each thread. The file has its name when it is
// complete. `progress`: after every tensor, with the bytes written and in all. Throws Error when
// the file cannot be written or stands there already.
void write_gguf(const std::string& path, const GgufContent& content, const TensorSource& source,
                ThreadPool& pool, const std::function<void(int64_t, int64_t)>& progress = {});

}  // namespace invar
