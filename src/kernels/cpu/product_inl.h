// The loops around a matrix product that all instruction sets share. Included inside an anonymous
// namespace after panel_product.h, a vec16 header and vec16_math.h.
//
// Rows are cut into blocks, panels into groups, chains into stretches of leaves. Chains live in
// memory between the stretches: the next leaf added to a stored accumulator is the same chain. A
// set provides `accumulate`, which adds one stretch to the chains of a block.

constexpr int64_t kLeaf = 32;  // elements
constexpr int64_t kLine = 64;  // bytes of a cache line

constexpr int64_t ceil_div(int64_t x, int64_t y) {
  return (x + y - 1) / y;
}
constexpr int64_t smaller(int64_t x, int64_t y) {
  return x < y ? x : y;
}

// One stretch of leaves of a group of panels, for one block of rows.
struct Stretch {
  bool f32;
  const char* x;  // row 0, first leaf
  int64_t x_stride;
  int64_t rows;
  const char* w;  // panel 0, first leaf
  int64_t panel_bytes;
  int64_t panels;
  int64_t leaves;
  bool first;        // the chains begin here, from +0
  float* chains;     // [panel][Set::kRows][16]
  const char* next;  // weights that are used after these: fetched meanwhile, so memory never waits
};

// Set::kRows     rows of a block, at most; a multiple of kTileRows
// Set::kTileRows rows that one tile takes: blocks are cut between tiles
// Set::kPanels   panels of a group, even
// Set::kLeaves   leaves of a stretch, at most
// Set::row_limit(p)         rows of a block that p should have, at most kRows
// Set::place_of(row, rows)  where a row of a block stands among its chains
// Set(rows), accumulate(stretch)
template <typename Set>
class Product {
 public:
  explicit Product(const PanelProduct& p)
      : p_(p), leaf_bytes_(kLeaf * 16 * (p.f32 ? 4 : 2)), element_(p.f32 ? 4 : 2) {}

  void run() {
    const int64_t tiles = ceil_div(p_.rows, Set::kTileRows);
    const int64_t blocks = ceil_div(tiles, Set::row_limit(p_) / Set::kTileRows);
    for (int64_t b = 0; b < blocks; ++b) {
      const int64_t begin = tiles * b / blocks * Set::kTileRows;
      const int64_t end = smaller(tiles * (b + 1) / blocks * Set::kTileRows, p_.rows);
      Set set(end - begin);
      for (int64_t panel = 0; panel < p_.panels; panel += Set::kPanels) {
        const int64_t count = smaller(Set::kPanels, p_.panels - panel);
        const bool is_last = panel + count == p_.panels;
        if (is_last) last_next_ = b + 1 < blocks ? weights(0, 0) : nullptr;
        dots(set, begin, end - begin, panel, count, is_last);
        if (p_.out)
          write_gated(begin, end - begin, panel, count);
        else
          write(begin, end - begin, panel, count);
      }
    }
  }

 private:
  static constexpr int64_t kPanelChains = int64_t{Set::kRows} * 16;

  const char* weights(int64_t panel, int64_t leaf) const {
    return static_cast<const char*>(p_.w) + panel * p_.panel_bytes + leaf * leaf_bytes_;
  }

  // Leaves chains_[0] with the dots of a block and a group, before the + 0.
  void dots(Set& set, int64_t row, int64_t rows, int64_t panel, int64_t panels, bool is_last) {
    const int64_t run_leaves = p_.leaves / p_.runs;
    const int64_t stretches = ceil_div(run_leaves, Set::kLeaves);
    int depth = 0;  // runs, or trees of them, that wait for their neighbour
    for (int r = 0; r < p_.runs; ++r) {
      for (int64_t s = 0; s < stretches; ++s) {
        const int64_t from = r * run_leaves + run_leaves * s / stretches;
        const int64_t to = r * run_leaves + run_leaves * (s + 1) / stretches;
        const char* next = to < p_.leaves ? weights(panel, to)
                           : is_last      ? last_next_
                                          : weights(panel + Set::kPanels, 0);
        set.accumulate(Stretch{
            .f32 = p_.f32,
            .x = static_cast<const char*>(p_.x) + row * p_.x_stride + from * kLeaf * element_,
            .x_stride = p_.x_stride,
            .rows = rows,
            .w = weights(panel, from),
            .panel_bytes = p_.panel_bytes,
            .panels = panels,
            .leaves = to - from,
            .first = s == 0,
            .chains = chains_[depth],
            .next = next});
      }
      // (s0 + s1) + (s2 + s3) ...: a run with an odd number meets the tree to its left.
      for (int odd = r; odd & 1; odd >>= 1) {
        --depth;
        add_chains(depth, rows, panels);
      }
      ++depth;
    }
  }

  // chains_[at] += chains_[at + 1]
  void add_chains(int at, int64_t rows, int64_t panels) {
    const int64_t used = (Set::place_of(rows - 1, rows) + 1) * 16;
    for (int64_t q = 0; q < panels; ++q)
      for (int64_t i = q * kPanelChains; i < q * kPanelChains + used; i += 16)
        store(chains_[at] + i, load(chains_[at] + i) + load(chains_[at + 1] + i));
  }

  Vec16 dot(int64_t row, int64_t rows, int64_t panel) const {
    return load(chains_[0] + panel * kPanelChains + Set::place_of(row, rows) * 16) + splat(0.0f);
  }

  void write(int64_t row, int64_t rows, int64_t panel, int64_t panels) {
    for (int64_t t = 0; t < rows; ++t) {
      float* y = p_.y + (row + t) * p_.y_stride + panel * 16;
      for (int64_t q = 0; q < panels; ++q, y += 16) {
        const int64_t n = (panel + q) * 16, left = p_.outputs - n;
        Vec16 v = dot(t, rows, q);
        if (p_.bias) v = v + load(p_.bias + n, left);
        if (p_.accumulate) v = load(y, left) + v;
        store(y, v, left);
      }
    }
  }

  void write_gated(int64_t row, int64_t rows, int64_t panel, int64_t panels) {
    for (int64_t t = 0; t < rows; ++t) {
      char* out = static_cast<char*>(p_.out) + (row + t) * p_.out_stride;
      for (int64_t q = 0; q < panels; q += 2) {
        const int64_t f = (panel + q) * 8, left = p_.outputs - f;
        Vec16 g = dot(t, rows, q), u = dot(t, rows, q + 1);
        if (p_.gate_bias) g = g + load(p_.gate_bias + f, left);
        if (p_.up_bias) u = u + load(p_.up_bias + f, left);
        const Vec16 minus_g = value_of(bits_of(g) + splat_bits(0x80000000));
        const Vec16 y = (g / (splat(1.0f) + exp(minus_g))) * u;
        const Vec16 kept = select(lanes(0, static_cast<int>(smaller(left, 16))), y, splat(0.0f));
        if (p_.f32)
          store(reinterpret_cast<float*>(out) + f, kept);
        else
          store_u16(reinterpret_cast<uint16_t*>(out) + f, to_bf16(kept));
      }
    }
  }

  const PanelProduct& p_;
  const int64_t leaf_bytes_, element_;
  const char* last_next_ = nullptr;  // what is read after the last group of a block
  alignas(64) float chains_[4][Set::kPanels * kPanelChains];
};
