// The products of attention by fma on Vec16 (numerics 1.1). Included after a vec16 header and
// vec16_math.h.
#pragma once

#include "kernels/cpu/attention_inl.h"

namespace invar::cpu {

namespace {

// A leaf of a packed panel, and one to be fetched for later. Elements are bf16 (as words) or f32.
template <typename Element>
struct PanelLeaf {
  const Element* w;
  const Element* ahead;
};

// The 16 columns of each of a pair of inner elements.
struct Pair {
  Vec16 even, odd;
};
inline Pair load_pair(const uint16_t* w) {
  const Bits16 pair = load_bits(w);
  return {value_of(pair << 16), value_of(pair & splat_bits(0xffff0000))};
}
inline Pair load_pair(const float* w) {
  return {load(w), load(w + 16)};
}

// Elements between rows of queries and of weights: one constant, so that all addresses in the loop
// below are constants too, and an odd number of cache lines.
constexpr int kRowStride = kMaxHead + 16;

// y[m] = the dots of row m of x with the 16 columns of a panel, given as its leaves; at least one.
// `pairs`: of order `pair`.
template <int M, bool fetch, bool pairs, typename Element>
[[gnu::noinline]] void dot_block(const float* x, const PanelLeaf<Element>* leaf, int leaves,
                                 float* y, int64_t y_stride) {
  Vec16 acc[M];
  for (int m = 0; m < M; ++m) acc[m] = splat(0.0f);
  do {
    Vec16 even[M], odd[M];
    for (int m = 0; m < M; ++m) even[m] = odd[m] = splat(0.0f);
#pragma GCC unroll 8
    for (int j = 0; j < kLeaf / 2; ++j) {
      if constexpr (fetch) prefetch(leaf->ahead + 32 * j);
      if constexpr (fetch && sizeof(Element) == 4) prefetch(leaf->ahead + 32 * j + 16);
      const Pair w = load_pair(leaf->w + 32 * j);
      for (int m = 0; m < M; ++m) {
        const Vec16 x_even = splat(x[m * kRowStride + 2 * j]),
                    x_odd = splat(x[m * kRowStride + 2 * j + 1]);
        if constexpr (pairs) {
          acc[m] = fma(x_even, w.even, fma(x_odd, w.odd, acc[m]));
        } else {
          even[m] = fma(x_even, w.even, even[m]);
          odd[m] = fma(x_odd, w.odd, odd[m]);
        }
      }
    }
    for (int m = 0; m < M && !pairs; ++m) acc[m] = acc[m] + (even[m] + odd[m]);
    ++leaf;
    x += kLeaf;
  } while (--leaves > 0);
  for (int m = 0; m < M; ++m) store(y + m * y_stride, acc[m] + splat(0.0f));
}

// The same for any number of rows; the first ones fetch.
template <int M, bool pairs, typename Element>
inline void dot_rows(const float* x, int rows, const PanelLeaf<Element>* leaf, int leaves, float* y,
                     int64_t y_stride, bool fetch = true) {
  for (; rows >= M; rows -= M, x += M * kRowStride, y += M * y_stride, fetch = false)
    (fetch ? dot_block<M, true, pairs, Element>
           : dot_block<M, false, pairs, Element>)(x, leaf, leaves, y, y_stride);
  if constexpr (M > 1)
    if (rows > 0) dot_rows<M / 2, pairs>(x, rows, leaf, leaves, y, y_stride, fetch);
}

// `row_block`: how many queries share the unpacking of a key or value. Element: uint16_t for bf16,
// or float. `pairs`: in the order `pair`.
template <int row_block, typename Element = uint16_t, bool pairs = false>
class VectorProducts {
 public:
  explicit VectorProducts(const AttentionTile& tile)
      : queries_(tile.queries),
        head_dim_(tile.head_dim),
        padded_(round_up_to(tile.head_dim, kLeaf)) {
    for (int i = 0; i < queries_; ++i)
      for (int e = 0; e < padded_; e += 16)
        store(q_ + i * kRowStride + e, load_query(tile.q[i], e));
  }

  void scores(const Split& split, float* d) const {
    PanelLeaf<Element> panel[kMaxHead / kLeaf];
    for (int leaf = split.first_leaf; leaf < split.end_leaf; ++leaf)
      for (int half = 0; half < 2; ++half) {
        for (int i = 0; i < padded_ / kLeaf; ++i) {
          const int at = half * 16 * padded_ + 512 * i;
          panel[i] = {elements(split.leaves[leaf].keys) + at,
                      elements(split.ahead[leaf].keys) + at};
        }
        dot_rows<row_block, pairs>(q_, queries_, panel, padded_ / kLeaf,
                                   d + leaf * kLeaf + half * 16, kSplit);
      }
  }

  // A weight is +0, normal, infinite or NaN, so plain rounding is to_bf16, except that a NaN may
  // become anything; then the sum of the weights is a NaN, and with it the query's result.
  void store_weights(int query, int slot, Vec16 p) {
    if constexpr (sizeof(Element) == 4) return store(p_ + query * kRowStride + slot, p);
    const Bits16 bits = bits_of(p), odd = (bits >> 16) & splat_bits(1);
    const Bits16 rounded = (bits + splat_bits(0x7fff) + odd) & splat_bits(0xffff0000);
    store(p_ + query * kRowStride + slot, value_of(rounded));
  }

  // Leaves that no query sees are left out: their weights are +0, so a chain would add fma(0, v,
  // +0) to +0 all along, a leaf of +0. That can turn an accumulator of -0 into +0 and nothing else,
  // and the + 0 that ends a dot does the same.
  template <typename Use>
  void values(const Split& split, Use use) const {
    const int leaves = split.end_leaf - split.first_leaf;
    PanelLeaf<Element> panel[kSplitLeaves];
    alignas(64) float o[kVectorTileQueries * 16];
    for (int e = 0; e < head_dim_; e += 16) {
      for (int i = 0; i < leaves; ++i)
        panel[i] = {elements(split.leaves[split.first_leaf + i].values) + 32 * e,
                    elements(split.ahead[split.first_leaf + i].values) + 32 * e};
      dot_rows<row_block, pairs>(p_ + split.first_leaf * kLeaf, queries_, panel, leaves, o, 16);
      for (int i = 0; i < queries_; ++i) use(i, e, load(o + i * 16));
    }
  }

 private:
  static const Element* elements(const uint16_t* words) {
    return reinterpret_cast<const Element*>(words);
  }
  static Vec16 load_query(const uint16_t* words, int e) {
    if constexpr (sizeof(Element) == 4)
      return load(elements(words) + e);
    else
      return value_of(load_u16(words + e) << 16);
  }

  const int queries_, head_dim_, padded_;
  alignas(64) float q_[kVectorTileQueries * kRowStride];
  alignas(64) float p_[kVectorTileQueries * kRowStride];
};

}  // namespace

}  // namespace invar::cpu
