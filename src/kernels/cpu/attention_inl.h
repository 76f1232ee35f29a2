// Attention of one tile, numerics 4, over Vec16. Included after a vec16 header and vec16_math.h.
//
// An instruction set adds `Products`, the two matrix products of a split:
//   Products(tile)                     takes the queries
//   scores(split, d)                   d[query][slot] for the leaves of the split
//   store_weights(query, slot, p)     takes 16 weights, to be rounded to the type of the values
//   values(split, use)                 use(query, e, the 16 elements of o_s from e on)
#pragma once

#include <cstdint>

#include "kernels/cpu/attention_tile.h"

namespace invar::cpu {

namespace {

constexpr int kSplit = 128, kLeaf = 32, kSplitLeaves = kSplit / kLeaf, kMaxHead = 576;

inline int round_up_to(int x, int multiple) {
  return (x + multiple - 1) / multiple * multiple;
}
inline int smaller(int a, int b) {
  return a < b ? a : b;
}
inline int larger(int a, int b) {
  return a > b ? a : b;
}

// Where the keys and values of a leaf of slots begin.
struct Leaf {
  const uint16_t* keys;    // two panels of 16 slots
  const uint16_t* values;  // one leaf of each panel of 16 elements
  int slots;               // up to the last that some query sees, 32 at most: no more need be read
};

// One split of a tile.
struct Split {
  // Slots of the split, 0 .. 127, that a query sees; none when begin >= end.
  int begin[kMaxTileQueries], end[kMaxTileQueries];
  // Leaves that some query sees.
  int first_leaf, end_leaf;
  Leaf leaves[kSplitLeaves];
  // For each of them one that is wanted some time later, to be fetched meanwhile: memory never
  // waits.
  Leaf ahead[kSplitLeaves];
};

inline void prefetch(const void* p) {
  _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T1);
}

// Leaf number `leaf` counted from slot 0.
inline Leaf leaf_of(const AttentionTile& tile, int leaf) {
  const int slot = leaf * kLeaf, shift = __builtin_ctz(static_cast<unsigned>(tile.block_size));
  const int64_t block = tile.table[slot >> shift], in_block = slot & (tile.block_size - 1);
  return {tile.keys + block * tile.key_block_stride + in_block * tile.key_words,
          tile.values + block * tile.value_block_stride + in_block * tile.value_words,
          smaller(tile.highest + 1 - slot, kLeaf)};
}

// The leaf that is read some leaves after this one, in this tile or the next; or itself, without
// slots, if there is none or it is near. A tile of few leaves fetches the first of the next one as
// it reads its own.
inline Leaf leaf_after(const AttentionTile& tile, const AttentionTile* next, int leaf) {
  const int leaves = tile.highest / kLeaf - tile.lowest / kLeaf + 1;
  int after = leaf + smaller(leaves, kSplitLeaves);
  const AttentionTile* of = &tile;
  if (after > tile.highest / kLeaf) {
    after += (next ? next->lowest / kLeaf : 0) - (tile.highest / kLeaf + 1);
    of = next;
  }
  if (of && of->near <= after && after <= of->highest / kLeaf) return leaf_of(*of, after);
  Leaf none = leaf_of(tile, leaf);
  none.slots = 0;
  return none;
}

inline Split locate(const AttentionTile& tile, const AttentionTile* next, int base) {
  Split split;
  int begin = kSplit, end = 0;
  for (int i = 0; i < tile.queries; ++i) {
    const int from = larger(tile.first[i] - base, 0), to = smaller(tile.last[i] + 1 - base, kSplit);
    const bool sees = from < to;
    split.begin[i] = from;
    split.end[i] = to;
    begin = smaller(begin, sees ? from : kSplit);
    end = larger(end, sees ? to : 0);
  }
  split.first_leaf = begin / kLeaf;
  split.end_leaf = (end + kLeaf - 1) / kLeaf;
  for (int leaf = split.first_leaf; leaf < split.end_leaf; ++leaf) {
    split.leaves[leaf] = leaf_of(tile, base / kLeaf + leaf);
    split.ahead[leaf] = leaf_after(tile, next, base / kLeaf + leaf);
  }
  return split;
}

// The largest scores of one query, which sees slots [begin, end), in 16 lanes.
inline Vec16 top_of(const float* d, int begin, int end) {
  const Vec16 lowest = splat(-__builtin_inff());
  Vec16 top = lowest;
  for (int slot = begin / 16 * 16; slot < end; slot += 16) {
    const bool is_full = begin <= slot && slot + 16 <= end;
    const Vec16 v = load(d + slot);
    top = max(is_full ? v : select(lanes(begin - slot, end - slot), v, lowest), top);
  }
  return top;
}

// Scores under a cap (ScoreScale). Apart from the others' code, which knows no cap.
[[gnu::noinline]] void cap_scores(float* d, const Split& split, float inner) {
  const Vec16 c = splat(inner);
  for (int slot = split.first_leaf * kLeaf; slot < split.end_leaf * kLeaf; slot += 16)
    store(d + slot, half_tanh(load(d + slot) * c));
}

// The weights of one query in all leaves of the split; gives l_s in 16 lanes that are yet to be
// halved. The sign of a zero score cannot be seen: exp2(+-0) is 1.
template <typename Products>
inline Vec16 weigh(const float* d, int begin, int end, const Split& split, float scale, float m,
                   int query, Products& products) {
  const Vec16 c = splat(scale), minus_m = splat(-m);
  const int first = split.first_leaf, last = split.end_leaf;
  // Slots that were not computed add +0 to a lane, which is never -0.
  Vec16 lane[4] = {splat(0.0f), splat(0.0f), splat(0.0f), splat(0.0f)};
#pragma GCC unroll 8
  for (int panel = 0; panel < kSplit / 16; ++panel) {
    const int slot = 16 * panel;
    if (panel / 2 < first || panel / 2 >= last) continue;
    Vec16 p = exp2(fma(load(d + slot), c, minus_m));
    if (slot < begin || end < slot + 16)
      p = select(lanes(begin - slot, end - slot), p, splat(0.0f));
    products.store_weights(query, slot, p);
    lane[panel % 4] = lane[panel % 4] + p;
  }
  return join64(lane);
}

// The state of step 4 for every query of a tile. It begins as max = -inf and zeros: merging the
// first split then gives that split, since exp2(-inf) is +0, exp2(0) is 1 and o_s is never -0.
struct Merged {
  alignas(64) float max[kMaxTileQueries], sum[kMaxTileQueries];
  alignas(64) float keep[kMaxTileQueries], add[kMaxTileQueries];  // a and b of the split at hand
  alignas(64) float out[kMaxTileQueries * kMaxHead];              // [query][round_up(E, 16)]

