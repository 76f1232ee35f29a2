// Matrix products of order `portable` on AMX: one TDPBF16PS adds one leaf of 16 rows by 16 outputs.
//
// Tiles 0 to 3 hold the chains of 32 rows by 2 panels, 4 and 5 the rows, 6 and 7 the panels. Four
// products take 64 cycles and their four operands as many reads of L1, so two of them may come from
// L2: a stretch of two panels stays in L1 while the rows, which stay in L2, pass by. Meanwhile the
// lines of the next stretch are fetched to L2.
#include <immintrin.h>

#include "kernels/cpu/panel_product.h"

namespace invar::cpu {

namespace {

#include "kernels/cpu/amx_tiles_inl.h"
#include "kernels/cpu/vec16_avx512.h"
// after it
#include "kernels/cpu/vec16_math.h"
// after that
#include "kernels/cpu/product_inl.h"

constexpr int64_t kTileBytes = 1024;
constexpr int64_t kRowsInL2 = 3 << 19;  // bytes of activations that stay in an L2 of 2 MB

// Rows of one or two tiles by one or two panels.
struct Strip {
  const char* x[2];  // first row of each tile
  int64_t x_stride;
  const char* w[2];
  int64_t leaves;
  bool first;
  float* chains[2][2];  // of row tile, panel
  const char* next[2];  // to be fetched, `next_lines` per leaf
  int64_t next_lines;
};

inline void fetch(const char*& next, int64_t lines) {
  for (int64_t i = 0; i < lines; ++i, next += kLine) _mm_prefetch(next, _MM_HINT_T1);
}

template <int R, int P>
void multiply(Strip s) {
  if (s.first) {
    tile_zero<0>();
    if (P == 2) tile_zero<1>();
    if (R == 2) tile_zero<2>();
    if (R == 2 && P == 2) tile_zero<3>();
  } else {
    tile_load<0>(s.chains[0][0], kLine);
    if (P == 2) tile_load<1>(s.chains[0][1], kLine);
    if (R == 2) tile_load<2>(s.chains[1][0], kLine);
    if (R == 2 && P == 2) tile_load<3>(s.chains[1][1], kLine);
  }
  for (int64_t leaf = 0; leaf < s.leaves; ++leaf) {
    tile_load<4>(s.x[0] + leaf * kLine, s.x_stride);
    tile_load<6>(s.w[0] + leaf * kTileBytes, kLine);
    tile_dot<0, 4, 6>();
    fetch(s.next[0], s.next_lines);
    if (P == 2) {
      tile_load<7>(s.w[1] + leaf * kTileBytes, kLine);
      tile_dot<1, 4, 7>();
      fetch(s.next[1], s.next_lines);
    }
    if (R == 2) {
      tile_load<5>(s.x[1] + leaf * kLine, s.x_stride);
      tile_dot<2, 5, 6>();
      if (P == 2) tile_dot<3, 5, 7>();
    }
  }
  tile_store<0>(s.chains[0][0], kLine);
  if (P == 2) tile_store<1>(s.chains[0][1], kLine);
  if (R == 2) tile_store<2>(s.chains[1][0], kLine);
  if (R == 2 && P == 2) tile_store<3>(s.chains[1][1], kLine);
}

struct Amx {
  static constexpr int kChains = 2048;  // 128 KB
  static constexpr int kTileRows = 16, kLeaves = 12;

  // Rows that fit L2 are read from there for every pair of panels. Longer rows are cheaper to read
  // again for larger groups of panels than the weights for smaller blocks of rows.
  static BlockShape shape(const PanelProduct& p) {
    const int64_t fitting = kRowsInL2 / (p.leaves * kLeaf * 2) / 32 * 32;
    if (fitting >= 256 || fitting >= p.rows) return {smaller(fitting, 512), 2};
    return {256, 8};
  }
  static int64_t chain_rows(int64_t rows) { return ceil_div(rows, 16) * 16; }
  // The last tile of a block begins 16 rows before its end; some rows are done twice and every tile
  // is whole.
  static int64_t place_of(int64_t row, int64_t rows) {
    const int64_t padded = chain_rows(rows);
    return rows <= 16 || row < padded - 16 ? row : row + padded - rows;
  }

  // A block of fewer than 16 rows is one tile of so many.
  explicit Amx(int64_t rows) {
    TileConfig config;
    for (int t = 0; t < 8; ++t) {
      config.row_bytes[t] = 64;
      const bool holds_rows = t < 6;
      config.rows[t] = static_cast<uint8_t>(holds_rows ? smaller(rows, 16) : 16);
    }
    tile_configure(config);
  }
  ~Amx() { tile_release(); }

  void accumulate(const Stretch& s) {
    const int64_t tiles = ceil_div(s.rows, 16), strips = ceil_div(tiles, 2);
    for (int64_t p = 0; p < s.panels; p += 2) {
      const char* w = s.w + p * s.panel_bytes;
      const bool two_panels = p + 1 < s.panels;
      const char* next = p + 2 < s.panels ? w + 2 * s.panel_bytes : s.next;
      // The strips share out the lines of the two panels after these.
      int64_t next_lines = next ? ceil_div(16, strips) : 0;
      for (int64_t i = 0; i < strips; ++i) {
        if (i * next_lines >= 16) next_lines = 0;
        const int64_t fetched = i * next_lines * s.leaves * kLine;
        Strip strip{.x = {},
                    .x_stride = s.x_stride,
                    .w = {w, w + s.panel_bytes},
                    .leaves = s.leaves,
                    .first = s.first,
                    .chains = {},
                    .next = {next + fetched, next + s.panel_bytes + fetched},
                    .next_lines = next_lines};
        const bool two_tiles = 2 * i + 1 < tiles;
        for (int64_t r = 0; r < 1 + two_tiles; ++r) {
          const int64_t tile = 2 * i + r;
          const int64_t row = s.rows < 16 ? 0 : smaller(tile * 16, s.rows - 16);
          strip.x[r] = s.x + row * s.x_stride;
          for (int64_t q = 0; q < 1 + two_panels; ++q)
            strip.chains[r][q] = s.chains + ((p + q) * s.chain_rows + tile * 16) * 16;
        }
        if (two_tiles)
          two_panels ? multiply<2, 2>(strip) : multiply<2, 1>(strip);
        else
          two_panels ? multiply<1, 2>(strip) : multiply<1, 1>(strip);
      }
    }
  }
};

}  // namespace

void product_amx(const PanelProduct& p) {
  if (p.f32) return product_avx512(p);
  Product<Amx>(p).run();
}

}  // namespace invar::cpu
