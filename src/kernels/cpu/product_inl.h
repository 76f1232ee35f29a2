// The loops of a matrix product on the vector sets. Included after a vec16 header and vec16_math.h.
//
// Rows are cut into blocks, panels into groups, chains into stretches of leaves. Chains live in
// memory between the stretches: the next leaf added to a stored accumulator is the same chain. A
// set provides `accumulate`, which adds one stretch to the chains of a block.
#pragma once

#include "kernels/cpu/product_end_inl.h"

namespace invar::cpu {

namespace {

// One stretch of leaves of a group of panels, for one block of rows.
struct Stretch {
  bool f32;
  const char* x;  // row 0, first leaf
  int64_t x_stride;
  int64_t rows;
  const char* w;  // panel 0: its first leaf here, or of blocks its first of all
  int64_t panel_bytes;
  int64_t panels;
  int64_t leaf, leaves;  // of a panel
  int64_t all_leaves;    // of a whole one
  BlockFunctions blocks;
  int64_t scales;
  bool first;            // the chains begin here, from +0
  float* chains;         // [panel][Set::kRows][16]
  int64_t panel_chains;  // elements from panel to panel
  const char* next;  // weights that are used after these: fetched meanwhile, so memory never waits
};

// 32-bit words that hold a pair of bf16, as f32.
inline Vec16 even_half(Bits16 pairs) {
  return value_of(pairs << 16);
}
inline Vec16 odd_half(Bits16 pairs) {
  return value_of(pairs & splat_bits(0xffff0000));
}

// The rows of a stretch, each leaf as its 16 even and its 16 odd elements; `out_stride` in
// elements.
inline void copy_rows(const Stretch& s, float* out, int64_t out_stride) {
  for (int64_t r = 0; r < s.rows; ++r, out += out_stride) {
    const char* from = s.x + r * s.x_stride;
    for (int64_t i = 0; i < s.leaves * kLeaf; i += kLeaf)
      if (s.f32) {
        const float* x = reinterpret_cast<const float*>(from) + i;
        for (int64_t j = 0; j < 16; ++j) out[i + j] = x[2 * j], out[i + 16 + j] = x[2 * j + 1];
      } else {
        const Bits16 pairs = load_bits(from + i * 2);
        store(out + i, even_half(pairs));
        store(out + i + 16, odd_half(pairs));
      }
  }
}

// A panel's leaves from bf16 to the layout of f32 panels, in which an even and an odd row of 16
// outputs alternate.
inline void unpack_panel(const char* w, int64_t leaves, float* out) {
  for (int64_t pair = 0; pair < leaves * 16; ++pair, w += kLine, out += 32) {
    const Bits16 pairs = load_bits(w);
    store(out, even_half(pairs));
    store(out + 16, odd_half(pairs));
  }
}

inline void fetch_lines(const char* first, int64_t bytes) {
  for (int64_t at = 0; at < bytes; at += kLine) __builtin_prefetch(first + at, 0, 3);
}
// Fetches the blocks of a panel, whose places far apart no prefetcher of the hardware foresees.
// What follows the last panel is the next stretch or, behind the last one, the next group.
inline void fetch_blocks(const Stretch& s, int64_t panel) {
  const int64_t after = s.leaf + s.leaves;
  const bool goes_on = panel >= s.panels && after < s.all_leaves;
  const char* w = s.w + (goes_on ? 0 : panel * s.panel_bytes);
  const int64_t leaf = panel < s.panels ? s.leaf : goes_on ? after : 0;
  const int64_t values = s.scales / s.all_leaves;
  const int64_t scales = (s.panel_bytes - s.scales) / s.all_leaves;
  fetch_lines(w + leaf * values, s.leaves * values);
  fetch_lines(w + s.scales + leaf * scales, s.leaves * scales);
}

// Some of a stretch's panels as they lie or, from blocks, as `room` has them.
struct Panels {
  const char* first;
  int64_t bytes;  // from panel to panel
};
inline Panels panels_of(const Stretch& s, int64_t panel, int64_t count, char* room) {
  const char* w = s.w + panel * s.panel_bytes;
  if (!s.blocks.expand) return {w, s.panel_bytes};
  const int64_t bytes = s.leaves * kLeaf * 32;
  for (int64_t q = 0; q < count; ++q, w += s.panel_bytes)
    s.blocks.expand(w, w + s.scales, s.leaf, s.leaves, room + q * bytes);
  fetch_blocks(s, panel + count);
  return {room, bytes};
}

// Leaves of a stretch where blocks are unpacked in registers, and floats of its rows.
constexpr int64_t block_leaves(int64_t rows) {
  return rows <= 2 ? 64 : 16;
}
constexpr int64_t kBlockFloats = 8 * block_leaves(8) * kLeaf;
static_assert(2 * block_leaves(2) * kLeaf <= kBlockFloats);

// A few rows by panels of blocks, which are read once, straight from memory. `x`: room for the
// rows, which are made 1, 2, 4 or 8.
inline void multiply_blocks(const Stretch& s, float* x) {
  const int64_t stride = s.leaves * kLeaf;
  const int64_t rows = s.rows <= 2 ? s.rows : s.rows <= 4 ? 4 : 8;
  for (int64_t r = 0; r < s.rows; ++r)
    for (int64_t i = 0; i < stride; i += 16)
      store(x + r * stride + i,
            value_of(load_u16(reinterpret_cast<const uint16_t*>(s.x + r * s.x_stride) + i) << 16));
  for (int64_t i = s.rows * stride; i < rows * stride; i += 16) store(x + i, splat(0));
  const char* w = s.w;
  const int64_t leaf_bytes = s.panel_bytes / s.all_leaves;
  for (int64_t p = 0; p < s.panels; ++p, w += s.panel_bytes)
    s.blocks.multiply({.x = x,
                       .x_stride = stride,
                       .rows = rows,
                       .values = w,
                       .scales = w + s.scales,
                       .leaf = s.leaf,
                       .leaves = s.leaves,
                       .first = s.first,
                       .chains = s.chains + p * s.panel_chains,
                       .next = {.first = s.next,
                                .bytes = s.panels * s.panel_bytes,
                                .done = (s.leaf * s.panels + p * s.leaves) * leaf_bytes}});
}

// The tile that a vector set multiplies at once: a few rows by one or more panels.
struct Tile {
  const float* x;  // as copy_rows leaves it
  const char* w;
  int64_t w_panel;  // bytes from panel to panel
  int64_t leaves;
  bool first;
  float* chains;
  const char* next;  // weights to be fetched
  int64_t next_panel;
  int64_t next_lines;  // per panel and leaf, where a tile does not fetch a line for each it reads
};

// Cuts rows into tiles of nearly equal size, at most `most` rows each.
struct Tiling {
  Tiling(int64_t rows, int64_t most)
      : count(ceil_div(rows, most)), small(rows / count), large_count(rows % count) {}
  int64_t size(int64_t tile) const { return small + (tile < large_count); }
  int64_t count, small, large_count;
};

// Set::kRows      rows of a block, at most; a multiple of kTileRows
// Set::kTileRows  rows that one tile takes: blocks are cut between tiles
// Set::kPanels    panels of a group, even
// Set::kLeaves    leaves of a stretch, at most
// blocks(type)    its functions for blocks
// accumulate(stretch)
template <typename Set>
class Product {
 public:
  explicit Product(const PanelProduct& p)
      : p_(p),
        leaf_bytes_(kLeaf * 16 * (p.f32 ? 4 : 2)),
        element_(p.f32 ? 4 : 2),
        blocks_(Set::blocks(p.stored)) {}

