// Matrix products of order `portable` on AMX whose chains may lie in memory between two parts of
// their inner size: the products of training, with thousands of rows or thousands of inner
// elements, and the blocks of attention's backward.
//
// A block of rows meets a group of panels chunk by chunk of the inner size, so that rows, weights
// and chains of all three stay in L2. In it a pair of panels' part of the weights stays in L1 and
// the rows are loaded past L1: 4 loads and 2 fills of L1 for 4 products of tiles. Meanwhile the
// lines that come next are fetched to L2, and those that will be written.
#include <immintrin.h>

#include "kernels/cpu/panel_product.h"
// in this order
#include "kernels/cpu/amx_strip_inl.h"
#include "kernels/cpu/vec16_avx512.h"
// after it
#include "kernels/cpu/vec16_math.h"
// after it
#include "kernels/cpu/product_end_inl.h"

namespace invar::cpu {

namespace {

// Tiles of rows and panels of a block, and leaves of a chunk: two panels' part of the weights
// should fit L1 of 48 KB beside the rows that pass through. A matrix of few leaves is not cut.
constexpr int64_t kBlockTiles = 16, kGroupPanels = 24, kChunkLeaves = 16, kFewLeaves = 24;

// Part of a run: two tiles of rows by two panels, or fewer.
struct Piece {
  const char *x, *w;
  int64_t leaves;
  bool begins;  // chains of +0
  Chains from, to;
  bool ends;          // with + 0, as a dot does
  const char* fetch;  // rows that will be written, y's stride apart
  int64_t fetch_rows;
  const char* w_fetch;  // lines of weights that come next, and how many of a panel per leaf
  int64_t w_lines;
  const char* x_fetch;  // a line of each of some rows that come next, per leaf
  int64_t x_rows;
};

class ChainProduct {
 public:
  explicit ChainProduct(const PanelProduct& p)
      : p_(p), y_{p.y, p.y_stride * 4, 16 * p.y_stride * 4, kLine} {}

  void run() {
    configure_tiles();
    const int64_t tiles = p_.rows / 16, pairs = ceil_div(p_.panels, 2);
    const int64_t chunks = p_.leaves <= kFewLeaves ? 1 : ceil_div(p_.leaves, kChunkLeaves);
    const int64_t blocks = ceil_div(tiles, kBlockTiles);
    const int64_t groups = chunks > 1 ? ceil_div(pairs, kGroupPanels / 2) : 1;
    const bool by_vectors = p_.split_k > 1 || p_.bias || p_.accumulate;  // what ends a dot
    for (int64_t b = 0; b < blocks; ++b) {
      tile_ = tiles * b / blocks;
      tiles_ = tiles * (b + 1) / blocks - tile_;
      if (by_vectors) multiply_runs();
      for (int64_t g = 0; g < groups && !by_vectors; ++g)
        for (int64_t c = 0; c < chunks; ++c)
          multiply_chunk({.panel = pairs * g / groups * 2,
                          .end_panel = smaller(pairs * (g + 1) / groups * 2, p_.panels),
                          .leaf = p_.leaves * c / chunks,
                          .end_leaf = p_.leaves * (c + 1) / chunks,
                          .next_tile = c + 1 < chunks || g + 1 < groups ? tile_ : tile_ + tiles_,
                          .next_leaf = c + 1 < chunks ? p_.leaves * (c + 1) / chunks : 0});
    }
    tile_release();
  }

 private:
  // Panels and leaves that a block of rows is multiplied with; then the rows' part comes next that
  // begins at `next_tile` and `next_leaf`.
  struct Chunk {
    int64_t panel, end_panel, leaf, end_leaf, next_tile, next_leaf;
  };

