// How the elements of a tensor are stored, a row for each type. No functions: files compiled for
// wider instruction sets include this (kernels/cpu/panel_product.h).
#pragma once

#include <cstdint>

namespace invar {

enum class DType : uint8_t {
  bf16,
  f16,
  f32,
  q8_0,
  q4_0,
  q4_1,
  q5_0,
  q5_1,
  q2_k,
  q3_k,
  q4_k,
  q5_k,
  q6_k,
  iq4_nl,
  mxfp4,
  e4m3,
  e4m3_row,
  i8,
};

// Elements along a row are stored in blocks: `value_bytes` that belong to one or a few of them, and
// `scale_bytes` that belong to all, which come first in a file.
struct StorageType {
  DType type;
  const char* name;  // in identities and digests; in capitals in safetensors files
  int block;         // elements, a power of two; 1 where each is stored alone
  int value_bytes, scale_bytes;
  int together;   // bytes of values of one output that stand side by side in a panel
  DType element;  // bf16, f32, i8, e4m3 or e4m3_row: what an element is when it is multiplied
  // The scales, f16 numbers: a block is finite where they are.
  int halves_at = 0, halves = 0;
  int row_scale_bytes = 0;  // of a scale that all elements of a row share, in a unit of a matrix
  int lead = 0;  // first bytes of a block's values, which stand side by side in a panel, too

  constexpr int bytes() const { return scale_bytes + value_bytes; }
  constexpr bool has_blocks() const { return block > 1; }
  // Bytes of scales of one output that stand side by side in a panel.
  constexpr int scales_together() const { return scale_bytes % 4 == 0 ? 4 : 2; }
};

constexpr StorageType kStorageTypes[] = {
    {DType::bf16, "bf16", 1, 2, 0, 4, DType::bf16},
    {DType::f16, "f16", 1, 2, 0, 4, DType::f32},  // held as f32
    {DType::f32, "f32", 1, 4, 0, 4, DType::f32},
    // Blocks of ggml's: scales, then integers of 8 bits or fewer. numerics 0.1 has their bits.
    {DType::q8_0, "q8_0", 32, 32, 2, 8, DType::bf16, 0, 1},
    {DType::q4_0, "q4_0", 32, 16, 2, 8, DType::bf16, 0, 1},
    {DType::q4_1, "q4_1", 32, 16, 4, 8, DType::bf16, 0, 2},
    {DType::q5_0, "q5_0", 32, 20, 2, 8, DType::bf16, 0, 1, 0, 4},
    {DType::q5_1, "q5_1", 32, 20, 4, 8, DType::bf16, 0, 2, 0, 4},
    {DType::q2_k, "q2_k", 256, 64, 20, 8, DType::bf16, 16, 2},
    {DType::q3_k, "q3_k", 256, 96, 14, 8, DType::bf16, 12, 1},
    {DType::q4_k, "q4_k", 256, 128, 16, 8, DType::bf16, 0, 2},
    {DType::q5_k, "q5_k", 256, 160, 16, 8, DType::bf16, 0, 2},
    {DType::q6_k, "q6_k", 256, 192, 18, 8, DType::bf16, 16, 1},
    {DType::iq4_nl, "iq4_nl", 32, 16, 2, 8, DType::bf16, 0, 1},
    // The exponent of a scale in the first of its two bytes; the values as those of q4_0.
    {DType::mxfp4, "mxfp4", 32, 16, 2, 8, DType::bf16},
    // Numbers of numerics 2.2, an f32 scale for 128 of them.
    {DType::e4m3, "e4m3", 128, 128, 4, 8, DType::e4m3},
    // The same numbers where all blocks of a row have one scale (numerics 2.5).
    {DType::e4m3_row, "e4m3_row", 128, 128, 4, 8, DType::e4m3_row},
    // Integers of numerics 2.1, an f32 scale a row.
    {DType::i8, "i8", 1, 1, 0, 4, DType::i8, 0, 0, 4},
};
// The largest of all rows.
constexpr int kMaxBlock = 256, kMaxBlockBytes = 320;

// The scale and sum of the integers of one run of an activation (numerics 2.1), or of the e4m3
// numbers of one group (2.2) or run (2.5): each number stands for a multiple of the scale, and the
// sum is for products whose weights are stored as value + 128.
struct RunScale {
  float scale;
  int32_t sum;
};

}  // namespace invar
