// Functions that the files of packed_formats.h share: values of a configuration, and numbers in
// tensors.
#pragma once

#include <bit>
#include <cstring>
#include <string>

#include "weights/packed_formats.h"

namespace invar::packed {

using Kind = PackedFormat::Kind;
using Raw = RawTensor;
inline constexpr int64_t kMaxSide = 1 << 24;

// The value of a key, or what it stands for where it is absent or null.
json::Value value_of(const json::Value& object, const char* key, json::Value fallback);
// Throws Error unless it is 1 to kMaxSide.
int64_t size_in(const json::Value& value, const char* key, const std::string& where);
// Throws Error where another value is found than the one that is read here.
void expect(const json::Value& found, const json::Value& expected, const char* key,
            const std::string& where);

inline int64_t ceil_div(int64_t x, int64_t y) {
  return (x + y - 1) / y;
}

inline uint32_t word(const Raw& raw, int64_t i) {
  uint32_t bits = 0;
  std::memcpy(&bits, raw.bytes.data() + i * 4, 4);
  return bits;
}

inline float number(const Raw& raw, int64_t i) {
  if (raw.dtype == "F32") return std::bit_cast<float>(word(raw, i));
  uint16_t bits = 0;
  std::memcpy(&bits, raw.bytes.data() + i * 2, 2);
  return raw.dtype == "F16" ? f16_to_f32(bits) : bf16_to_f32(bits);
}

// The state of a module, which bitsandbytes writes as JSON in a tensor of bytes.
inline constexpr const char* kNf4State = "weight.quant_state.bitsandbytes__nf4";
struct Nf4State {
  int64_t rows, columns;
  int64_t block, nested_block;  // 0: the scales are f32
  float offset;                 // of scales that are codes themselves
};

Nf4State read_nf4_state(const TensorSource& source, const RawTensors& raw,
                        const std::string& module);

}  // namespace invar::packed
