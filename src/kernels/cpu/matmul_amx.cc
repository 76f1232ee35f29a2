// Matrix products of order `portable` on AMX: one TDPBF16PS adds one leaf of 16 rows by 16 outputs.
//
// A strip of 32 rows meets a pair of panels: four chains, and four loads for four products. What
// bounds a product is how fast its operands come from L2 and through L1, so the weights of a pair
// stay in L1 while all strips pass, which are loaded past it, and what does not fit there is cut:
// a long run into chunks, between which its chains wait in L2 (bench/kernels/bench_amx.cc).
// What follows a run (the tree, biases, gates, the output) is done a few rows at a time between the
// products of the next run. It also keeps the vector unit awake (stay_awake).
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

constexpr int kLevels =
    3;  // runs, or trees of them, that can wait for their neighbour in a tree of 8

// Rows of a block are read again for every pair of panels, so a block should stay in L2 of 2 MB
// beside what else passes through it; but too small a block reads the weights too often.
constexpr int64_t kBlockBytes = 1 << 20;
constexpr int64_t kTiles = 32, kFewTiles = 8;

// From so many rows on, chains that lie in memory between parts of the inner size gain: 512 rows
// are quicker strip by strip, 2048 are not.
constexpr int64_t kChainsInMemoryFrom = 1024;

// Leaves of a pair of panels that stay in L1 of 48 KB while many strips meet them.
constexpr int64_t kChunkLeaves = 16;
// Strips that meet a run of weights in L1 one after another: with more of them the weights come
// from L2 less often, and their chains wait there.
constexpr int64_t kStripsTogether = 8;
// Rows that are finished between two leaves; divides 16.
constexpr int64_t kRowsAtOnce = 4;

// Up to two tiles of rows. The last tile of a block begins 16 rows before its end, so that every
// tile is whole; its rows that stand in the tile above, too, are computed twice and written once.
struct Strip {
  const char* x[2];  // the first row of each tile, at leaf 0
  int64_t row[2];    // of the product
  int64_t skip[2];   // rows of the tile that are not its own
  int64_t tiles;
};

// The pair of panels that comes next, here or in the product after this one, fetched to L2 from
// several places at once, each line after line: so the hardware's own prefetcher helps.
struct Ahead {
  static constexpr int kStreams = 8;
  const char* at = nullptr;
  const char* end = nullptr;  // of the first stream
  int64_t stream = 0;         // bytes from one to the next
  int64_t lines = 0;          // of each stream at a time

  void fetch() {
    if (at >= end) return;
    for (int64_t i = 0; i < lines; ++i, at += kLine)
      for (int q = 0; q < kStreams; ++q) _mm_prefetch(at + q * stream, _MM_HINT_T1);
  }
};

// A finished run of a strip and a pair of panels, and what is to be done with it.
struct Finish {
  const Strip* strip;
  const float* chains;  // [panel][tile][16][16]
  float* waiting;       // the level that it is added to first, in the same layout
  int levels;           // that it is added to
  bool is_dot;          // the last run: the sum is the dot
  bool is_whole;        // all rows and columns are to be written
  int64_t panel;
  int panels;
  int64_t at, end;  // rows of the strip's tiles that are left
};

enum class End { plain, accumulate, gated };

template <End kEnd>
class AmxProduct {
 public:
  explicit AmxProduct(const PanelProduct& p)
      : p_(p), run_leaves_(p.leaves / p.split_k), expand_(best_blocks_avx512(p.stored).expand) {}

  void run() {
    const int64_t tiles = ceil_div(p_.rows, 16);
    const int64_t fitting = kBlockBytes / (p_.leaves * kTileBytes);
    const int64_t blocks = ceil_div(tiles, smaller(larger(fitting, kFewTiles), kTiles));
    for (int64_t b = 0; b < blocks; ++b) {
      const int64_t begin = tiles * b / blocks * 16;
      const int64_t end = smaller(tiles * (b + 1) / blocks * 16, p_.rows);
      start_block(begin, end - begin);
      for (int64_t panel = 0; panel < p_.panels; panel += 2) multiply_pair(panel);
      finish_all();
      tile_release();
    }
  }