  void run() {
    const int64_t tiles = ceil_div(p_.rows, Set::kTileRows);
    const int64_t blocks = ceil_div(tiles, Set::kRows / Set::kTileRows);
    for (int64_t b = 0; b < blocks; ++b) {
      const int64_t begin = tiles * b / blocks * Set::kTileRows;
      const int64_t end = smaller(tiles * (b + 1) / blocks * Set::kTileRows, p_.rows);
      const bool is_unpacked = end - begin <= blocks_.rows;
      const int64_t group = group_panels(is_unpacked);
      const char* after = b + 1 < blocks ? weights(0, 0) : nullptr;
      if (is_unpacked && !after) after = static_cast<const char*>(p_.next);
      for (int64_t panel = 0; panel < p_.panels; panel += group) {
        const int64_t count = smaller(group, p_.panels - panel);
        const bool is_last = panel + count == p_.panels;
        dots(begin, end - begin, panel, count, is_last ? after : weights(panel + count, 0));
        write(begin, end - begin, panel, count);
      }
    }
  }

 private:
  // Runs that can wait for their neighbours in the tree of 8, and one in progress.
  static constexpr int kLevels = 4;
  static constexpr int64_t kPanelChains = int64_t{Set::kRows} * 16;
  static constexpr int64_t kLevelChains = Set::kPanels * kPanelChains;