  void multiply_chunk(const Chunk& c) {
    const bool is_first = c.leaf == 0, is_last = c.end_leaf == p_.leaves;
    const int64_t leaves = c.end_leaf - c.leaf, strips = ceil_div(tiles_, 2);
    const int64_t pieces = ceil_div(c.end_panel - c.panel, 2) * strips;
    const Chains kept = packed_chains(kept_, tiles_);
    Piece piece{.leaves = leaves,
                .begins = is_first && !p_.extend,
                .ends = is_last && !p_.is_open,
                .w_lines = ceil_div(16, strips),
                .x_fetch = rows(c.next_tile, c.next_leaf),
                .x_rows = is_first && is_last ? 0 : ceil_div(tiles_ * 16, pieces)};
    for (int64_t panel = c.panel; panel < c.end_panel; panel += 2) {
      const int64_t panels = smaller(2, c.end_panel - panel);
      piece.w = weights(panel, c.leaf);
      piece.w_fetch = weights(panel + 2, c.leaf);
      for (int64_t t = 0; t < tiles_; t += 2) {
        const Chains here = kept.from(t, panel - c.panel), y = y_.from(tile_ + t, panel);
        piece.x = rows(tile_ + t, c.leaf);
        piece.from = is_first ? y : here;
        piece.to = is_last ? y : here;
        const int64_t tiles = smaller(2, tiles_ - t);
        piece.fetch = reinterpret_cast<const char*>(y.first);
        piece.fetch_rows = is_last ? tiles * 16 : 0;
        multiply(piece, tiles, panels);
        piece.w_fetch += piece.w_lines * leaves * kLine;
        piece.x_fetch += piece.x_rows * p_.x_stride;
      }
    }
  }

  // All runs of two tiles of rows by two panels, then their tree, and so on.
  void multiply_runs() {
    const int64_t leaves = p_.leaves / p_.split_k;
    Piece piece{.leaves = leaves, .begins = true, .w_lines = ceil_div(32, tiles_)};
    for (int64_t panel = 0; panel < p_.panels; panel += 2) {
      const int64_t panels = smaller(2, p_.panels - panel);
      for (int64_t t = 0; t < tiles_; t += 2) {
        const int64_t tiles = smaller(2, tiles_ - t);
        float* y = y_.at(tile_ + t, panel);
        piece.fetch = reinterpret_cast<const char*>(y);
        piece.fetch_rows = tiles * 16 / p_.split_k;
        for (int64_t run = 0; run < p_.split_k; ++run) {
          piece.x = rows(tile_ + t, run * leaves);
          piece.w = weights(panel, run * leaves);
          piece.w_fetch = piece.w + 2 * p_.panel_bytes + t / 2 * piece.w_lines * leaves * kLine;
          piece.to = packed_chains(kept_ + run * 4 * kTileFloats, tiles);
          multiply(piece, tiles, panels);
          piece.fetch += piece.fetch_rows * y_.row;
        }
        for (int64_t p = 0; p < panels; ++p)
          add_runs(kept_ + p * tiles * kTileFloats, tiles * 16, panel + p, y + p * 16);
      }
    }
  }

  // (s0 + s1) + (s2 + s3) ... of each row.
  void add_runs(const float* sums, int64_t rows, int64_t panel, float* y) const {
    const Vec16 zero = splat(0.0f), bias = p_.bias ? load(p_.bias + panel * 16) : zero;
    for (int64_t row = 0; row < rows; ++row, sums += 16, y += p_.y_stride) {
      Vec16 s[8];
      for (int r = 0; r < p_.split_k; ++r) s[r] = load(sums + r * 4 * kTileFloats);
      for (int left = p_.split_k / 2; left > 0; left /= 2)
        for (int r = 0; r < left; ++r) s[r] = s[2 * r] + s[2 * r + 1];
      const Vec16 dot = s[0] + zero + bias;
      store(y, p_.accumulate ? load(y) + dot : dot);
    }
  }

  const char* rows(int64_t tile, int64_t leaf) const {
    return static_cast<const char*>(p_.x) + tile * 16 * p_.x_stride + leaf * kLine;
  }
  const char* weights(int64_t panel, int64_t leaf) const {
    return static_cast<const char*>(p_.w) + panel * p_.panel_bytes + leaf * kTileBytes;
  }

