// How the elements of a tensor are stored, a row for each type. No functions: files compiled for
// wider instruction sets include this (kernels/cpu/panel_product.h).
#pragma once

#include <cstdint>

namespace invar {

enum class DType : uint8_t { bf16, f16, f32, q8_0 };

// Elements along a row are stored in blocks: `value_bytes` that belong to one or a few of them, and
// `scale_bytes` that belong to all, which come first in a file.
struct StorageType {
  DType type;
  const char* name;  // in identities and digests; in capitals in safetensors files
  int block;         // elements, a power of two; 1 where each is stored alone
  int value_bytes, scale_bytes;
  int together;   // bytes of values of one output that stand side by side in a panel
  DType element;  // bf16 or f32: what an element is when it is multiplied

  constexpr int bytes() const { return scale_bytes + value_bytes; }
  constexpr bool has_blocks() const { return block > 1; }
};

constexpr StorageType kStorageTypes[] = {
    {DType::bf16, "bf16", 1, 2, 0, 4, DType::bf16},
    {DType::f16, "f16", 1, 2, 0, 4, DType::f32},  // held as f32
    {DType::f32, "f32", 1, 4, 0, 4, DType::f32},
    {DType::q8_0, "q8_0", 32, 32, 2, 2, DType::bf16},  // an f16 scale and 32 integers, as ggml's
};
// The largest of all rows.
constexpr int kMaxBlock = 256, kMaxBlockBytes = 320;

}  // namespace invar
