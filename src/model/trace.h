// A record of every operation of a forward pass, for finding the first place where two runs differ.
#pragma once

#include <cstdint>
#include <string_view>

namespace invar {

// One operation's output: `rows` rows of `width` f32 values, `stride` elements apart, in host
// memory.
struct TracedOp {
  std::string_view name;  // "embed", "qkv", "attention", "o", ...
  int layer;              // -1 outside the layers
  const float* values;
  int64_t rows, width, stride;
};

class Trace {
 public:
  virtual ~Trace() = default;
  virtual void record(const TracedOp& op) = 0;
};

}  // namespace invar
