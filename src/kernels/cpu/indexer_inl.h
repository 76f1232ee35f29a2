// The scores of an indexer, numerics 4.6, by the products of attention. Included after
// attention_vector_inl.h.
#pragma once

#include <cstdint>

namespace invar::cpu {

namespace {

template <typename Products>
inline void add_index_scores(const AttentionTile& tile, const float* weights, float* scores) {
  Products products(tile);
  alignas(64) float d[kMaxTileQueries * kSplit];
  const Vec16 zero = splat(0.0f);
  for (int base = tile.lowest / kSplit * kSplit; base <= tile.highest; base += kSplit) {
    const Split split = locate(tile, nullptr, base);
    products.scores(split, d);
    for (int slot = split.first_leaf * kLeaf; slot < split.end_leaf * kLeaf; slot += 16) {
      Vec16 sum = load(scores + base + slot);
      for (int i = 0; i < tile.queries; ++i)
        sum = fma(splat(weights[i]), max(load(d + i * kSplit + slot), zero), sum);
      store(scores + base + slot, sum + zero);
    }
  }
}

}  // namespace

}  // namespace invar::cpu
