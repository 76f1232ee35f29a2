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
  bool first;     // the chains begin here, from +0
  float* chains;  // [panel][chain_rows][16]
  int64_t chain_rows;
  const char* next;  // weights that are used after these: fetched meanwhile, so memory never waits
};

// ---- For the vector sets: rows and panels as f32, even elements apart from odd ones.

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

// What a vector set multiplies at once: a few rows by one or more panels.
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

// ---- The loops

// Rows of a block and panels of a group, an even number.
struct BlockShape {
  int64_t rows, panels;
};

// Set::kChains    rows times panels of a block, at most
// Set::kTileRows  rows that one tile takes: blocks are cut between tiles
// Set::kLeaves    leaves of a stretch, at most
// Set::shape(p)   of the blocks of p, at most
// Set::chain_rows(rows)     places for the rows of a block among its chains
// Set::place_of(row, rows)  and where each stands
// Set(rows), accumulate(stretch)
template <typename Set>
class Product {
 public:
  explicit Product(const PanelProduct& p)
      : p_(p), leaf_bytes_(kLeaf * 16 * (p.f32 ? 4 : 2)), element_(p.f32 ? 4 : 2) {}

  void run() {
    const BlockShape shape = Set::shape(p_);
    const int64_t tiles = ceil_div(p_.rows, Set::kTileRows);
    const int64_t blocks = ceil_div(tiles, shape.rows / Set::kTileRows);
    for (int64_t b = 0; b < blocks; ++b) {
      const int64_t begin = tiles * b / blocks * Set::kTileRows;
      const int64_t end = smaller(tiles * (b + 1) / blocks * Set::kTileRows, p_.rows);
      const char* after = b + 1 < blocks ? weights(0, 0) : nullptr;
      chain_rows_ = Set::chain_rows(end - begin);
      Set set(end - begin);
      for (int64_t panel = 0; panel < p_.panels; panel += shape.panels) {
        const int64_t count = smaller(shape.panels, p_.panels - panel);
        const bool is_last = panel + count == p_.panels;
        dots(set, begin, end - begin, panel, count, is_last ? after : weights(panel + count, 0));
        if (p_.out)
          write_gated(begin, end - begin, panel, count);
        else
          write(begin, end - begin, panel, count);
      }
    }
  }

 private:
  const char* weights(int64_t panel, int64_t leaf) const {
    return static_cast<const char*>(p_.w) + panel * p_.panel_bytes + leaf * leaf_bytes_;
  }

  // Leaves chains_[0] with the dots of a block and a group, before the + 0. `after`: the weights
  // that are read next.
  void dots(Set& set, int64_t row, int64_t rows, int64_t panel, int64_t panels, const char* after) {
    const int64_t run_leaves = p_.leaves / p_.runs;
    const int64_t stretches = ceil_div(run_leaves, Set::kLeaves);
    if (p_.extend) load_chains(row, rows, panel, panels);
    int depth = 0;  // runs, or trees of them, that wait for their neighbour
    for (int r = 0; r < p_.runs; ++r) {
      for (int64_t s = 0; s < stretches; ++s) {
        const int64_t from = r * run_leaves + run_leaves * s / stretches;
        const int64_t to = r * run_leaves + run_leaves * (s + 1) / stretches;
        set.accumulate(Stretch{
            .f32 = p_.f32,
            .x = static_cast<const char*>(p_.x) + row * p_.x_stride + from * kLeaf * element_,
            .x_stride = p_.x_stride,
            .rows = rows,
            .w = weights(panel, from),
            .panel_bytes = p_.panel_bytes,
            .panels = panels,
            .leaves = to - from,
            .first = s == 0 && !p_.extend,
            .chains = chains_[depth],
            .chain_rows = chain_rows_,
            .next = to < p_.leaves ? weights(panel, to) : after});
      }
      // (s0 + s1) + (s2 + s3) ...: a run with an odd number meets the tree to its left.
      for (int odd = r; odd & 1; odd >>= 1) {
        --depth;
        add_chains(depth, rows, panels);
      }
      ++depth;
    }
  }

  // chains_[0] = what y holds
  void load_chains(int64_t row, int64_t rows, int64_t panel, int64_t panels) {
    const int64_t used = (Set::place_of(rows - 1, rows) + 1) * 16;
    for (int64_t q = 0; q < panels; ++q) {
      float* chains = chains_[0] + q * chain_rows_ * 16;
      for (int64_t i = 0; i < used; i += 16) store(chains + i, splat(0.0f));
      const int64_t n = (panel + q) * 16;
      for (int64_t t = 0; t < rows; ++t)
        store(chains + Set::place_of(t, rows) * 16,
              load(p_.y + (row + t) * p_.y_stride + n, p_.outputs - n));
    }
  }

  // chains_[at] += chains_[at + 1]
  void add_chains(int at, int64_t rows, int64_t panels) {
    const int64_t used = (Set::place_of(rows - 1, rows) + 1) * 16;
    for (int64_t q = 0; q < panels; ++q)
      for (int64_t i = 0; i < used; i += 16) {
        float* left = chains_[at] + q * chain_rows_ * 16 + i;
        store(left, load(left) + load(chains_[at + 1] + q * chain_rows_ * 16 + i));
      }
  }

  Vec16 dot(int64_t row, int64_t rows, int64_t panel) const {
    return load(chains_[0] + (panel * chain_rows_ + Set::place_of(row, rows)) * 16) + splat(0.0f);
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
  int64_t chain_rows_ = 0;
  alignas(64) float chains_[4][Set::kChains * 16];
};