  void clear_sums() {
    for (int i = 0; i < kMaxTileQueries; ++i) max[i] = -__builtin_inff(), sum[i] = 0.0f;
  }
  // 16 elements of o_s of a query, into `to`.
  void merge(int query, float* to, Vec16 o, bool is_first, bool sees) const {
    if (is_first)
      store(to, sees ? o : splat(0.0f));
    else
      store(to, fma(load(to), splat(keep[query]), o * splat(add[query])));
  }
};

template <typename Products>
inline void attend_split(const AttentionTile& tile, const Split& split, bool is_first,
                         Products& products, Merged& state) {
  alignas(64) float d[kMaxTileQueries * kSplit];
  products.scores(split, d);
  if (tile.inner > 0)
    for (int i = 0; i < tile.queries; ++i) cap_scores(d + i * kSplit, split, tile.inner);
  // All maxima before all weights: the rows are independent, and the ends of a reduction are slow.
  float split_max[kMaxTileQueries], split_sum[kMaxTileQueries];
  for (int i = 0; i < tile.queries; ++i)
    if (split.begin[i] < split.end[i])
      split_max[i] = largest(top_of(d + i * kSplit, split.begin[i], split.end[i])) * tile.scale;
  for (int i = 0; i < tile.queries; ++i) {
    state.keep[i] = state.add[i] = 0.0f;
    if (split.begin[i] >= split.end[i]) {
      for (int slot = split.first_leaf * kLeaf; slot < split.end_leaf * kLeaf; slot += 16)
        products.store_weights(i, slot, splat(0.0f));
      continue;
    }
    const float m = split_max[i], max = state.max[i] < m ? m : state.max[i];
    split_sum[i] = halve(
        weigh(d + i * kSplit, split.begin[i], split.end[i], split, tile.scale, m, i, products));
    state.keep[i] = state.max[i] - max;
    state.add[i] = m - max;
    state.max[i] = max;
  }
  for (int i = 0; i < tile.queries; i += 16) {
    store(state.keep + i, exp2(load(state.keep + i)));
    store(state.add + i, exp2(load(state.add + i)));
  }
  for (int i = 0; i < tile.queries; ++i)
    if (split.begin[i] < split.end[i])
      state.sum[i] = __builtin_fmaf(state.sum[i], state.keep[i], split_sum[i] * state.add[i]);
  const int width = round_up_to(tile.head_dim, 16);
  products.values(split, [&](int i, int e, Vec16 o) {
    const bool sees = split.begin[i] < split.end[i];
    if (sees || is_first) state.merge(i, state.out + i * width + e, o, is_first, sees);
  });
}

// A head's sink: one more split, whose maximum is the sink, whose sum is 1 and whose values are 0.
[[gnu::noinline]] void merge_sink(Merged& state, int query, int width, float sink) {
  const float m = sink * 0x1.715476p+0f, max = state.max[query] < m ? m : state.max[query];
  alignas(64) float factors[16] = {state.max[query] - max, m - max};
  store(factors, exp2(load(factors)));
  state.max[query] = max;
  state.sum[query] = __builtin_fmaf(state.sum[query], factors[0], factors[1]);
  for (int k = 0; k < width; k += 16) {
    float* out = state.out + query * width + k;
    store(out, fma(load(out), splat(factors[0]), splat(0.0f)));
  }
}

// Writes the output when all splits are merged.
inline void write_outputs(const AttentionTile& tile, Merged& state) {
  const int e = tile.head_dim, width = round_up_to(e, 16);
  for (int i = 0; i < tile.queries; ++i)
    if (tile.sinks[i]) merge_sink(state, i, width, *tile.sinks[i]);
  for (int i = 0; i < tile.queries && tile.max; ++i) tile.max[tile.stat[i]] = state.max[i];
  for (int i = 0; i < tile.queries && tile.sum; ++i) tile.sum[tile.stat[i]] = state.sum[i];
  for (int i = 0; i < tile.queries; ++i) {
    float* out = state.out + i * width;
    divide(out, width, state.sum[i]);
    for (int k = 0; k < e; k += 16)
      if (tile.out_is_bf16)
        store_bf16(static_cast<uint16_t*>(tile.out[i]) + k, load(out + k), e - k);
      else
        store(static_cast<float*>(tile.out[i]) + k, load(out + k), e - k);
  }
}

// `next`, or null, is the tile that comes afterwards: its first keys and values are fetched
// meanwhile.
template <typename Products>
inline void attend_tile(const AttentionTile& tile, const AttentionTile* next) {
  Products products(tile);
  Merged state;
  state.clear_sums();
  bool is_first = true;
  for (int base = tile.lowest / kSplit * kSplit; base <= tile.highest; base += kSplit) {
    const Split split = locate(tile, next, base);
    if (split.first_leaf >= split.end_leaf) continue;
    attend_split(tile, split, is_first, products, state);
    is_first = false;
  }
  write_outputs(tile, state);
}

template <typename Products>
inline void attend(const TileSource& tiles) {
  for (const AttentionTile* tile = tiles.next(); tile;) {
    const AttentionTile* next = tiles.next();
    attend_tile<Products>(*tile, next);
    tile = next;
  }
}

}  // namespace

}  // namespace invar::cpu
