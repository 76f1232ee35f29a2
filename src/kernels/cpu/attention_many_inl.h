// Attention of more than 16 queries at a time on AMX, numerics 4. While the vector unit makes
// weights of the scores of one split, the tiles compute the scores of the next one, be it of these
// queries or of those that come after them; and while they multiply the weights by values, it
// merges and looks for the next maxima. Included after attention_inl.h and amx_tiles_inl.h.
#pragma once

#include <cstdint>

namespace invar::cpu {

namespace {

constexpr int64_t kLine = 64;       // bytes of a row of a tile
constexpr int kPanelLeaf = 512;     // elements of a leaf of a panel
constexpr int kQueryStride = 608;   // elements: an odd number of lines, so that the rows of a tile
constexpr int kWeightStride = 160;  // lie in different sets of the cache

inline void fetch_lines(const uint16_t* w, int lines) {
  for (int row = 0; row < lines; ++row) prefetch(w + 32 * row);
}

// The queries of a tile as its rows.
inline void take_queries(const AttentionTile& tile, uint16_t* q) {
  for (int i = 0; i < tile.queries; ++i)
    for (int k = 0; k < round_up_to(tile.head_dim, kLeaf); k += kLeaf)
      _mm512_store_si512(q + i * kQueryStride + k, _mm512_loadu_si512(tile.q[i] + k));
}

// Lane i joins those of v[i]: i with i + 8, then 4, 2 and 1, as halve and largest do.
template <typename Join>
inline Vec16 join_lanes(const Vec16* v, Join join) {
  Vec16 four[4], eight[2];
  for (int i = 0; i < 4; ++i) {
    Vec16 two[2];
    for (int k = 0; k < 2; ++k) {
      const __m512 a = v[4 * i + 2 * k].v, b = v[4 * i + 2 * k + 1].v;
      two[k] = join({_mm512_shuffle_f32x4(a, b, 0x44)}, {_mm512_shuffle_f32x4(a, b, 0xee)});
    }
    const __m512 a = two[0].v, b = two[1].v;
    four[i] = join({_mm512_shuffle_f32x4(a, b, 0x88)}, {_mm512_shuffle_f32x4(a, b, 0xdd)});
  }
  for (int i = 0; i < 2; ++i) {
    const __m512 a = four[2 * i].v, b = four[2 * i + 1].v;
    eight[i] = join({_mm512_shuffle_ps(a, b, 0x44)}, {_mm512_shuffle_ps(a, b, 0xee)});
  }
  const __m512 a = eight[0].v, b = eight[1].v;
  const Vec16 all = join({_mm512_shuffle_ps(a, b, 0x88)}, {_mm512_shuffle_ps(a, b, 0xdd)});
  const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  return {_mm512_permutexvar_ps(order, all.v)};
}

class ManyQueries {
 public:
  // From `tile` on as long as there are so many; gives the first tile that has fewer, or null.
  // `next` is the one after `tile`.
  const AttentionTile* run(const TileSource& tiles, const AttentionTile& tile,
                           const AttentionTile* next) {
    panels_ = round_up_to(tile.head_dim, 16) / 16;
    leaves_ = round_up_to(tile.head_dim, kLeaf) / kLeaf;
    next_ = next;
    Item *now = &items_[0], *then = &items_[1];
    start(*now, tile);
    begin_scores(*now);
    while (step_ < steps_) add_scores(*now);
    find_maxima(*now, 0, tile.queries);
    join_maxima(*now);
    for (bool more = true; more;) {
      more = advance(tiles, *now, *then);
      weigh_all(*now, more ? then : nullptr);
      merge_sums(*now);
      multiply_values(*now, more ? then : nullptr);
      if (now->is_last) write_outputs(*now->tile, state_);
      Item* done = now;
      now = then;
      then = done;
    }
    tile_release();
    return next_;
  }

  void store_weights(int query, int slot, Vec16 p) {
    _mm256_store_si256(reinterpret_cast<__m256i*>(p_ + query * kWeightStride + slot),
                       round_to_bf16(p.v));
  }

 private:
  // A split of a tile.
  struct Item {
    const AttentionTile* tile;
    const uint16_t* q;
    int base;                // its first slot
    bool is_first, is_last;  // of its tile
    Split split;
    alignas(64) float d[kMaxTileQueries * kSplit];
    Vec16 top[kMaxTileQueries];
    alignas(64) float max[kMaxTileQueries];  // m_s

    int leaves() const { return split.end_leaf - split.first_leaf; }
    bool is_seen(int query) const { return split.begin[query] < split.end[query]; }
  };

