// Matrix products of order `portable` on AMX: one TDPBF16PS adds one leaf of 16 rows by 16 outputs.
//
// Tiles 0 to 3 hold the chains of a strip of 32 rows by a pair of panels for a whole run, so that
// no chain is ever stored and loaded again; tiles 4 and 5 hold rows, 6 and 7 panels. The operands
// of a leaf are loaded behind the products of the leaf before it. What follows a run (the tree,
// biases, gates, the output) is done a few rows at a time between the products of the next run.
// Meanwhile the lines of the weights that come next are fetched to L2.
#include <immintrin.h>

#include "kernels/cpu/panel_product.h"

namespace invar::cpu {

namespace {

#include "kernels/cpu/amx_tiles_inl.h"
#include "kernels/cpu/vec16_avx512.h"
// after it
#include "kernels/cpu/vec16_math.h"
// after that
#include "kernels/cpu/product_end_inl.h"

constexpr int64_t kTileBytes = 1024, kTileFloats = 256;
constexpr int kLevels = 4;  // runs that can wait in the tree of 8, and one in progress

// Rows of a block are read again for every group of panels, so a block should stay in L2: here 1.5
// of 2 MB. A block has at most kStrips strips in groups of 2 panels; when rows are so long that few
// of them fit, kStrips / 4 strips in groups of 8 panels read them more rarely.
constexpr int64_t kBlockBytes = 3 << 19;
constexpr int64_t kStrips = 16;

// From this size on, an output that is only written goes past the caches: it would not stay in L2
// until it is read, and to bring its lines in first costs more than the products of one panel.
constexpr int64_t kLargeOutput = 2 << 20;

// Up to two tiles of rows. The last tile of a block begins 16 rows before its end, so that every
// tile is whole; its rows that stand in the tile above, too, are computed twice and written once.
struct Strip {
  const char* x[2];  // the first row of each tile, at leaf 0; the same twice when there is one tile
  int64_t tiles;
  int64_t row[2];   // of the product
  int64_t skip[2];  // rows of the tile that are not its own
};

// Where the next product finds its operands.
struct Operands {
  const char* x[2];
  const char* w[2];
};

// Lines of later weights that are fetched during a product.
struct Fetch {
  const char* w[2];
  int64_t lines;  // of each panel, per leaf
};

// A finished run of a strip and a pair of panels, and what is to be done with it.
struct Finish {
  const Strip* strip = nullptr;
  float* chains;   // [panel][tile][16][16], one level of the tree after the other
  int64_t levels;  // that it is added to
  bool is_dot;     // the last run: the sum is the dot
  int64_t panel;
  int panels;
  int64_t at, end;  // rows of the strip's tiles that are left
};

class AmxProduct {
 public:
  explicit AmxProduct(const PanelProduct& p)
      : p_(p),
        run_leaves_(p.leaves / p.runs),
        finish_rows_(ceil_div(32, run_leaves_)),
        past_caches_(!p.out && !p.accumulate && !p.extend &&
                     p.rows * p.outputs * 4 >= kLargeOutput && p.outputs % 16 == 0 &&
                     p.y_stride % 16 == 0 && reinterpret_cast<uintptr_t>(p.y) % kLine == 0) {}

  void run() {
    const int64_t fitting = kBlockBytes / (p_.leaves * kLine) / 32;  // strips
    const bool rows_stay = fitting >= smaller(ceil_div(p_.rows, 32), kStrips / 4);
    const int64_t most = rows_stay ? smaller(fitting, kStrips) : kStrips / 4;
    const int64_t group = rows_stay ? 2 : 8;
    const int64_t tiles = ceil_div(p_.rows, 16), blocks = ceil_div(tiles, 2 * most);
    for (int64_t b = 0; b < blocks; ++b) {
      const int64_t begin = tiles * b / blocks * 16;
      const int64_t end = smaller(tiles * (b + 1) / blocks * 16, p_.rows);
      start_block(begin, end - begin);
      for (int64_t panel = 0; panel < p_.panels; panel += group) {
        const int64_t after = panel + group < p_.panels ? panel + group
                              : b + 1 < blocks          ? 0
                                                        : panel;
        multiply_group(panel, smaller(panel + group, p_.panels), after);
      }
      while (finish_.strip) finish(32);
      tile_release();
    }
    if (past_caches_) _mm_sfence();  // such stores have an order only by fences
  }

