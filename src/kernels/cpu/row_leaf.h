// Products of blocks as integers (numerics 2.3) as plain data, for files compiled for wider
// instruction sets (panel_product.h).
#pragma once

#include "kernels/cpu/panel_product.h"

namespace invar::cpu {

// 32 columns of a row of bf16 as integers (numerics 2.3): in each eight the even ones come first,
// as the bytes of a panel's blocks lie. Weights that are stored as value + zero make a sum too
// large by `more`, which is zero times the total of a part; `plus` is that total times the scale.
struct alignas(64) RowLeaf {
  int8_t x[32];
  float scale;
  int32_t more[2];  // of a leaf's parts, 1 or 2
  float plus[2];
};
constexpr int64_t kMostBlockLeaves = 4096;  // of a row
// As orders::quantise_columns: `rows` rows, `stride` bytes apart; out: [leaf][row].
void quantise_leaves_avx2(const void* x, int64_t stride, int64_t rows, int64_t leaves, int parts,
                          int zero, RowLeaf* out);
// Products of such rows.
void block_product_avx2(const PanelProduct& p);
void block_product_avx512(const PanelProduct& p);  // with VNNI
void block_product_amx(const PanelProduct& p);

}  // namespace invar::cpu