 private:
  void start_block(int64_t begin, int64_t rows) {
    tile_rows_ = smaller(rows, 16);
    configure_tiles(tile_rows_);
    const int64_t tiles = ceil_div(rows, 16);
    strip_count_ = ceil_div(tiles, 2);
    const bool in_chunks = expand_ || (p_.split_k == 1 && strip_count_ > 2);
    chunks_ = in_chunks ? ceil_div(run_leaves_, kChunkLeaves) : 1;
    for (int64_t i = 0; i < strip_count_; ++i) {
      Strip& s = strips_[i];
      s.tiles = smaller(2, tiles - i * 2);
      for (int64_t t = 0; t < s.tiles; ++t) {
        const int64_t tile = i * 2 + t;
        const int64_t first = rows < 16 ? 0 : smaller(tile * 16, rows - 16);
        s.row[t] = begin + first;
        s.skip[t] = tile * 16 - first;
        s.x[t] = static_cast<const char*>(p_.x) + s.row[t] * p_.x_stride;
      }
    }
  }

  void multiply_pair(int64_t panel) {
    const bool is_last = panel + 2 >= p_.panels;
    ahead_.at = is_last ? static_cast<const char*>(p_.next)
                        : static_cast<const char*>(p_.w) + (panel + 2) * p_.panel_bytes;
    ahead_.stream = 2 * (is_last ? p_.next_panel_bytes : p_.panel_bytes) / Ahead::kStreams;
    ahead_.end = ahead_.at + ahead_.stream;
    ahead_.lines = ceil_div(32, Ahead::kStreams * strip_count_);
    const int64_t together = p_.split_k == 1 ? strip_count_ : kStripsTogether;
    for (int64_t i = 0; i < strip_count_; i += together)
      multiply_runs(i, smaller(i + together, strip_count_), panel);
  }

  // All runs of some strips by a pair of panels, chunk by chunk of a run: chains wait in L2,
  // weights stay in L1.
  void multiply_runs(int64_t begin, int64_t end, int64_t panel) {
    const int panels = panel + 1 < p_.panels ? 2 : 1;
    int depth = 0;  // runs, or trees of them, that wait for their neighbour
    for (int r = 0; r < p_.split_k; ++r) {
      const bool is_last = r + 1 == p_.split_k;
      // (s0 + s1) + (s2 + s3) ...: a run with an odd number meets the trees to its left.
      const int levels = __builtin_ctz(~static_cast<unsigned>(r));
      const bool waits = levels == 0 && !is_last;
      for (int64_t c = 0; c < chunks_; ++c) {
        const bool ends = c + 1 == chunks_;
        const int64_t leaf = r * run_leaves_ + run_leaves_ * c / chunks_;
        const int64_t leaves = r * run_leaves_ + run_leaves_ * (c + 1) / chunks_ - leaf;
        const Weights w = weights(panel, panels, leaf, leaves);
        for (int64_t i = begin; i < end; ++i) {
          const Strip& s = strips_[i];
          const int64_t slot = (i - begin) * kChains;
          // Chains that are finished at once use two places in turn.
          float* chains = !ends ? kept_[i] : waits ? waiting_[depth] + slot : finished_[turn_ ^= 1];
          float* from = c > 0 ? kept_[i] : p_.extend ? chains : nullptr;
          if (c == 0 && p_.extend) copy_outputs(s, panel, panels, chains);
          multiply(s, w, leaf, leaves, panels, from, chains);
          if (ends && !waits)
            finish_dots(s, panel, panels, chains, depth > 0 ? waiting_[depth - 1] + slot : nullptr,
                        levels, is_last);
        }
      }
      depth += 1 - levels;
    }
  }

  // Leaves of a pair of panels as they lie or, from blocks, as room_ has them.
  struct Weights {
    const char* first;
    int64_t bytes;  // from one panel to the other
  };
  Weights weights(int64_t panel, int panels, int64_t leaf, int64_t leaves) {
    const char* w = static_cast<const char*>(p_.w) + panel * p_.panel_bytes;
    if (!expand_) return {w + leaf * kTileBytes, p_.panel_bytes};
    for (int q = 0; q < panels; ++q, w += p_.panel_bytes)
      expand_(w, w + p_.scales, leaf, leaves, room_[q]);
    return {room_[0], sizeof room_[0]};
  }