  // Without runs to keep, their memory serves a larger group. Where blocks are unpacked as they are
  // read, the group is one block, which is fetched while the one before it is read.
  int64_t group_panels(bool is_unpacked) const {
    constexpr int64_t kFetched = 64 << 10;
    const int64_t most = p_.split_k == 1 ? Set::kPanels * kLevels : Set::kPanels;
    return is_unpacked ? smaller(larger(kFetched / p_.panel_bytes / 2, 1) * 2, most) : most;
  }
  const char* weights(int64_t panel, int64_t leaf) const {
    return static_cast<const char*>(p_.w) + panel * p_.panel_bytes + leaf * leaf_bytes_;
  }
  // Leaves the dots of a block and a group, before the + 0, at chains_. `after`: the weights that
  // are read next.
  void dots(int64_t row, int64_t rows, int64_t panel, int64_t panels, const char* after) {
    const int64_t run_leaves = p_.leaves / p_.split_k;
    const bool is_unpacked = rows <= blocks_.rows;
    const int64_t stretches = ceil_div(run_leaves, is_unpacked ? block_leaves(rows) : Set::kLeaves);
    if (p_.extend) load_chains(row, rows, panel, panels);
    int depth = 0;  // runs, or trees of them, that wait for their neighbour
    for (int r = 0; r < p_.split_k; ++r) {
      for (int64_t s = 0; s < stretches; ++s) {
        const int64_t from = r * run_leaves + run_leaves * s / stretches;
        const int64_t to = r * run_leaves + run_leaves * (s + 1) / stretches;
        const Stretch stretch{
            .f32 = p_.f32,
            .x = static_cast<const char*>(p_.x) + row * p_.x_stride + from * kLeaf * element_,
            .x_stride = p_.x_stride,
            .rows = rows,
            .w = weights(panel, blocks_.expand ? 0 : from),
            .panel_bytes = p_.panel_bytes,
            .panels = panels,
            .leaf = from,
            .leaves = to - from,
            .all_leaves = p_.leaves,
            .blocks = blocks_,
            .scales = p_.scales,
            .first = s == 0 && !p_.extend,
            .chains = chains_ + depth * kLevelChains,
            .panel_chains = kPanelChains,
            .next = blocks_.expand   ? is_unpacked ? after : nullptr
                    : to < p_.leaves ? weights(panel, to)
                                     : after};
        is_unpacked ? multiply_blocks(stretch, set_.room_for_rows()) : set_.accumulate(stretch);
      }
      // (s0 + s1) + (s2 + s3) ...: a run with an odd number meets the tree to its left.
      for (int odd = r; odd & 1; odd >>= 1) add_chains(--depth, rows, panels);
      ++depth;
    }
  }

  // Chains that go on from y.
  void load_chains(int64_t row, int64_t rows, int64_t panel, int64_t panels) {
    for (int64_t q = 0; q < panels; ++q)
      for (int64_t t = 0; t < rows; ++t)
        store(chains_ + q * kPanelChains + t * 16, load_output(p_, row + t, panel + q));
  }

  // Chains of level `at` += those of the next level.
  void add_chains(int at, int64_t rows, int64_t panels) {
    for (int64_t q = 0; q < panels; ++q)
      for (int64_t t = 0; t < rows; ++t) {
        float* left = chains_ + at * kLevelChains + q * kPanelChains + t * 16;
        store(left, load(left) + load(left + kLevelChains));
      }
  }

  void write(int64_t row, int64_t rows, int64_t panel, int64_t panels) {
    for (int64_t t = 0; t < rows; ++t) {
      const float* dot = chains_ + t * 16;
      for (int64_t q = 0; q < panels; ++q, dot += kPanelChains)
        if (!p_.out)
          write_plain(p_, row + t, panel + q, load(dot));
        else if (q % 2 == 0)
          write_gated(p_, row + t, panel + q, load(dot), load(dot + kPanelChains));
    }
  }

  const PanelProduct& p_;
  const int64_t leaf_bytes_, element_;
  const BlockFunctions blocks_;
  Set set_;
  alignas(64) float chains_[kLevels * kLevelChains];
};

}  // namespace

}  // namespace invar::cpu