  // The first split of a tile.
  void start(Item& item, const AttentionTile& tile) {
    uint16_t* q = q_[turn_ ^= 1];
    take_queries(tile, q);
    item.tile = &tile;
    item.q = q;
    find_split(item, tile.lowest / kSplit * kSplit);
    item.is_first = true;
  }
  // The first split from `base` on that some query sees, of which there is one.
  void find_split(Item& item, int base) {
    for (;; base += kSplit) {
      item.split = locate(*item.tile, next_, base);
      if (item.split.first_leaf < item.split.end_leaf) break;
    }
    item.base = base;
    item.is_first = false;
    item.is_last = base + kSplit > item.tile->highest;
  }
  // The split after `now`, if there is one.
  bool advance(const TileSource& tiles, const Item& now, Item& then) {
    if (!now.is_last) {
      then.tile = now.tile;
      then.q = now.q;
      find_split(then, now.base + kSplit);
      return true;
    }
    if (!next_ || next_->queries <= 16) return false;
    const AttentionTile& tile = *next_;
    next_ = tiles.next();
    start(then, tile);
    return true;
  }

  // Tiles 0 to 3 hold chains of the queries by 2 panels, 4 and 5 the queries or weights, 6 and 7
  // the panels. The second ones have as many rows as there are queries.
  void configure(int queries) {
    if (queries == configured_) return;
    configured_ = queries;
    TileConfig config;
    for (int t = 0; t < 8; ++t) {
      const bool is_second = t == 2 || t == 3 || t == 5;
      config.row_bytes[t] = kLine;
      config.rows[t] = static_cast<uint8_t>(is_second ? queries - 16 : 16);
    }
    tile_configure(config);
  }
  static void begin_chains() {
    tile_zero<0>();
    tile_zero<1>();
    tile_zero<2>();
    tile_zero<3>();
  }
  static void store_chains(float* to, int64_t stride) {
    tile_store<0>(to, 4 * stride);
    tile_store<1>(to + 16, 4 * stride);
    tile_store<2>(to + 16 * stride, 4 * stride);
    tile_store<3>(to + 16 * stride + 16, 4 * stride);
  }
  // One leaf of all queries with a panel, and with another one.
  static void add_leaf(const uint16_t* x, int64_t stride, const uint16_t* w0, const uint16_t* w1,
                       bool both = true) {
    tile_load<4>(x, 2 * stride);
    tile_load<6>(w0, kLine);
    tile_dot<0, 4, 6>();
    tile_load<5>(x + 16 * stride, 2 * stride);
    tile_dot<2, 5, 6>();
    if (!both) return;
    tile_load<7>(w1, kLine);
    tile_dot<1, 4, 7>();
    tile_dot<3, 5, 7>();
  }

  void begin_scores(const Item& item) {
    configure(item.tile->queries);
    step_ = 0;
    steps_ = item.leaves() * leaves_;
    leaf_ = item.split.first_leaf;
    inner_ = 0;
  }
  // One leaf of the inner size for one leaf of slots.
  void add_scores(Item& item) {
    const Leaf &keys = item.split.leaves[leaf_], &ahead = item.split.ahead[leaf_];
    const int64_t at = inner_ * kPanelLeaf, other = at + leaves_ * kPanelLeaf;
    if (inner_ == 0) begin_chains();
    if (ahead.slots > 0) fetch_lines(ahead.keys + at, 16);
    if (ahead.slots > 16) fetch_lines(ahead.keys + other, 16);
    add_leaf(item.q + inner_ * kLeaf, kQueryStride, keys.keys + at, keys.keys + other,
             keys.slots > 16);
    ++step_;
    if (++inner_ < leaves_) return;
    store_chains(item.d + leaf_ * kLeaf, kSplit);
    inner_ = 0;
    ++leaf_;
  }

  void find_maxima(Item& item, int begin, int end) {
    for (int i = begin; i < end; ++i) {
      float* d = item.d + i * kSplit;
      if (item.tile->inner > 0) cap_scores(d, item.split, item.tile->inner);
      item.top[i] = top_of(d, item.split.begin[i], item.split.end[i]);
    }
  }
  static void join_maxima(Item& item) {
    for (int i = 0; i < kMaxTileQueries; i += 16)
      store(item.max + i, join_lanes(item.top + i, [](Vec16 a, Vec16 b) { return max(a, b); }) *
                              splat(item.tile->scale));
  }

