// A record of every operation of a forward pass, for finding the first place where two runs differ.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

namespace invar {

// A row's place among one request's tokens, whatever the step.
struct TracedRow {
  int64_t request = 0;
  int32_t position = 0;
  int32_t token = 0;
};

// One operation's output: `rows` rows of `width` f32 values, `stride` elements apart, in host
// memory.
struct TracedOp {
  std::string_view name;  // "embed", "qkv", "attention", "o", ...
  int layer;              // -1 outside the layers
  const float* values;
  int64_t rows, width, stride;
  const int32_t* rows_of;  // which row of the step each one is, or null: all of them, in order
};

class Trace {
 public:
  virtual ~Trace() = default;
  // The rows of the step whose operations follow. The builder of the step calls it.
  virtual void begin_step(std::span<const TracedRow> rows) = 0;
  virtual void record(const TracedOp& op) = 0;
};

}  // namespace invar
