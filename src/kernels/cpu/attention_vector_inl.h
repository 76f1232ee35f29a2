// The products of attention by fma on Vec16 (numerics 1.1). Included after attention_inl.h, with
// kRowBlock: how many queries share the unpacking of a key or value.

// Dots of M rows of f32 with 16 columns: use(row, dot). leaf(i) is where the i-th leaf of the
// columns' packed panel stands.
template <int M, typename Leaf, typename Use>
inline void dot_block(const float* x, int64_t stride, int leaves, Leaf leaf, Use use) {
  Vec16 acc[M];
  for (int m = 0; m < M; ++m) acc[m] = splat(0.0f);
  for (int i = 0; i < leaves; ++i) {
    const uint16_t* w = leaf(i);
    Vec16 even[M], odd[M];
    for (int m = 0; m < M; ++m) even[m] = odd[m] = splat(0.0f);
#pragma GCC unroll 4
    for (int j = 0; j < kLeaf / 2; ++j) {
      const Bits16 pair = load_bits(w + 32 * j);
      const Vec16 w_even = value_of(pair << 16);
      const Vec16 w_odd = value_of(pair & splat_bits(0xffff0000));
      for (int m = 0; m < M; ++m) {
        const float* at = x + m * stride + i * kLeaf + 2 * j;
        even[m] = fma(splat(at[0]), w_even, even[m]);
        odd[m] = fma(splat(at[1]), w_odd, odd[m]);
      }
    }
    for (int m = 0; m < M; ++m) acc[m] = acc[m] + (even[m] + odd[m]);
  }
  for (int m = 0; m < M; ++m) use(m, acc[m] + splat(0.0f));
}

// The same for any number of rows.
template <int M, typename Leaf, typename Use>
inline void dot_rows(const float* x, int64_t stride, int rows, int leaves, Leaf leaf, Use use) {
  int row = 0;
  for (; row + M <= rows; row += M)
    dot_block<M>(x + row * stride, stride, leaves, leaf, [&](int m, Vec16 y) { use(row + m, y); });
  if constexpr (M > 1) {
    if (row < rows)
      dot_rows<M / 2>(x + row * stride, stride, rows - row, leaves, leaf,
                      [&](int m, Vec16 y) { use(row + m, y); });
  }
}

class VectorProducts {
 public:
  explicit VectorProducts(const AttentionTile& tile)
      : queries_(tile.queries),
        head_dim_(tile.head_dim),
        padded_(round_up_to(tile.head_dim, kLeaf)) {
    for (int i = 0; i < queries_; ++i)
      for (int e = 0; e < padded_; e += 16)
        store(q_ + i * padded_ + e, value_of(load_u16(tile.q[i] + e) << 16));
  }

  void scores(const Split& split, float* d) const {
    for (int leaf = split.first_leaf; leaf < split.end_leaf; ++leaf)
      for (int half = 0; half < 2; ++half) {
        const uint16_t* panel = split.keys[leaf] + half * 16 * padded_;
        float* to = d + leaf * kLeaf + half * 16;
        dot_rows<kRowBlock>(
            q_, padded_, queries_, padded_ / kLeaf, [&](int i) { return panel + 512 * i; },
            [&](int query, Vec16 y) { store(to + query * kSplit, y); });
      }
  }

  // A weight is +0, normal, infinite or NaN, so plain rounding is to_bf16, except that a NaN may
  // become anything; then the sum of the weights is a NaN, and with it the query's result.
  void store_weights(int query, int place, Vec16 p) {
    const Bits16 bits = bits_of(p), odd = (bits >> 16) & splat_bits(1);
    const Bits16 rounded = (bits + splat_bits(0x7fff) + odd) & splat_bits(0xffff0000);
    store(p_ + query * kSplit + place, value_of(rounded));
  }

  // Leaves that no query sees are left out: their weights are +0, so a chain would add fma(0, v,
  // +0) to +0 all along, a leaf of +0. That can turn an accumulator of -0 into +0 and nothing else,
  // and the + 0 that ends a dot does the same.
  template <typename Use>
  void values(const Split& split, Use use) const {
    for (int e = 0; e < head_dim_; e += 16)
      dot_rows<kRowBlock>(
          p_ + split.first_leaf * kLeaf, kSplit, queries_, split.end_leaf - split.first_leaf,
          [&](int i) { return split.values[split.first_leaf + i] + 32 * e; },
          [&](int query, Vec16 o) { use(query, e, o); });
  }

 private:
  const int queries_, head_dim_, padded_;
  alignas(64) float q_[kVectorTileQueries * 256];
  alignas(64) float p_[kVectorTileQueries * kSplit];
};