  // The weights of a split, and meanwhile the scores of the next one.
  void weigh_all(const Item& item, Item* then) {
    const int queries = item.tile->queries;
    steps_ = step_ = 0;
    if (then) begin_scores(*then);
    for (int i = 0, due = 0; i < queries; ++i) {
      sums_[i] = weigh(item.d + i * kSplit, item.split.begin[i], item.split.end[i], item.split,
                       item.tile->scale, item.max[i], i, *this);
      for (due += steps_; due >= queries; due -= queries) add_scores(*then);
    }
  }

  // Step 4 but for the values. A slot that no query sees changes nothing.
  void merge_sums(const Item& item) {
    if (item.is_first) state_.clear_sums();
    for (int i = 0; i < kMaxTileQueries; i += 16) {
      const __mmask16 sees =
          is_greater_signed(load_bits(item.split.end + i), load_bits(item.split.begin + i)).v;
      const Vec16 l = join_lanes(sums_ + i, [](Vec16 a, Vec16 b) { return a + b; });
      const Vec16 m = load(item.max + i), old = load(state_.max + i);
      const Mask16 rises = {static_cast<__mmask16>(is_less(old, m).v & sees)};
      const Vec16 top = select(rises, m, old);
      const Vec16 keep = exp2(old - top), add = exp2(m - top), sum = load(state_.sum + i);
      store(state_.keep + i, keep);
      store(state_.add + i, add);
      store(state_.max + i, top);
      store(state_.sum + i, select(Mask16{sees}, fma(sum, keep, l * add), sum));
    }
  }

  // The values of a split, two panels after two panels; meanwhile those before are merged, and the
  // maxima of the next split found.
  void multiply_values(const Item& item, Item* then) {
    const int queries = item.tile->queries, others = then ? then->tile->queries : 0;
    const int steps = item.leaves() * ((panels_ + 1) / 2);
    configure(queries);
    int step = 0;
    for (int panel = 0; panel < panels_; panel += 2) {
      // The second of two panels. With an odd number of panels the last one stands in for it, and
      // its result is dropped.
      const int64_t at = panel * kPanelLeaf, other = smaller(panel + 1, panels_ - 1) * kPanelLeaf;
      begin_chains();
      for (int k = 0; k < item.leaves(); ++k, ++step) {
        const int leaf = item.split.first_leaf + k;
        const uint16_t* v = item.split.leaves[leaf].values;
        const Leaf& ahead = item.split.ahead[leaf];
        const int pairs = (ahead.slots + 1) / 2;
        fetch_lines(ahead.values + at, pairs);
        fetch_lines(ahead.values + other, pairs);
        add_leaf(p_ + leaf * kLeaf, kWeightStride, v + at, v + other);
        if (panel > 0)
          merge(item, panel - 2, queries * k / item.leaves(), queries * (k + 1) / item.leaves());
        if (then) find_maxima(*then, others * step / steps, others * (step + 1) / steps);
      }
      store_chains(o_[panel / 2 % 2], kLeaf);
    }
    merge(item, (panels_ - 1) / 2 * 2, 0, queries);
    if (then) join_maxima(*then);
  }

  // Merges the values of panels `panel` and the next, if there is one, into the queries [begin,
  // end).
  void merge(const Item& item, int panel, int begin, int end) {
    const bool both = panel + 1 < panels_;
    const Vec16 zero = splat(0.0f);
    const float* o = o_[panel / 2 % 2] + begin * kLeaf;
    float* out = state_.out + begin * panels_ * 16 + panel * 16;
    for (int i = begin; i < end; ++i, o += kLeaf, out += panels_ * 16) {
      const bool sees = item.is_seen(i);
      if (!sees && !item.is_first) continue;
      state_.merge(i, out, load(o) + zero, item.is_first, sees);
      if (both) state_.merge(i, out + 16, load(o + 16) + zero, item.is_first, sees);
    }
  }

  int panels_ = 0, leaves_ = 0;  // of a head
  int configured_ = 0;
  int turn_ = 0;
  int step_ = 0, steps_ = 0, leaf_ = 0, inner_ = 0;  // of the scores
  const AttentionTile* next_ = nullptr;              // after that of the newest item
  Item items_[2];
  Merged state_;
  Vec16 sums_[kMaxTileQueries];
  alignas(64) float o_[2][kMaxTileQueries * kLeaf];
  alignas(64) uint16_t q_[2][kMaxTileQueries * kQueryStride];
  alignas(64) uint16_t p_[kMaxTileQueries * kWeightStride];
};

}  // namespace

}  // namespace invar::cpu
