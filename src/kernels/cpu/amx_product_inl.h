// Matrix products on AMX, of floats in order `portable` and of integers. Included after
// amx_strip_inl.h, a vec16 header, vec16_math.h and product_end_inl.h.
//
// A strip of 32 rows meets a pair of panels: four chains, and four loads for four products. The
// speed at which operands come from L2 and through L1 bounds a product. So the weights of a pair
// stay in L1 while all strips pass, which are loaded past it. A run that is too long for L1 is cut
// into chunks, between which its chains wait in L2 (bench/kernels/bench_amx.cc). The end of a run
// (the tree, biases, gates, the output) is computed a few rows at a time between the products of
// the next run. It also keeps the vector unit awake (stay_awake).
//
// A step is one product of tiles, 64 bytes of each row. A kind says what it is:
//   kStepLeaves                leaves that it takes; a run's last one may be half as long
//   add<R, P>(...)             the products of a step
//   value(p, at, row, panel, run)  what the sums of a run at `at` stand for
#pragma once

#include <cstdint>

namespace invar::cpu {

namespace {

constexpr int kLevels =
    3;  // runs, or trees of them, that can wait for their neighbour in a tree of 8

// Rows of a block are read again for every pair of panels, so a block should stay in L2 of 2 MB
// beside what else passes through it; but too small a block reads the weights too often.
constexpr int64_t kBlockBytes = 1 << 20;
constexpr int64_t kTiles = 32, kFewTiles = 8;

// Steps of a pair of panels that stay in L1 of 48 KB while many strips meet them.
constexpr int64_t kChunkSteps = 16;
// Strips that meet a run of weights in L1 one after another: with more of them the weights come
// from L2 less often, and their chains wait there.
constexpr int64_t kStripsTogether = 8;
// So few strips wait for blocks to be expanded, more than for their products.
constexpr int64_t kFewStrips = 2;
// Rows that are finished between two steps, or twice as many in a short run; divides 16.
constexpr int64_t kRowsAtOnce = 4;
// Steps after which the strip before is finished.
constexpr int64_t kFinishingSteps = 32 / kRowsAtOnce;

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
  int run;
  int64_t panel;
  int panels;
  int64_t at, end;  // rows of the strip's tiles that are left
};

enum class End { plain, accumulate, gated };

template <typename Kind, End kEnd>
class AmxProduct {
 public:
  explicit AmxProduct(const PanelProduct& p)
      : p_(p),
        run_leaves_(p.leaves / p.split_k),
        run_steps_(ceil_div(run_leaves_, Kind::kStepLeaves)),
        expand_(best_blocks_avx512(p.stored).expand) {}

  void run() {
    const int64_t tiles = ceil_div(p_.rows, 16);
    const int64_t fitting = kBlockBytes / (p_.leaves * kLeafBytes);
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
    chunks_ = in_chunks ? ceil_div(run_steps_, kChunkSteps) : 1;
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
    ahead_.lines = expand_ && strip_count_ <= kFewStrips
                       ? ceil_div(2 * p_.panel_bytes, kLine * Ahead::kStreams * p_.leaves)
                       : ceil_div(32, Ahead::kStreams * strip_count_);
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
        const int64_t from_step = run_steps_ * c / chunks_,
                      to_step = run_steps_ * (c + 1) / chunks_;
        const int64_t first = from_step * Kind::kStepLeaves;
        const int64_t leaf = r * run_leaves_ + first;
        const int64_t leaves = smaller(to_step * Kind::kStepLeaves, run_leaves_) - first;
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
                        levels, r);
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
    if (!expand_) return {w + leaf * kLeafBytes, p_.panel_bytes};
    // A leaf at a time, so that what comes next is fetched all the while.
    for (int64_t i = 0; i < leaves; ++i) {
      for (int q = 0; q < panels; ++q) {
        const char* values = w + q * p_.panel_bytes;
        expand_(values, values + p_.scales, leaf + i, 1, room_[q] + i * kLeafBytes);
      }
      if (strip_count_ <= kFewStrips) ahead_.fetch();
    }
    return {room_[0], sizeof room_[0]};
  }

