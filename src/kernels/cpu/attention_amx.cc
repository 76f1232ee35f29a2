// Attention of order `portable` on AMX: 32 queries at a time, one TDPBF16PS for one leaf of 16 of
// them by 16 slots or elements. Tiles 0 to 3 hold chains of 32 queries by 2 panels, 4 and 5 the
// queries or weights, 6 and 7 the panels. Up to 16 queries need 0, 1, 4, 6 and 7; then 5 holds
// weights and 2 and 3 panels of a last leaf that is not seen to its end.
#include <immintrin.h>

#include <cstdint>

#include "kernels/cpu/attention_tile.h"
// in this order
#include "kernels/cpu/amx_tiles_inl.h"
#include "kernels/cpu/vec16_avx512.h"
// after it
#include "kernels/cpu/vec16_math.h"
// after it
#include "kernels/cpu/attention_inl.h"

namespace invar::cpu {

namespace {

constexpr int64_t kLine = 64;       // bytes of a row of a tile
constexpr int kPanelLeaf = 512;     // elements of a leaf of a panel
constexpr int kQueryStride = 608;   // elements: an odd number of lines, so that the rows of a tile
constexpr int kWeightStride = 160;  // lie in different sets of the cache

class TileProducts {
 public:
  explicit TileProducts(const AttentionTile& tile)
      : queries_(tile.queries),
        panels_(round_up_to(tile.head_dim, 16) / 16),
        leaves_(round_up_to(tile.head_dim, kLeaf) / kLeaf) {
    // Tiles of queries and their chains have as many rows as there are queries: no padding.
    TileConfig config;
    // Few queries leave the second set free: for what is seen of a last leaf, pairs of slots.
    const int pairs = tile.highest % kLeaf / 2 + 1;
    for (int t = 0; t < 8; ++t) {
      const bool is_panel = t >= 6, is_second = t == 2 || t == 3 || t == 5;
      int rows = is_panel ? 16 : smaller(queries_, 16), bytes = kLine;
      if (is_second && !is_few()) rows = queries_ - 16;
      if (is_second && is_few() && t != 5) rows = pairs;
      if (is_few() && t == 5) bytes = 4 * pairs;
      config.row_bytes[t] = static_cast<uint16_t>(bytes);
      config.rows[t] = static_cast<uint8_t>(rows);
    }
    tile_configure(config);
    for (int i = 0; i < queries_; ++i)
      for (int k = 0; k < leaves_; ++k)
        _mm512_store_si512(q_ + i * kQueryStride + k * kLeaf,
                           _mm512_loadu_si512(tile.q[i] + k * kLeaf));
  }
  ~TileProducts() { tile_release(); }
  TileProducts(const TileProducts&) = delete;
  TileProducts& operator=(const TileProducts&) = delete;

  void scores(const Split& split, float* d) const {
    for (int leaf = split.first_leaf; leaf < split.end_leaf; ++leaf) {
      const uint16_t* keys = split.leaves[leaf].keys;
      const Leaf& ahead = split.ahead[leaf];
      const bool is_half = split.leaves[leaf].slots <= 16;
      begin_chains();
      for (int k = 0; k < leaves_; ++k) {
        const int64_t at = k * kPanelLeaf, other = at + leaves_ * kPanelLeaf;
        fetch(ahead.keys + at, 16);
        if (ahead.slots > 16) fetch(ahead.keys + other, 16);
        is_half ? add_half_leaf(q_ + k * kLeaf, kQueryStride, keys + at)
                : add_leaf(q_ + k * kLeaf, kQueryStride, keys + at, keys + other);
      }
      store_chains(d + leaf * kLeaf, kSplit);
    }
  }

  void store_weights(int query, int slot, Vec16 p) {
    _mm256_store_si256(reinterpret_cast<__m256i*>(p_ + query * kWeightStride + slot),
                       round_to_bf16(p.v));
  }