  // Has a finished run of a strip and a pair of panels worked off between the products to come.
  void finish_dots(const Strip& s, int64_t panel, int panels, const float* chains, float* waiting,
                   int levels, bool is_dot) {
    finish_ = {.strip = &s,
               .chains = chains,
               .waiting = waiting,
               .levels = levels,
               .is_dot = is_dot,
               .is_whole = is_whole(s, panel, panels),
               .panel = panel,
               .panels = panels,
               .at = 0,
               .end = s.tiles * 16};
  }

  // Some leaves of a strip by a pair of panels, from chains in memory or +0.
  void multiply(const Strip& s, Weights w, int64_t leaf, int64_t leaves, int panels, float* from,
                float* chains) {
    with_shape(s.tiles, panels,
               [&]<int R, int P>() { multiply_tiles<R, P>(s, leaf, leaves, w, from, chains); });
  }

  // R tiles of rows by P panels. Rows are loaded past L1, where the weights stay.
  template <int R, int P>
  [[gnu::noinline]] void multiply_tiles(const Strip& s, int64_t leaf, int64_t leaves,
                                        Weights weights, float* from, float* chains) {
    from ? load_chains<R, P>(packed_chains(from, R)) : zero_chains<R, P>();
    const int64_t stride = p_.x_stride;
    const char* x = s.x[0] + leaf * kLine;
    const char* second = s.x[R - 1] + leaf * kLine;
    const char *w = weights.first, *other = w + weights.bytes;
    for (int64_t left = leaves; left > 0; --left) {
      add_leaf<R, P, RowsAre::past_l1>(x, second, stride, w, other);
      ahead_.fetch();
      x += kLine, second += kLine, w += kTileBytes, other += kTileBytes;
      if (finish_.at < finish_.end)
        finish_rows();
      else
        stay_awake();
    }
    finish_all();  // it may need what the new chains take the place of
    store_chains<R, P>(packed_chains(chains, R));
  }

  // Chains that go on from y.
  void copy_outputs(const Strip& s, int64_t panel, int panels, float* chains) {
    for (int q = 0; q < panels; ++q)
      for (int64_t t = 0; t < s.tiles; ++t)
        for (int64_t row = 0; row < tile_rows_; ++row)
          store(chains + (q * s.tiles + t) * kTileFloats + row * 16,
                load_output(p_, s.row[t] + row, panel + q));
  }

  bool is_whole(const Strip& s, int64_t panel, int panels) const {
    const int64_t columns = p_.out ? panel / 2 * 16 + 16 : (panel + panels) * 16;
    return panels == 2 && tile_rows_ == 16 && s.skip[s.tiles - 1] == 0 && columns <= p_.outputs;
  }

  void finish_all() {
    while (finish_.at < finish_.end) finish_rows();
  }
  // The next kRowsAtOnce rows.
  void finish_rows() {
    if (finish_.is_whole) return finish_whole_rows();
    for (int64_t i = 0; i < kRowsAtOnce; ++i) finish_row();
  }

  __attribute__((always_inline)) void finish_whole_rows() {
    Finish& f = finish_;
    const int64_t second = f.strip->tiles * kTileFloats;  // from the first panel's chains
    const int64_t at = f.at * 16, row = f.strip->row[f.at / 16] + f.at % 16;
    f.at += kRowsAtOnce;
#pragma GCC unroll 4
    for (int64_t i = 0; i < kRowsAtOnce; ++i) {
      const Vec16 a = sum(at + i * 16), b = sum(at + i * 16 + second);
      f.is_dot ? write_whole(row + i, a, b) : keep(at + i * 16, second, a, b);
    }
  }

