// Products of integers on AMX: one TDPBSUD adds the products of 64 columns of 16 rows by 16
// outputs. A strip of two tiles of rows meets a pair of panels: four sums in registers for a run.
#include <immintrin.h>

#include "kernels/cpu/panel_product.h"
// in this order
#include "kernels/cpu/amx_tiles_inl.h"
#include "kernels/cpu/vec16_avx512.h"
// after it
#include "kernels/cpu/vec16_math.h"
// after it
#include "kernels/cpu/product_end_inl.h"
// after it
#include "kernels/cpu/int8_inl.h"

namespace invar::cpu {

namespace {

constexpr int64_t kTileColumns = 64, kTileInts = 256, kTileBytes = 1024;
constexpr int64_t kStripRows = 32;

class Int8Amx {
 public:
  explicit Int8Amx(const PanelProduct& p)
      : p_(p),
        run_(p.leaves * kLeaf / p.split_k),
        tile_rows_(smaller(p.rows, 16)),
        strips_(ceil_div(p.rows, kStripRows)) {}

  void run() {
    configure();
    for (int64_t panel = 0; panel < p_.panels; panel += 2)
      for (int64_t s = 0; s < strips_; ++s) multiply_strip(s * kStripRows, panel);
    tile_release();
  }

 private:
  void configure() {
    TileConfig config;
    for (int t = 0; t < 8; ++t) {
      config.row_bytes[t] = 64;
      config.rows[t] = static_cast<uint8_t>(t < 6 ? tile_rows_ : 16);
    }
    tile_configure(config);
  }

  // Rows from `row` on. The last tile of all begins 16 rows before the end, so that it is whole.
  void multiply_strip(int64_t row, int64_t panel) {
    const int64_t tiles = p_.rows - row > 16 ? 2 : 1, panels = smaller(2, p_.panels - panel);
    int64_t first[2];
    for (int64_t t = 0; t < 2; ++t)
      first[t] = larger(0, smaller(row + smaller(t, tiles - 1) * 16, p_.rows - 16));
    trees_.start();
    for (int r = 0; r < p_.split_k; ++r) {
      const char* w = static_cast<const char*>(p_.w) + panel * p_.panel_bytes + r * run_ * 16;
      sums_of(first, w, panels, r * run_);
      for (int64_t q = 0; q < panels; ++q)
        for (int64_t t = 0; t < tiles; ++t) scale_tile(first[t], t, panel + q, q, r);
      trees_.add(r, 4 * 16);
    }
    for (int64_t t = 0; t < tiles; ++t)
      for (int64_t i = row + t * 16 - first[t]; i < tile_rows_; ++i)
        write_row(first[t] + i, trees_.dots() + t * kTileInts + i * 16, panel, panels);
  }

  // Columns of one run: whole tiles, and what is left with zeros for the weights that are not its
  // own (whatever stands beside them in x then counts for nothing).
  void sums_of(const int64_t (&first)[2], const char* w, int64_t panels, int64_t column) {
    const char* x = static_cast<const char*>(p_.x) + column;
    const char *a = x + first[0] * p_.x_stride, *b = x + first[1] * p_.x_stride;
    const char* other = w + (panels - 1) * p_.panel_bytes;
    tile_zero<0>();
    tile_zero<1>();
    tile_zero<2>();
    tile_zero<3>();
    int64_t left = run_;
    for (; left >= kTileColumns; left -= kTileColumns) {
      add(a, b, w, other);
      a += kTileColumns, b += kTileColumns, w += kTileBytes, other += kTileBytes;
    }
    if (left > 0) {
      __builtin_memcpy(rest_[0], w, kTileBytes / 2);
      __builtin_memcpy(rest_[1], other, kTileBytes / 2);
      add(a, b, rest_[0], rest_[1]);
    }
    tile_store<0>(sums_[0], 64);
    tile_store<1>(sums_[1], 64);
    tile_store<2>(sums_[2], 64);
    tile_store<3>(sums_[3], 64);
  }
  // Sums: tile of rows + 2 * panel.
  void add(const char* a, const char* b, const char* w, const char* other) {
    tile_load<4>(a, p_.x_stride);
    tile_load<6>(w, 64);
    tile_dot_int8<0, 4, 6>();
    tile_load<5>(b, p_.x_stride);
    tile_dot_int8<1, 5, 6>();
    tile_load<7>(other, 64);
    tile_dot_int8<2, 4, 7>();
    tile_dot_int8<3, 5, 7>();
  }

  void scale_tile(int64_t row, int64_t tile, int64_t panel, int64_t q, int r) {
    const Vec16 w = panel_scales(p_, panel);
    const RunScale* scale = p_.x_scales + row * p_.split_k + r;
    const int64_t place = tile + 2 * q;
    float* out = trees_.next() + place * kTileInts;
    for (int64_t i = 0; i < tile_rows_; ++i, scale += p_.split_k) {
      const __m512i sum = _mm512_sub_epi32(_mm512_load_si512(sums_[place] + i * 16),
                                           _mm512_set1_epi32(128 * scale->sum));
      store(out + i * 16, Vec16{_mm512_cvtepi32_ps(sum)} * (splat(scale->scale) * w));
    }
  }

  void write_row(int64_t row, const float* dot, int64_t panel, int64_t panels) {
    const float* second = dot + 2 * kTileInts;
    if (p_.out) return write_gated(p_, row, panel, load(dot), load(second));
    write_plain(p_, row, panel, load(dot));
    if (panels == 2) write_plain(p_, row, panel + 1, load(second));
  }

  const PanelProduct& p_;
  const int64_t run_, tile_rows_, strips_;
  alignas(64) char rest_[2][kTileBytes] = {};
  alignas(64) int32_t sums_[4][kTileInts];
  RunTrees<kStripRows, 2> trees_;
};

}  // namespace

void int8_product_amx(const PanelProduct& p) {
  Int8Amx(p).run();
}

}  // namespace invar::cpu