  void multiply(const Piece& s, int64_t tiles, int64_t panels) {
    with_shape(tiles, panels, [&]<int R, int P>() { multiply_tiles<R, P>(s); });
  }

  template <int R, int P>
  void multiply_tiles(const Piece& s) {
    s.begins ? zero_chains<R, P>() : load_chains<R, P>(s.from);
    const int64_t stride = p_.x_stride;
    const char *x = s.x, *w = s.w, *w_fetch = s.w_fetch, *x_fetch = s.x_fetch;
    const char *x_second = x + 16 * stride, *w_second = w + p_.panel_bytes;
    const char *fetch = s.fetch, *fetch_end = fetch + s.fetch_rows * y_.row;
    for (int64_t left = s.leaves; left > 0; --left) {
      add_leaf<R, P, RowsAre::past_l1>(x, x_second, stride, w, w_second);
      x += kLine, x_second += kLine, w += kTileBytes, w_second += kTileBytes;
      for (int64_t i = 0; i < s.w_lines; ++i, w_fetch += kLine) {
        _mm_prefetch(w_fetch, _MM_HINT_T1);
        if constexpr (P == 2) _mm_prefetch(w_fetch + p_.panel_bytes, _MM_HINT_T1);
      }
      for (int64_t i = 0; i < s.x_rows; ++i) _mm_prefetch(x_fetch + i * stride, _MM_HINT_T1);
      x_fetch += kLine;
      for (int i = 0; i < 2 && fetch < fetch_end; ++i, fetch += y_.row) {
        fetch_to_write(fetch);
        if constexpr (P == 2) fetch_to_write(fetch + kLine);
      }
      stay_awake();
    }
    if (s.ends) add_zero();
    store_chains<R, P>(s.to);
  }

  // A leaf of zeros, for all four chains: those that are not stored do not matter.
  static void add_zero() {
    tile_zero<4>();
    tile_zero<6>();
    tile_dot<0, 4, 6>();
    tile_dot<1, 4, 6>();
    tile_dot<2, 4, 6>();
    tile_dot<3, 4, 6>();
  }

  static void fetch_to_write(const char* line) { __asm__ volatile("prefetchw %0" : : "m"(*line)); }

  const PanelProduct& p_;
  const Chains y_;
  int64_t tile_ = 0, tiles_ = 0;  // of the block
  alignas(64) float kept_[kBlockTiles * kGroupPanels * kTileFloats];
};

// The dots of a row become gated activations.
void gate_row(const PanelProduct& p, int64_t row) {
  const float* dots = p.dots + row * p.dots_stride;
  uint16_t* out = reinterpret_cast<uint16_t*>(static_cast<char*>(p.out) + row * p.out_stride);
  for (int64_t f = 0; f < p.outputs; f += 16, dots += 32) {
    Vec16 g = load(dots), u = load(dots + 16);
    if (p.gate_bias) g = g + load(p.gate_bias + f);
    if (p.up_bias) u = u + load(p.up_bias + f);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + f), round_to_bf16(gated(p, g, u).v));
  }
}

}  // namespace

void chains_amx(const PanelProduct& p) {
  ChainProduct(p).run();
}

// Gated pairs whose dots are kept: the dots of some rows, then what follows them.
void gated_chains_amx(const PanelProduct& p) {
  PanelProduct dots = p;
  dots.out = nullptr;
  dots.outputs = p.panels * 16;
  dots.y_stride = p.dots_stride;
  for (int64_t row = 0; row < p.rows; row += dots.rows) {
    dots.rows = smaller(kBlockTiles * 16, p.rows - row);
    dots.x = static_cast<const char*>(p.x) + row * p.x_stride;
    dots.y = p.dots + row * p.dots_stride;
    ChainProduct(dots).run();
    for (int64_t i = row; i < row + dots.rows; ++i) gate_row(p, i);
  }
}

}  // namespace invar::cpu