  // One row, whose parts that are not there or not its own are left out.
  __attribute__((noinline)) void finish_row() {
    Finish& f = finish_;
    const int64_t tile = f.at / 16, in_tile = f.at % 16, second = f.strip->tiles * kTileFloats;
    const int64_t at = f.at++ * 16, row = f.strip->row[tile] + in_tile;
    if (in_tile >= tile_rows_ || in_tile < f.strip->skip[tile]) return;
    const Vec16 a = sum(at), b = f.panels == 2 ? sum(at + second) : a;
    if (!f.is_dot) return keep(at, f.panels == 2 ? second : 0, a, b);
    if constexpr (kEnd == End::gated) return write_gated(p_, row, f.panel, a, b);
    write_plain(p_, row, f.panel, a);
    if (f.panels == 2) write_plain(p_, row, f.panel + 1, b);
  }

  // The chains at `at` with those that wait for them.
  Vec16 sum(int64_t at) const {
    Vec16 s = load(finish_.chains + at);
    for (int level = 0; level < finish_.levels; ++level)
      s = load(finish_.waiting + at - level * kLevelFloats) + s;
    return s;
  }
  // A tree that waits in its turn, in the place of the last that it was added to.
  void keep(int64_t at, int64_t second, Vec16 a, Vec16 b) {
    float* to = finish_.waiting + at - (finish_.levels - 1) * kLevelFloats;
    store(to, a);
    store(to + second, b);
  }

  // The dots of a row with two whole panels.
  void write_whole(int64_t row, Vec16 a, Vec16 b) {
    const int64_t panel = finish_.panel;
    const Vec16 zero = splat(0.0f);
    if constexpr (kEnd == End::gated) {
      char* out = static_cast<char*>(p_.out) + row * p_.out_stride + panel * 16;
      a = a + zero;
      b = b + zero;
      if (p_.dots) {
        float* dots = p_.dots + row * p_.dots_stride + panel * 16;
        store(dots, a);
        store(dots + 16, b);
      }
      const Vec16 g = a + load_bias(p_.gate_bias, panel * 8),
                  u = b + load_bias(p_.up_bias, panel * 8);
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(out), round_to_bf16(gated(p_, g, u).v));
    } else {
      float* y = p_.y + row * p_.y_stride + panel * 16;
      a = (a + zero) + load_bias(p_.bias, panel * 16);
      b = (b + zero) + load_bias(p_.bias, panel * 16 + 16);
      if constexpr (kEnd == End::accumulate) a = load(y) + a, b = load(y + 16) + b;
      store(y, a);
      store(y + 16, b);
    }
  }
  // A bias that is not there: the dots end with + 0, so that one more changes nothing.
  static Vec16 load_bias(const float* bias, int64_t column) {
    return bias ? load(bias + column) : splat(0.0f);
  }

  static constexpr int64_t kChains = 4 * kTileFloats;  // of a strip by a pair of panels, at most
  static constexpr int64_t kLevelFloats = kStripsTogether * kChains;

  const PanelProduct& p_;
  const int64_t run_leaves_;
  const ExpandPanel expand_;
  int64_t tile_rows_ = 16, strip_count_ = 0, chunks_ = 1;
  int turn_ = 0;
  Finish finish_{};
  Ahead ahead_{};
  Strip strips_[kTiles / 2];
  alignas(64) float waiting_[kLevels][kLevelFloats];
  alignas(64) float finished_[2][kChains];
  alignas(64) float kept_[kTiles / 2][kChains];
  alignas(64) char room_[2][kChunkLeaves * kTileBytes];  // a chunk of a pair of panels of blocks
};

// Many rows in whole tiles and panels: the chains may lie in memory in between.
bool has_whole_tiles(const PanelProduct& p) {
  return p.rows >= kChainsInMemoryFrom && p.rows % 16 == 0 &&
         !best_blocks_avx512(p.stored).expand && p.outputs == p.panels * (p.out ? 8 : 16);
}

}  // namespace

void product_amx(const PanelProduct& p) {
  if (p.f32) return product_avx512(p);
  if (p.is_open || (has_whole_tiles(p) && !p.out)) return chains_amx(p);
  if (has_whole_tiles(p) && p.dots) return gated_chains_amx(p);
  if (p.out) return AmxProduct<End::gated>(p).run();
  if (p.accumulate) return AmxProduct<End::accumulate>(p).run();
  AmxProduct<End::plain>(p).run();
}

}  // namespace invar::cpu
