// Matrix products of order `portable` on AMX: one TDPBF16PS adds one leaf of 16 rows by 16 outputs.
//
// The chains of a strip of rows by a pair of panels stay in tiles for a whole run, so that no chain
// is ever stored and loaded again. What bounds a product is then how fast its operands come from
// L2: about 50 bytes per cycle, one product of two tiles in 20 cycles. Long runs take strips of 48
// rows: six chains, and five tiles of operands for six products. Short ones take 32: four chains,
// and the run's part of a pair of panels stays in L1. What follows a run (the tree, biases, gates,
// the output) is done a few rows at a time between the products of the next run. Meanwhile the
// lines of the weights that come next are fetched to L2.
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
constexpr int kLevels =
    3;  // runs, or trees of them, that can wait for their neighbour in a tree of 8

// Rows of a block are read again for every group of panels, so a block should stay in L2: here 1.5
// of 2 MB. A block has at most kTiles tiles of rows in groups of 2 panels; when rows are so long
// that few of them fit, kTiles / 4 tiles in groups of 8 panels read them more rarely.
constexpr int64_t kBlockBytes = 3 << 19;
constexpr int64_t kTiles = 32;

// Runs of so many leaves gain from strips of three tiles.
constexpr int64_t kLongRun = 16;

// From this size on, an output that is only written goes past the caches: it would not stay in L2
// until it is read, and to bring its lines in first costs more than the products of one panel.
constexpr int64_t kLargeOutput = 2 << 20;

// Up to three tiles of rows. The last tile of a block begins 16 rows before its end, so that every
// tile is whole; its rows that stand in the tile above, too, are computed twice and written once.
struct Strip {
  const char* x[3];  // the first row of each tile, at leaf 0
  int64_t row[3];    // of the product
  int64_t skip[3];   // rows of the tile that are not its own
  int64_t tiles;
  int64_t first;  // tile in the block
};

// Lines of later weights that are fetched during a product.
struct Fetch {
  const char* w[2];
  int64_t lines;  // of each panel, per leaf
};

// A finished run of a strip and a pair of panels, and what is to be done with it.
struct Finish {
  const Strip* strip = nullptr;
  const float* chains;  // [panel][tile][16][16]
  float* waiting;       // the level that it is added to first, in the same layout
  int levels;           // that it is added to
  bool is_dot;          // the last run: the sum is the dot
  int64_t panel;
  int panels;
  int64_t at, end;  // rows of the strip's tiles that are left
};

class AmxProduct {
 public:
  explicit AmxProduct(const PanelProduct& p)
      : p_(p),
        run_leaves_(p.leaves / p.runs),
        past_caches_(p.out ? goes_past_caches(p, p.dots, p.dots_stride)
                           : !p.accumulate && !p.extend && goes_past_caches(p, p.y, p.y_stride)) {}

