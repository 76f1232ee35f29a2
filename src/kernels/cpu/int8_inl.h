// The loops of a product of integers on the vector sets. Included after a vec16 header and
// vec16_math.h and product_end_inl.h.
//
// A lane is an output. Weights are stored as value + 128, since the instructions take one factor
// without a sign; so the sums begin at -128 times the sum of the row's integers. A set provides
// `multiply`, the sums of one run of some rows with some panels, and `to_float`.
#pragma once

#include "kernels/cpu/run_trees_inl.h"

namespace invar::cpu {

namespace {

struct Int8Tile {
  const int8_t* x;  // row 0, first column of the run
  int64_t x_stride;
  const char* w;  // panel 0, likewise
  int64_t panel_bytes;
  int64_t fours;           // columns / 4
  const RunScale* scales;  // of row 0 and this run
  int64_t scales_stride;
  bool fetches;   // the panels after these, a line for each line read
  int32_t* sums;  // [row][panel][16]
};

inline int32_t four_of(const int8_t* x) {
  int32_t four;
  __builtin_memcpy(&four, x, sizeof four);
  return four;
}

// The scales of a panel's outputs.
inline Vec16 panel_scales(const PanelProduct& p, int64_t panel) {
  return load(reinterpret_cast<const float*>(static_cast<const char*>(p.w) + panel * p.panel_bytes +
                                             p.scales));
}

// Set::kRows    rows of a tile
// Set::kPanels  panels of a group, at most
// panels_of(rows)  panels of a group in a product of so many rows, even
// multiply(tile, rows, panels)
// to_float(sums)
template <typename Set>
class Int8Product {
 public:
  explicit Int8Product(const PanelProduct& p) : p_(p), run_(p.leaves * kLeaf / p.split_k) {}

  void run() {
    const int64_t tiles = ceil_div(p_.rows, Set::kRows);
    const int64_t group = Set::panels_of(p_.rows);
    for (int64_t panel = 0; panel < p_.panels; panel += group) {
      const int64_t panels = smaller(group, p_.panels - panel);
      for (int64_t t = 0; t < tiles; ++t) {
        const int64_t row = p_.rows * t / tiles, rows = p_.rows * (t + 1) / tiles - row;
        dots(row, rows, panel, panels, t == 0);
        write(row, rows, panel, panels);
      }
    }
  }

 private:
  void dots(int64_t row, int64_t rows, int64_t panel, int64_t panels, bool fetches) {
    trees_.start();
    for (int r = 0; r < p_.split_k; ++r) {
      const int64_t column = r * run_;
      const RunScale* scales = p_.x_scales + row * p_.split_k + r;
      Set::multiply({.x = static_cast<const int8_t*>(p_.x) + row * p_.x_stride + column,
                     .x_stride = p_.x_stride,
                     .w = static_cast<const char*>(p_.w) + panel * p_.panel_bytes + column * 16,
                     .panel_bytes = p_.panel_bytes,
                     .fours = run_ / 4,
                     .scales = scales,
                     .scales_stride = p_.split_k,
                     .fetches = fetches,
                     .sums = sums_},
                    rows, panels);
      float* out = trees_.next();
      for (int64_t q = 0; q < panels; ++q) {
        const Vec16 w = panel_scales(p_, panel + q);
        for (int64_t t = 0; t < rows; ++t) {
          const int64_t at = (t * panels + q) * 16;
          store(out + at, Set::to_float(sums_ + at) * (splat(scales[t * p_.split_k].scale) * w));
        }
      }
      trees_.add(r, rows * panels);
    }
  }

  void write(int64_t row, int64_t rows, int64_t panel, int64_t panels) {
    const float* dot = trees_.dots();
    for (int64_t t = 0; t < rows; ++t, dot += panels * 16)
      for (int64_t q = 0; q < panels; ++q)
        if (!p_.out)
          write_plain(p_, row + t, panel + q, load(dot + q * 16));
        else if (q % 2 == 0)
          write_gated(p_, row + t, panel + q, load(dot + q * 16), load(dot + q * 16 + 16));
  }

  const PanelProduct& p_;
  const int64_t run_;  // columns
  alignas(64) int32_t sums_[Set::kRows * Set::kPanels * 16];
  RunTrees<Set::kRows, Set::kPanels> trees_;
};

}  // namespace

}  // namespace invar::cpu