 private:
  void start_block(int64_t begin, int64_t rows) {
    tile_rows_ = smaller(rows, 16);
    TileConfig config;
    for (int t = 0; t < 8; ++t) {
      config.row_bytes[t] = kLine;
      config.rows[t] = static_cast<uint8_t>(t < 6 ? tile_rows_ : 16);
    }
    tile_configure(config);
    has_operands_ = false;

    const int64_t tiles = ceil_div(rows, 16);
    strip_count_ = ceil_div(tiles, 2);
    fetch_lines_ = ceil_div(16, strip_count_);
    for (int64_t i = 0; i < strip_count_; ++i) {
      Strip& s = strips_[i];
      s.tiles = smaller(2, tiles - 2 * i);
      for (int64_t t = 0; t < 2; ++t) {
        const int64_t tile = 2 * i + (t < s.tiles ? t : 0);
        const int64_t first = rows < 16 ? 0 : smaller(tile * 16, rows - 16);
        s.row[t] = begin + first;
        s.skip[t] = tile * 16 - first;
        s.x[t] = static_cast<const char*>(p_.x) + s.row[t] * p_.x_stride;
      }
    }
  }

  // All runs of a group of panels. `after`: the first panel that is read next.
  void multiply_group(int64_t begin, int64_t end, int64_t after) {
    int depth = 0;  // runs, or trees of them, that wait for their neighbour
    for (int r = 0; r < p_.runs; ++r) {
      const bool is_last = r + 1 == p_.runs;
      const int64_t leaf = r * run_leaves_;
      const int64_t next_leaf = is_last ? 0 : leaf + run_leaves_,
                    next_begin = is_last ? after : begin;
      // (s0 + s1) + (s2 + s3) ...: a run with an odd number meets the trees to its left.
      const int levels = __builtin_ctz(~static_cast<unsigned>(r));
      for (int64_t i = 0; i < strip_count_; ++i)
        for (int64_t panel = begin; panel < end; panel += 2) {
          const bool last_panel = panel + 2 >= end, last_strip = i + 1 == strip_count_;
          const Strip& next_strip = strips_[!last_panel ? i : last_strip ? 0 : i + 1];
          const Operands next = !last_panel   ? operands(next_strip, panel + 2, leaf)
                                : !last_strip ? operands(next_strip, begin, leaf)
                                              : operands(next_strip, next_begin, next_leaf);
          const int panels = panel + 1 < p_.panels ? 2 : 1;
          const int64_t slot = i * ((end - begin + 1) / 2) + (panel - begin) / 2;
          // Chains that go on are put in place while those before them still wait to be finished:
          // they use two levels in turn.
          float* chains = chains_[p_.extend ? turn_ ^= 1 : depth] + slot * 4 * kTileFloats;
          if (p_.extend) load_chains(strips_[i], panel, panels, chains);
          multiply(strips_[i], operands(strips_[i], panel, leaf), panels, next, chains,
                   fetch_of(i, next_begin + panel - begin, next_leaf));
          while (finish_.strip) finish(32);
          if (levels > 0 || is_last)
            finish_ = {.strip = &strips_[i],
                       .chains = chains,
                       .levels = levels,
                       .is_dot = is_last,
                       .panel = panel,
                       .panels = panels,
                       .at = 0,
                       .end = strips_[i].tiles * 16};
        }
      depth += 1 - levels;
    }
  }

  const char* weights(int64_t panel, int64_t leaf) const {
    return static_cast<const char*>(p_.w) + panel * p_.panel_bytes + leaf * kTileBytes;
  }

  Operands operands(const Strip& s, int64_t panel, int64_t leaf) const {
    return {{s.x[0] + leaf * kLine, s.x[1] + leaf * kLine},
            {weights(panel, leaf), weights(panel + 1 < p_.panels ? panel + 1 : panel, leaf)}};
  }

  // The strips share out the lines of the run that comes next for a pair of panels.
  Fetch fetch_of(int64_t strip, int64_t panel, int64_t leaf) const {
    if (strip * fetch_lines_ >= 16) return {{nullptr, nullptr}, 0};
    const char* w = weights(panel, leaf) + strip * fetch_lines_ * run_leaves_ * kLine;
    return {{w, w + p_.panel_bytes}, fetch_lines_};
  }

  void multiply(const Strip& s, const Operands& own, int panels, const Operands& next,
                float* chains, const Fetch& fetch) {
    if (s.tiles == 2)
      panels == 2 ? multiply<2, 2>(own, next, chains, fetch)
                  : multiply<2, 1>(own, next, chains, fetch);
    else
      panels == 2 ? multiply<1, 2>(own, next, chains, fetch)
                  : multiply<1, 1>(own, next, chains, fetch);
  }

