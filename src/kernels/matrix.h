// The operands of a matrix product: activations, and weights as a storage type and a layout say.
#pragma once

#include <cstdint>

#include "kernels/layout.h"
#include "numerics/fp8.h"

namespace invar {

// An activation that is the input of a matrix product: bf16, or f32 when the weights are f32
// (numerics 0), or integers or e4m3 numbers beside their scales (numerics 2.1, 2.2, 2.5). Row
// stride in elements; columns from the width to round_up(width, 32) are zero and the consumer
// relies on it.
constexpr int64_t scales_of_row(DType type, int64_t k, int split_k) {
  return type == DType::e4m3 ? orders::fp8_groups(k, split_k) : split_k;
}

struct Activation {
  void* data = nullptr;
  DType type = DType::bf16;
  int64_t stride = 0;
  RunScale* scales = nullptr;  // of quantised ones: [T][scales_of_row(type, k, split_k)]

  // The rows from `row` on; a row has so many scales, where there are any.
  Activation from(int64_t row, int64_t row_scales = 1) const {
    return {static_cast<char*>(data) + row * stride * size_of(type), type, stride,
            scales ? scales + row * row_scales : nullptr};
  }
};

// How the elements of a weight lie, zero-padded to whole leaves:
//   panels  of 16 outputs (numerics 1.1), zero-padded to whole ones, 64-byte aligned
//             bf16: [N/16][K/32][16 pairs][16 outputs][2]     f32: [N/16][K/32][32][16 outputs]
//             i8: [N/16][K/32][8 fours][16 outputs][4], each as its value + 128
//   rows    as they are, zero-padded to whole eights of rows
// A table of operations says which it reads (Kernels::weights).
//
// A unit, a panel or a row, of a type with blocks holds its values and then its scales:
//   values  `lead` bytes of each output in turn, then `together` of each in turn
//   scales  `scales_together` of each in turn
// In a panel the even ones of `together` bytes come first, so that a word is four bytes of the even
// or of the odd elements of four pairs.
// One of i8 holds its values and then an f32 scale of each output.
enum class WeightLayout : uint8_t { panels, rows };

// Elements between rows of an activation beside weights of a layout: with rows, that of a GPU, rows
// follow each other without gaps, so that they begin with a cache line when their width is whole
// ones.
constexpr int64_t activation_stride(int64_t k, WeightLayout layout) {
  return layout == WeightLayout::rows ? round_up(k, kLeafPad) : activation_stride(k);
}

// The same of integers. A CPU's tiles of 64 columns may read past the last run, by 32.
constexpr int64_t int8_stride(int64_t k, WeightLayout layout) {
  if (layout == WeightLayout::rows) return round_up(k, kLeafPad);
  const int64_t padded = round_up(k + 32, 64);
  return padded % 128 ? padded : padded + 64;
}

// A weight matrix [N][K], or a stack of `count` equal ones. In rows they follow each other. In
// panels those of a gated pair (gate, up) take turns: panel 2i is gate's i-th, panel 2i + 1 up's;
// pairs of several experts follow each other.
struct Matrix {
  const void* data = nullptr;
  DType type = DType::bf16;  // how its elements are stored
  int64_t n = 0, k = 0;      // of one matrix, unpadded
  WeightLayout layout = WeightLayout::panels;
  int64_t count = 1;

  // Panels of one matrix.
  constexpr int64_t panels() const { return round_up(n, kPanelWidth) / kPanelWidth; }
  constexpr int64_t row_elements() const { return round_up(k, kLeafPad); }
  constexpr int64_t panel_elements() const { return kPanelWidth * row_elements(); }
  constexpr int64_t all_rows() const { return round_up(n, 8); }
  // Units of one matrix: panels or rows.
  constexpr int64_t units() const { return layout == WeightLayout::panels ? panels() : all_rows(); }

  constexpr int64_t unit_outputs() const {
    return layout == WeightLayout::panels ? kPanelWidth : 1;
  }
  constexpr int64_t row_blocks() const {
    const int block = storage_of(type).block;
    return round_up(k, block > kLeafPad ? block : kLeafPad) / block;
  }
  // Where a unit's scales begin.
  constexpr int64_t scales_at() const {
    return unit_outputs() * row_blocks() * storage_of(type).value_bytes;
  }
  constexpr int64_t unit_bytes() const {  // rows as TMA reads them, panels in whole cache lines
    const StorageType& storage = storage_of(type);
    return round_up(unit_outputs() * (row_blocks() * storage.bytes() + storage.row_scale_bytes),
                    layout == WeightLayout::panels ? 64 : 16);
  }

  // Elements of the stack.
  constexpr int64_t elements() const {
    return count * units() * (layout == WeightLayout::panels ? panel_elements() : row_elements());
  }
  constexpr int64_t bytes() const { return count * units() * unit_bytes(); }
  // Matrices [first, first + number) of it; a gated pair stays together.
  constexpr Matrix part(int64_t first, int64_t number) const {
    Matrix w = *this;
    w.data = static_cast<const char*>(data) + first * units() * unit_bytes();
    w.count = number;
    return w;
  }
};

}  // namespace invar
