// Attention of order `portable` on AMX: one TDPBF16PS for one leaf of 16 queries by 16 slots or
// elements, of 32 queries at a time (attention_many_inl.h) or of 16 at most.
#include <immintrin.h>

#include <cstdint>

#include "kernels/cpu/attention_tile.h"
// in this order
#include "kernels/cpu/vec16_amx.h"
// after it
#include "kernels/cpu/vec16_math.h"
// after it
#include "kernels/cpu/attention_inl.h"
// after it
#include "kernels/cpu/attention_many_inl.h"

namespace invar::cpu {

namespace {

// Up to 16 queries. Tiles 0 and 1 hold their chains by 2 panels, 4 the queries or weights, 6 and 7
// the panels; then 5 holds weights and 2 and 3 panels of a last leaf that is not seen to its end.
class FewQueries {
 public:
  explicit FewQueries(const AttentionTile& tile)
      : queries_(tile.queries),
        panels_(round_up_to(tile.head_dim, 16) / 16),
        leaves_(round_up_to(tile.head_dim, kLeaf) / kLeaf) {
    // Tiles of queries and their chains have as many rows as there are queries: no padding.
    TileConfig config;
    const int pairs = tile.highest % kLeaf / 2 + 1;  // of slots, that are seen of a last leaf
    for (int t = 0; t < 8; ++t) {
      const bool is_panel = t >= 6, is_of_last = t == 2 || t == 3;
      config.row_bytes[t] = static_cast<uint16_t>(t == 5 ? 4 * pairs : kLine);
      config.rows[t] = static_cast<uint8_t>(is_panel ? 16 : is_of_last ? pairs : queries_);
    }
    tile_configure(config);
    take_queries(tile, q_);
  }
  ~FewQueries() { tile_release(); }
  FewQueries(const FewQueries&) = delete;
  FewQueries& operator=(const FewQueries&) = delete;

  void scores(const Split& split, float* d) const {
    for (int leaf = split.first_leaf; leaf < split.end_leaf; ++leaf) {
      const uint16_t* keys = split.leaves[leaf].keys;
      const Leaf& ahead = split.ahead[leaf];
      const bool is_half = split.leaves[leaf].slots <= 16;
      begin_chains();
      for (int k = 0; k < leaves_; ++k) {
        const int64_t at = k * kPanelLeaf, other = at + leaves_ * kPanelLeaf;
        if (ahead.slots > 0) fetch_lines(ahead.keys + at, 16);
        if (ahead.slots > 16) fetch_lines(ahead.keys + other, 16);
        add_leaf(q_ + k * kLeaf, kQueryStride, keys + at, keys + other, !is_half);
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
    alignas(64) float o[2][16 * kLeaf];
    for (int panel = 0; panel < panels_; panel += 2) {
      // The second of two panels; with an odd number the last one again, for nobody.
      const int64_t at = panel * kPanelLeaf, other = smaller(panel + 1, panels_ - 1) * kPanelLeaf;
      begin_chains();
      for (int leaf = split.first_leaf; leaf < split.end_leaf; ++leaf) {
        const uint16_t* v = split.leaves[leaf].values;
        const Leaf& ahead = split.ahead[leaf];
        const int pairs = (ahead.slots + 1) / 2;
        fetch_lines(ahead.values + at, pairs);
        fetch_lines(ahead.values + other, pairs);
        split.leaves[leaf].slots < kLeaf
            ? add_last_leaf(p_ + leaf * kLeaf, v + at, v + other)
            : add_leaf(p_ + leaf * kLeaf, kWeightStride, v + at, v + other, true);
      }
      store_chains(o[panel / 2 % 2], kLeaf);
      if (panel > 0) merge(o[(panel / 2 + 1) % 2], panel - 2, use);
    }
    merge(o[(panels_ - 1) / 2 % 2], (panels_ - 1) / 2 * 2, use);
  }

 private:
  static void begin_chains() {
    tile_zero<0>();
    tile_zero<1>();
  }

  // One leaf of all queries with a panel, and with another one.
  static void add_leaf(const uint16_t* x, int64_t stride, const uint16_t* w0, const uint16_t* w1,
                       bool both) {
    tile_load<4>(x, 2 * stride);
    tile_load<6>(w0, kLine);
    tile_dot<0, 4, 6>();
    if (!both) return;
    tile_load<7>(w1, kLine);
    tile_dot<1, 4, 7>();
  }
  // The last leaf, as far as it is seen. The rest, with weights of +0, could change the sign of a
  // zero, and the + 0 that ends a dot removes that.
  static void add_last_leaf(const uint16_t* p, const uint16_t* w0, const uint16_t* w1) {
    tile_load<5>(p, 2 * kWeightStride);
    tile_load<2>(w0, kLine);
    tile_dot<0, 5, 2>();
    tile_load<3>(w1, kLine);
    tile_dot<1, 5, 3>();
  }

  static void store_chains(float* to, int64_t stride) {
    tile_store<0>(to, 4 * stride);
    tile_store<1>(to + 16, 4 * stride);
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
  alignas(64) uint16_t q_[16 * kQueryStride];
  alignas(64) uint16_t p_[16 * kWeightStride];
};

// Apart, because of what it keeps on the stack.
[[gnu::noinline]] const AttentionTile* attend_many(const TileSource& tiles,
                                                   const AttentionTile& tile,
                                                   const AttentionTile* next) {
  ManyQueries queries;
  return queries.run(tiles, tile, next);
}

}  // namespace

void attend_amx(const TileSource& tiles) {
  for (const AttentionTile* tile = tiles.next(); tile;) {
    const AttentionTile* next = tiles.next();
    if (tile->queries > 16) {
      tile = attend_many(tiles, *tile, next);
    } else {
      attend_tile<FewQueries>(*tile, next);
      tile = next;
    }
  }
}

}  // namespace invar::cpu