  // Has a finished run of a strip and a pair of panels worked off between the products to come.
  void finish_dots(const Strip& s, int64_t panel, int panels, const float* chains, float* waiting,
                   int levels, int run) {
    finish_ = {.strip = &s,
               .chains = chains,
               .waiting = waiting,
               .levels = levels,
               .is_dot = run + 1 == p_.split_k,
               .is_whole = is_whole(s, panel, panels),
               .run = run,
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
    const char* x = s.x[0] + leaf * kLine / Kind::kStepLeaves;
    const char* second = s.x[R - 1] + leaf * kLine / Kind::kStepLeaves;
    const char *w = weights.first, *other = w + weights.bytes;
    const bool twice = leaves < kFinishingSteps * Kind::kStepLeaves;
    for (int64_t left = leaves / Kind::kStepLeaves; left > 0; --left) {
      Kind::template add<R, P>(x, second, stride, w, other);
      ahead_.fetch();
      x += kLine, second += kLine, w += kTileBytes, other += kTileBytes;
      if (finish_.at < finish_.end) {
        finish_rows();
        if (twice && finish_.at < finish_.end) finish_rows();
      } else {
        stay_awake();
      }
    }
    if (leaves % Kind::kStepLeaves) {
      __builtin_memcpy(rest_[0], w, kLeafBytes);
      if constexpr (P == 2) __builtin_memcpy(rest_[1], other, kLeafBytes);
      Kind::template add<R, P>(x, second, stride, rest_[0], rest_[1]);
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
      const Vec16 a = sum(at + i * 16, row + i, f.panel),
                  b = sum(at + i * 16 + second, row + i, f.panel + 1);
      f.is_dot ? write_whole(row + i, a, b) : keep(at + i * 16, second, a, b);
    }
  }

  // One row, whose parts that are not there or not its own are left out.
  __attribute__((noinline)) void finish_row() {
    Finish& f = finish_;
    const int64_t tile = f.at / 16, in_tile = f.at % 16, second = f.strip->tiles * kTileFloats;
    const int64_t at = f.at++ * 16, row = f.strip->row[tile] + in_tile;
    if (in_tile >= tile_rows_ || in_tile < f.strip->skip[tile]) return;
    const Vec16 a = sum(at, row, f.panel),
                b = f.panels == 2 ? sum(at + second, row, f.panel + 1) : a;
    if (!f.is_dot) return keep(at, f.panels == 2 ? second : 0, a, b);
    if constexpr (kEnd == End::gated) return write_gated(p_, row, f.panel, a, b);
    write_plain(p_, row, f.panel, a);
    if (f.panels == 2) write_plain(p_, row, f.panel + 1, b);
  }

  // The chains at `at` with those that wait for them, the first of which is a run's, too.
  Vec16 sum(int64_t at, int64_t row, int64_t panel) const {
    const Finish& f = finish_;
    Vec16 s = Kind::value(p_, f.chains + at, row, panel, f.run);
    if (f.levels > 0) s = Kind::value(p_, f.waiting + at, row, panel, f.run - 1) + s;
    for (int level = 1; level < f.levels; ++level)
      s = load(f.waiting + at - level * kLevelFloats) + s;
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

  static constexpr int64_t kLeafBytes = kTileBytes / Kind::kStepLeaves;  // of a panel or a tile
  static constexpr int64_t kChains = 4 * kTileFloats;  // of a strip by a pair of panels, at most
  static constexpr int64_t kLevelFloats = kStripsTogether * kChains;

  const PanelProduct& p_;
  const int64_t run_leaves_, run_steps_;
  const ExpandPanel expand_;
  int64_t tile_rows_ = 16, strip_count_ = 0, chunks_ = 1;
  int turn_ = 0;
  Finish finish_{};
  Ahead ahead_{};
  Strip strips_[kTiles / 2];
  alignas(64) float waiting_[kLevels][kLevelFloats];
  alignas(64) float finished_[2][kChains];
  alignas(64) float kept_[kTiles / 2][kChains];
  alignas(64) char room_[2][kChunkSteps * kTileBytes];  // a chunk of a pair of panels of blocks
  alignas(64) char rest_[2][kTileBytes] = {};  // a pair's leaf that is less than a step, and zeros
};

}  // namespace

}  // namespace invar::cpu