  void run() {
    const int64_t tiles = ceil_div(p_.rows, 16);
    const int64_t fitting = kBlockBytes / (p_.leaves * kTileBytes);
    const bool rows_stay = fitting >= smaller(tiles, kTiles / 4);
    const int64_t most = rows_stay ? smaller(fitting, kTiles) : kTiles / 4;
    const int64_t group = rows_stay ? 2 : 8;
    const int64_t blocks = ceil_div(tiles, most);
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
      while (finish_.strip) finish(48);
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

    tiles_ = ceil_div(rows, 16);
    const int64_t each = run_leaves_ >= kLongRun ? 3 : 2;
    strip_count_ = ceil_div(tiles_, each);
    fetch_lines_ = ceil_div(16, strip_count_);
    for (int64_t i = 0; i < strip_count_; ++i) {
      Strip& s = strips_[i];
      s.first = i * each;
      s.tiles = smaller(each, tiles_ - s.first);
      for (int64_t t = 0; t < s.tiles; ++t) {
        const int64_t tile = s.first + t;
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
      const bool waits = levels == 0 && !is_last;
      for (int64_t i = 0; i < strip_count_; ++i)
        for (int64_t panel = begin; panel < end; panel += 2) {
          const int panels = panel + 1 < p_.panels ? 2 : 1;
          const int64_t slot = ((panel - begin) / 2 * tiles_ + strips_[i].first) * 2 * kTileFloats;
          // Chains that are finished at once use two places in turn, which stay in L1.
          float* chains = waits ? waiting_[depth] + slot : finished_[turn_ ^= 1];
          if (p_.extend) load_chains(strips_[i], panel, panels, chains);
          multiply(strips_[i], panel, leaf, panels, chains,
                   fetch_of(i, next_begin + panel - begin, next_leaf));
          if (!waits)
            finish_ = {.strip = &strips_[i],
                       .chains = chains,
                       .waiting = depth > 0 ? waiting_[depth - 1] + slot : nullptr,
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

  // The strips share out the lines of the run that comes next for a pair of panels.
  Fetch fetch_of(int64_t strip, int64_t panel, int64_t leaf) const {
    if (strip * fetch_lines_ >= 16) return {{nullptr, nullptr}, 0};
    const char* w = weights(panel, leaf) + strip * fetch_lines_ * run_leaves_ * kLine;
    return {{w, w + p_.panel_bytes}, fetch_lines_};
  }

  void multiply(const Strip& s, int64_t panel, int64_t leaf, int panels, float* chains,
                const Fetch& fetch) {
    const char* x = s.x[0] + leaf * kLine;
    const char* w = weights(panel, leaf);
    const int64_t second = s.x[s.tiles > 1] - s.x[0], third = s.x[s.tiles - 1] - s.x[0];
    using Multiply =
        void (AmxProduct::*)(const char*, int64_t, int64_t, const char*, float*, Fetch);
    static constexpr Multiply kMultiply[2][3] = {
        {&AmxProduct::multiply<1, 1>, &AmxProduct::multiply<2, 1>, &AmxProduct::multiply<3, 1>},
        {&AmxProduct::multiply<1, 2>, &AmxProduct::multiply<2, 2>, &AmxProduct::multiply<3, 2>}};
    (this->*kMultiply[panels - 1][s.tiles - 1])(x, second, third, w, chains, fetch);
  }

  // One run of R tiles of rows, which begin at x, x + second and x + third, by P panels. An operand
  // is loaded just before its first product: the loads run ahead by themselves.
  template <int R, int P>
  void multiply(const char* x, int64_t second, int64_t third, const char* w, float* chains,
                Fetch fetch) {
    p_.extend ? load_tiles<R, P>(chains) : zero_tiles<R, P>();
    const int64_t stride = p_.x_stride, other = p_.panel_bytes;
    // Rows are finished from the second leaf on, so that their tiles are stored by then.
    const int64_t rows = ceil_div(16 * R, larger(run_leaves_ - 1, 1));
    for (int64_t left = run_leaves_; left > 0; --left, x += kLine, w += kTileBytes) {
      if constexpr (R == 3) {
        tile_load<6>(w, kLine);
        tile_load<7>(x, stride);
        tile_dot<0, 7, 6>();
        fetch_lines(fetch.w[0], fetch.lines);
        tile_load<7>(x + second, stride);
        tile_dot<1, 7, 6>();
        tile_load<7>(x + third, stride);
        tile_dot<2, 7, 6>();
        if constexpr (P == 2) {
          fetch_lines(fetch.w[1], fetch.lines);
          tile_load<6>(w + other, kLine);
          tile_dot<5, 7, 6>();
          tile_load<7>(x + second, stride);
          tile_dot<4, 7, 6>();
          tile_load<7>(x, stride);
          tile_dot<3, 7, 6>();
        }
      } else {
        tile_load<4>(x, stride);
        tile_load<6>(w, kLine);
        tile_dot<0, 4, 6>();
        fetch_lines(fetch.w[0], fetch.lines);
        if constexpr (P == 2) {
          tile_load<7>(w + other, kLine);
          tile_dot<R, 4, 7>();
          fetch_lines(fetch.w[1], fetch.lines);
        }
        if constexpr (R == 2) {
          tile_load<5>(x + second, stride);
          tile_dot<1, 5, 6>();
          if constexpr (P == 2) tile_dot<3, 5, 7>();
        }
      }
      if (finish_.strip && left < run_leaves_) finish(rows);
    }
    while (finish_.strip) finish(48);  // it may need what the new chains take the place of
    store_tiles<R, P>(chains);
  }

  // Tile R q + t holds the chains of tile t of the rows and panel q.
  template <int R, int P>
  static void zero_tiles() {
    tile_zero<0>();
    if constexpr (R * P > 1) tile_zero<1>();
    if constexpr (R * P > 2) tile_zero<2>();
    if constexpr (R * P > 3) tile_zero<3>();
    if constexpr (R * P > 4) tile_zero<4>(), tile_zero<5>();
  }
  template <int R, int P>
  static void load_tiles(const float* chains) {
    tile_load<0>(chains, kLine);
    if constexpr (R * P > 1) tile_load<1>(chains + kTileFloats, kLine);
    if constexpr (R * P > 2) tile_load<2>(chains + 2 * kTileFloats, kLine);
    if constexpr (R * P > 3) tile_load<3>(chains + 3 * kTileFloats, kLine);
    if constexpr (R * P > 4) tile_load<4>(chains + 4 * kTileFloats, kLine);
    if constexpr (R * P > 4) tile_load<5>(chains + 5 * kTileFloats, kLine);
  }
  template <int R, int P>
  static void store_tiles(float* chains) {
    tile_store<0>(chains, kLine);
    if constexpr (R * P > 1) tile_store<1>(chains + kTileFloats, kLine);
    if constexpr (R * P > 2) tile_store<2>(chains + 2 * kTileFloats, kLine);
    if constexpr (R * P > 3) tile_store<3>(chains + 3 * kTileFloats, kLine);
    if constexpr (R * P > 4) tile_store<4>(chains + 4 * kTileFloats, kLine);
    if constexpr (R * P > 4) tile_store<5>(chains + 5 * kTileFloats, kLine);
  }

  // Chains that go on from y.
  void load_chains(const Strip& s, int64_t panel, int panels, float* chains) {
    for (int q = 0; q < panels; ++q)
      for (int64_t t = 0; t < s.tiles; ++t)
        for (int64_t row = 0; row < tile_rows_; ++row)
          store(chains + (q * s.tiles + t) * kTileFloats + row * 16,
                load_output(p_, s.row[t] + row, panel + q));
  }

  static void fetch_lines(const char*& from, int64_t lines) {
    for (int64_t i = 0; i < lines; ++i, from += kLine) _mm_prefetch(from, _MM_HINT_T1);
  }

  // Finishes the next `rows` rows of the strip.
  void finish(int64_t rows) {
    Finish& f = finish_;
    const int64_t end = smaller(f.end, f.at + rows);
    while (f.at < end) {
      const int64_t tile = f.at / 16, until = smaller(end, tile * 16 + 16);
      const int64_t first = larger(f.at % 16, f.strip->skip[tile]),
                    last = smaller(until - tile * 16, tile_rows_);
      switch (f.levels) {
        case 0:
          finish_tile<0>(f, tile, first, last);
          break;
        case 1:
          finish_tile<1>(f, tile, first, last);
          break;
        case 2:
          finish_tile<2>(f, tile, first, last);
          break;
        default:
          finish_tile<3>(f, tile, first, last);
      }
      f.at = until;
    }
    if (f.at == f.end) f.strip = nullptr;
  }

  // Rows [first, last) of a tile, whose runs are added to L levels.
  template <int L>
  void finish_tile(const Finish& f, int64_t tile, int64_t first, int64_t last) {
    const int64_t second = f.strip->tiles * kTileFloats;  // from the first panel's chains
    const auto sum = [&](int64_t at) {
      Vec16 s = load(f.chains + at);
      for (int level = 0; level < L; ++level) s = load(f.waiting + at - level * kLevelFloats) + s;
      return s;
    };
    int64_t at = tile * kTileFloats + first * 16;
    if (!f.is_dot) {
      float* to = f.waiting - (L - 1) * kLevelFloats;
      for (int64_t row = first; row < last; ++row, at += 16) {
        store(to + at, sum(at));
        if (f.panels == 2) store(to + at + second, sum(at + second));
      }
      return;
    }
    int64_t t = f.strip->row[tile] + first;
    const int64_t t_end = f.strip->row[tile] + last;
    const int64_t columns = p_.out ? f.panel / 2 * 16 + 16 : (f.panel + f.panels) * 16;
    if (columns > p_.outputs || f.panels == 1 || p_.f32)
      for (; t < t_end; ++t, at += 16) {
        if (p_.out) {
          write_gated(p_, t, f.panel, sum(at), sum(at + second));
          continue;
        }
        write_plain(p_, t, f.panel, sum(at));
        if (f.panels == 2) write_plain(p_, t, f.panel + 1, sum(at + second));
      }
    else if (p_.out)
      write_gated_rows(t, t_end, f.panel, sum, at, second);
    else
      write_rows(t, t_end, f.panel, sum, at, second);
  }

  static bool goes_past_caches(const PanelProduct& p, const float* to, int64_t stride) {
    return p.rows * p.outputs * 4 >= kLargeOutput && p.outputs % 16 == 0 && stride % 16 == 0 &&
           reinterpret_cast<uintptr_t>(to) % kLine == 0;
  }
  void write_only(float* to, Vec16 v) const {
    past_caches_ ? _mm512_stream_ps(to, v.v) : store(to, v);
  }

  // A bias that is not there: the dots end with + 0, so that one more changes nothing.
  static Vec16 load_bias(const float* bias, int64_t column) {
    return bias ? load(bias + column) : splat(0.0f);
  }

  // Rows [t, end) of two whole panels.
  template <typename Sum>
  void write_rows(int64_t t, int64_t end, int64_t panel, Sum sum, int64_t at, int64_t second) {
    const Vec16 zero = splat(0.0f), bias0 = load_bias(p_.bias, panel * 16),
                bias1 = load_bias(p_.bias, panel * 16 + 16);
    float* y = p_.y + t * p_.y_stride + panel * 16;
    for (; t < end; ++t, at += 16, y += p_.y_stride) {
      Vec16 v0 = (sum(at) + zero) + bias0, v1 = (sum(at + second) + zero) + bias1;
      if (p_.accumulate) v0 = load(y) + v0, v1 = load(y + 16) + v1;
      write_only(y, v0);
      write_only(y + 16, v1);
    }
  }

  // Rows [t, end) of whole gate and up panels, to bf16.
  template <typename Sum>
  void write_gated_rows(int64_t t, int64_t end, int64_t panel, Sum sum, int64_t at,
                        int64_t second) {
    const Vec16 zero = splat(0.0f), gate_bias = load_bias(p_.gate_bias, panel * 8),
                up_bias = load_bias(p_.up_bias, panel * 8);
    char* out = static_cast<char*>(p_.out) + t * p_.out_stride + panel * 16;
    for (; t < end; ++t, at += 16, out += p_.out_stride) {
      Vec16 g = sum(at) + zero, u = sum(at + second) + zero;
      if (p_.dots) {
        float* dots = p_.dots + t * p_.dots_stride + panel * 16;
        write_only(dots, g);
        write_only(dots + 16, u);
      }
      g = g + gate_bias, u = u + up_bias;
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(out), round_to_bf16(gated(g, u).v));
    }
  }

  static constexpr int64_t kLevelFloats = kTiles * 2 * kTileFloats;

  const PanelProduct& p_;
  const int64_t run_leaves_;
  const bool past_caches_;
  int64_t tile_rows_ = 16, tiles_ = 0, strip_count_ = 0, fetch_lines_ = 0;
  int turn_ = 0;
  Finish finish_;
  Strip strips_[kTiles / 2];
  alignas(64) float waiting_[kLevels][kLevelFloats];
  alignas(64) float finished_[2][6 * kTileFloats];
};

}  // namespace

void product_amx(const PanelProduct& p) {
  if (p.f32) return product_avx512(p);
  AmxProduct(p).run();
}

}  // namespace invar::cpu
