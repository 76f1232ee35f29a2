// Matrix products of order `pair` on the vector sets: the chains of numerics 1 run down the lanes,
// a pair of inner elements at a time. Included after product_inl.h.
//
// A set's `Step` is what it makes of a panel's pair: add(chain, x, j) is the chain with the
// products of pair j of a leaf of x, which lies as copy_rows leaves it or, where kTakesWords, as
// words of two bf16.
#pragma once

#include "kernels/cpu/product_inl.h"

namespace invar::cpu {

namespace {

// By fma, the odd product first.
struct FmaStep {
  static constexpr bool kTakesWords = false;
  explicit FmaStep(Bits16 pair) : even_(even_half(pair)), odd_(odd_half(pair)) {}
  Vec16 add(Vec16 chain, const char* leaf, int j) const {
    const float* x = reinterpret_cast<const float*>(leaf);
    return fma(splat(x[j]), even_, fma(splat(x[16 + j]), odd_, chain));
  }

 private:
  Vec16 even_, odd_;
};

// Some rows by some panels, for all leaves of a stretch.
struct PairTile {
  const char* x;
  int64_t x_stride;  // bytes from row to row
  const char* w;
  int64_t w_panel;  // bytes from panel to panel
  int64_t leaves;
  bool first;
  float* chains;
  int64_t panel_chains;
  const char* next;  // weights to be fetched, a line for each that is read; or null
  int64_t next_panel;
};

template <typename Step, int R, int P>
void multiply_pairs(const PairTile& t) {
  constexpr int64_t kLeafBytes = Step::kTakesWords ? kLeaf * 2 : kLeaf * 4;
  Vec16 chain[R][P];
  for (int r = 0; r < R; ++r)
    for (int p = 0; p < P; ++p)
      chain[r][p] = t.first ? splat(0) : load(t.chains + p * t.panel_chains + r * 16);
  const char* x = t.x;
  for (int64_t i = 0; i < t.leaves; ++i, x += kLeafBytes) {
    const char* w = t.w + i * kLine * 16;
    for (int j = 0; j < 16; ++j, w += kLine)
      for (int p = 0; p < P; ++p) {
        if (t.next) __builtin_prefetch(t.next + p * t.next_panel + (i * 16 + j) * kLine);
        const Step step(load_bits(w + p * t.w_panel));
        for (int r = 0; r < R; ++r) chain[r][p] = step.add(chain[r][p], x + r * t.x_stride, j);
      }
  }
  for (int r = 0; r < R; ++r)
    for (int p = 0; p < P; ++p) store(t.chains + p * t.panel_chains + r * 16, chain[r][p]);
}

// kTileRows rows by kTilePanels panels have their chains in registers; kBlocks gives what expands
// blocks.
template <typename Step, int kMostRows, int kTilePanels, ExpandPanel (*kBlocks)(DType)>
struct PairSet {
  static constexpr int kTileRows = kMostRows, kRows = 96, kPanels = 8;
  static constexpr int kLeaves = 8;
  static_assert(kRows % kTileRows == 0 && kPanels % kTilePanels == 0);

  static BlockFunctions blocks(DType type) { return {kBlocks(type), nullptr, 0}; }
  float* room_for_rows() { return nullptr; }

  void accumulate(const Stretch& s) {
    if constexpr (!Step::kTakesWords) copy_rows(s, x_, kRowStride);
    const Tiling tiling(s.rows, kTileRows);
    for (int64_t p = 0, count; p < s.panels; p += count) {
      count = s.panels - p >= kTilePanels ? kTilePanels : 1;
      const Panels w = panels_of(s, p, count, room_);
      PairTile tile{.x = Step::kTakesWords ? s.x : reinterpret_cast<const char*>(x_),
                    .x_stride = Step::kTakesWords ? s.x_stride : kRowStride * 4,
                    .w = w.first,
                    .w_panel = w.bytes,
                    .leaves = s.leaves,
                    .first = s.first,
                    .chains = s.chains + p * s.panel_chains,
                    .panel_chains = s.panel_chains,
                    .next = s.next ? s.next + p * s.panel_bytes : nullptr,
                    .next_panel = s.panel_bytes};
      for (int64_t i = 0; i < tiling.count; ++i) {
        const int64_t rows = tiling.size(i);
        (count == 1 ? kByRows<1> : kByRows<kTilePanels>)[rows - 1](tile);
        tile.x += rows * tile.x_stride;
        tile.chains += rows * 16;
        tile.next = nullptr;
      }
    }
  }

 private:
  using Multiply = void (*)(const PairTile&);
  template <int P>
  static constexpr Multiply kByRows[6] = {
      multiply_pairs<Step, 1, P>, multiply_pairs<Step, 2, P>, multiply_pairs < Step,
      kTileRows<3 ? 1 : 3, P>,    multiply_pairs < Step,      kTileRows<4 ? 1 : 4, P>,
      multiply_pairs < Step,      kTileRows<6 ? 1 : 5, P>,    multiply_pairs < Step,
      kTileRows<6 ? 1 : 6, P>,
  };

  // Elements between rows of f32 copies: an odd number of cache lines.
  static constexpr int64_t kRowStride = kLeaves * kLeaf + 16;
  alignas(64) float x_[Step::kTakesWords ? 16 : kRows * kRowStride];
  alignas(64) char room_[kTilePanels * kLeaves * kLeaf * 32];
};

}  // namespace

}  // namespace invar::cpu