  // Leaves that no query sees are left out; attention_vector_inl.h says why.
  template <typename Use>
  void values(const Split& split, Use use) const {
    // While the tiles work on two panels, those before them are merged.
    alignas(64) float o[2][kMaxTileQueries * kLeaf];
    for (int panel = 0; panel < panels_; panel += 2) {
      // The second of two panels; with an odd number the last one again, for nobody.
      const int64_t at = panel * kPanelLeaf, other = smaller(panel + 1, panels_ - 1) * kPanelLeaf;
      begin_chains();
      for (int leaf = split.first_leaf; leaf < split.end_leaf; ++leaf) {
        const uint16_t* v = split.leaves[leaf].values;
        const Leaf& ahead = split.ahead[leaf];
        const int pairs = (ahead.slots + 1) / 2;
        fetch(ahead.values + at, pairs);
        fetch(ahead.values + other, pairs);
        is_few() && split.leaves[leaf].slots < kLeaf
            ? add_last_leaf(p_ + leaf * kLeaf, v + at, v + other)
            : add_leaf(p_ + leaf * kLeaf, kWeightStride, v + at, v + other);
      }
      store_chains(o[panel / 2 % 2], kLeaf);
      if (panel > 0) merge(o[(panel / 2 + 1) % 2], panel - 2, use);
    }
    merge(o[(panels_ - 1) / 2 % 2], (panels_ - 1) / 2 * 2, use);
  }

 private:
  void begin_chains() const {
    tile_zero<0>();
    tile_zero<1>();
    if (is_few()) return;
    tile_zero<2>();
    tile_zero<3>();
  }

  // Whether tiles 2, 3 and 5 are free.
  bool is_few() const { return queries_ <= 16; }

  // One leaf of all queries with two panels.
  void add_leaf(const uint16_t* x, int64_t stride, const uint16_t* w0, const uint16_t* w1) const {
    tile_load<4>(x, 2 * stride);
    tile_load<6>(w0, kLine);
    tile_dot<0, 4, 6>();
    tile_load<7>(w1, kLine);
    tile_dot<1, 4, 7>();
    if (is_few()) return;
    tile_load<5>(x + 16 * stride, 2 * stride);
    tile_dot<2, 5, 6>();
    tile_dot<3, 5, 7>();
  }
  // One leaf of all queries with the first of two panels.
  void add_half_leaf(const uint16_t* x, int64_t stride, const uint16_t* w) const {
    tile_load<4>(x, 2 * stride);
    tile_load<6>(w, kLine);
    tile_dot<0, 4, 6>();
    if (is_few()) return;
    tile_load<5>(x + 16 * stride, 2 * stride);
    tile_dot<2, 5, 6>();
  }
  // The last leaf of few queries, as far as it is seen. The rest, with weights of +0, could change
  // the sign of a zero, and the + 0 that ends a dot removes that.
  void add_last_leaf(const uint16_t* p, const uint16_t* w0, const uint16_t* w1) const {
    tile_load<5>(p, 2 * kWeightStride);
    tile_load<2>(w0, kLine);
    tile_dot<0, 5, 2>();
    tile_load<3>(w1, kLine);
    tile_dot<1, 5, 3>();
  }

  static void fetch(const uint16_t* w, int lines) {
    for (int row = 0; row < lines; ++row) prefetch(w + 32 * row);
  }

  void store_chains(float* to, int64_t stride) const {
    tile_store<0>(to, 4 * stride);
    tile_store<1>(to + 16, 4 * stride);
    if (is_few()) return;
    tile_store<2>(to + 16 * stride, 4 * stride);
    tile_store<3>(to + 16 * stride + 16, 4 * stride);
  }

  // Panels `panel` and, if there is one, the next.
  template <typename Use>
  void merge(const float* o, int panel, Use use) const {
    for (int i = 0; i < queries_; ++i, o += kLeaf) {
      use(i, 16 * panel, load(o) + splat(0.0f));
      if (panel + 1 < panels_) use(i, 16 * panel + 16, load(o + 16) + splat(0.0f));
    }
  }

  const int queries_, panels_, leaves_;  // of a head
  alignas(64) uint16_t q_[kMaxTileQueries * kQueryStride];
  alignas(64) uint16_t p_[kMaxTileQueries * kWeightStride];
};

}  // namespace

void attend_amx(const AttentionTile& tile, const AttentionTile* next) {
  attend<TileProducts>(tile, next);
}

}  // namespace invar::cpu