  // One run of R tiles of rows by P panels.
  template <int R, int P>
  void multiply(const Operands& own, const Operands& next, float* chains, Fetch fetch) {
    Operands o = own;
    if (!has_operands_) {
      tile_load<4>(o.x[0], p_.x_stride);
      tile_load<6>(o.w[0], kLine);
      tile_load<7>(o.w[1], kLine);
      tile_load<5>(o.x[1], p_.x_stride);
      has_operands_ = true;
    }
    if (p_.extend) {
      tile_load<0>(chains, kLine);
      if (R == 2) tile_load<2>(chains + kTileFloats, kLine);
      if (P == 2) tile_load<1>(chains + 2 * kTileFloats, kLine);
      if (R == 2 && P == 2) tile_load<3>(chains + 3 * kTileFloats, kLine);
    } else {
      tile_zero<0>();
      if (R == 2) tile_zero<2>();
      if (P == 2) tile_zero<1>();
      if (R == 2 && P == 2) tile_zero<3>();
    }
    for (int64_t left = run_leaves_; left > 0; --left) {
      // The operands after these: each is loaded when the last product that uses its tile is under
      // way.
      if (left > 1)
        o = {{o.x[0] + kLine, o.x[1] + kLine}, {o.w[0] + kTileBytes, o.w[1] + kTileBytes}};
      else
        o = next;
      tile_dot<0, 4, 6>();
      fetch_lines(fetch.w[0], fetch.lines);
      if (P == 2) {
        tile_dot<1, 4, 7>();
        fetch_lines(fetch.w[1], fetch.lines);
      }
      tile_load<4>(o.x[0], p_.x_stride);
      if (R == 2) tile_dot<2, 5, 6>();
      tile_load<6>(o.w[0], kLine);
      if (R == 2 && P == 2) tile_dot<3, 5, 7>();
      tile_load<7>(o.w[1], kLine);
      tile_load<5>(o.x[1], p_.x_stride);
      if (finish_.strip) finish(finish_rows_);
    }
    tile_store<0>(chains, kLine);
    if (R == 2) tile_store<2>(chains + kTileFloats, kLine);
    if (P == 2) tile_store<1>(chains + 2 * kTileFloats, kLine);
    if (R == 2 && P == 2) tile_store<3>(chains + 3 * kTileFloats, kLine);
  }

  // Chains that go on from y.
  void load_chains(const Strip& s, int64_t panel, int panels, float* chains) {
    for (int q = 0; q < panels; ++q)
      for (int64_t t = 0; t < s.tiles; ++t)
        for (int64_t row = 0; row < tile_rows_; ++row)
          store(chains + (2 * q + t) * kTileFloats + row * 16,
                load_output(p_, s.row[t] + row, panel + q));
  }

  static void fetch_lines(const char*& from, int64_t lines) {
    for (int64_t i = 0; i < lines; ++i, from += kLine) _mm_prefetch(from, _MM_HINT_T1);
  }

  // Finishes the next `rows` rows of the strip.
  void finish(int64_t rows) {
    Finish& f = finish_;
    const int64_t end = smaller(f.end, f.at + rows);
    for (; f.at < end; ++f.at) {
      const int64_t tile = f.at / 16, row = f.at % 16;
      if (row < f.strip->skip[tile] || row >= tile_rows_) continue;
      Vec16 sum[2];
      for (int q = 0; q < f.panels; ++q) {
        float* chain = f.chains + q * 2 * kTileFloats + f.at * 16;
        sum[q] = load(chain);
        for (int64_t level = 0; level < f.levels; ++level) {
          chain -= kLevelFloats;
          sum[q] = load(chain) + sum[q];
        }
        if (!f.is_dot) store(chain, sum[q]);
      }
      if (!f.is_dot) continue;
      const int64_t t = f.strip->row[tile] + row;
      if (p_.out)
        write_gated(p_, t, f.panel, sum[0], sum[1]);
      else
        for (int q = 0; q < f.panels; ++q)
          if (past_caches_)
            _mm512_stream_ps(p_.y + t * p_.y_stride + (f.panel + q) * 16,
                             plain_output(p_, t, f.panel + q, sum[q]).v);
          else
            write_plain(p_, t, f.panel + q, sum[q]);
    }
    if (f.at == f.end) f.strip = nullptr;
  }

  static constexpr int64_t kLevelFloats = kStrips * 4 * kTileFloats;

  const PanelProduct& p_;
  const int64_t run_leaves_;
  const int64_t finish_rows_;  // per leaf, so that a run is finished within the next
  const bool past_caches_;
  int64_t tile_rows_ = 16, strip_count_ = 0, fetch_lines_ = 0;
  bool has_operands_ = false;  // tiles 4 to 7 hold those of the next product
  int turn_ = 0;
  Finish finish_;
  Strip strips_[kStrips];
  alignas(64) float chains_[kLevels][kLevelFloats];
};

}  // namespace

void product_amx(const PanelProduct& p) {
  if (p.f32) return product_avx512(p);
  AmxProduct(p).run();
}

}  // namespace invar::cpu
