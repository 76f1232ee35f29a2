// Products of blocks as integers on AMX: one TDPBSUD adds the products of a part, of 16 rows by 16
// outputs. The product and the sum in f32 behind each take longer; rows that fill no tile go by
// VPDPBUSD.
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
#include "kernels/cpu/block_product_inl.h"
// after it
#include "kernels/cpu/block_leaf_vnni.h"

namespace invar::cpu {

namespace {

struct Amx {
  static constexpr int64_t kRows = 16;

  template <typename Parts>
  static constexpr int zero_of() {
    return unsigned_zero<Parts>();
  }
  // Sums in tiles 0 and 1, rows in 4 and 5, weights of parts in 6 and 7.
  template <typename Parts>
  static void begin() {
    constexpr uint8_t kFours = 8 / Parts::kParts;
    TileConfig config;
    for (int t = 0; t < 8; ++t) {
      config.row_bytes[t] = t == 4 || t == 5 ? kFours * 4 : kLine;
      config.rows[t] = t >= 6 ? kFours : kRows;
    }
    tile_configure(config);
  }
  static void end() { tile_release(); }

  template <typename Parts>
  static void add(const LeavesOfPanel& t) {
    for_each_leaf<Parts>(t, [&](int64_t i, const Parts& parts) {
      const WholeLeaf<Parts> w(parts);
      const RowLeaf* x = t.x + i * t.rows;
      int64_t r = 0;
      if (t.rows >= kRows) {
        load_weights<Parts>(w.fours());
        for (; r + kRows <= t.rows; r += kRows) add_tile(w, t.chains + r * 16, x + r);
      }
      w.add_rows(t.chains + r * 16, x + r, t.rows - r);
    });
  }
  static void in_order(float*, int64_t) {}

 private:
  template <typename Parts>
  static void load_weights(const __m512i* fours) {
    tile_load<6>(fours, kLine);
    if constexpr (Parts::kParts == 2) tile_load<7>(fours + 4, kLine);
  }
  template <typename Parts>
  static void add_tile(const WholeLeaf<Parts>& w, float* chains, const RowLeaf* x) {
    alignas(64) int32_t sums[Parts::kParts][kRows][16];
    tile_zero<0>();
    tile_load<4>(x->x, sizeof(RowLeaf));
    tile_dot_int8<0, 4, 6>();
    tile_store<0>(sums[0], kLine);
    if constexpr (Parts::kParts == 2) {
      tile_zero<1>();
      tile_load<5>(x->x + 16, sizeof(RowLeaf));
      tile_dot_int8<1, 5, 7>();
      tile_store<1>(sums[1], kLine);
    }
    for (int64_t r = 0; r < kRows; ++r) {
      __m512 chain = _mm512_load_ps(chains + r * 16);
      for (int j = 0; j < Parts::kParts; ++j) {
        const __m512i sum = _mm512_load_si512(sums[j][r]);
        chain = w.end_part(chain, _mm512_sub_epi32(sum, _mm512_set1_epi32(x[r].more[j])), x[r], j);
      }
      _mm512_store_ps(chains + r * 16, chain);
    }
  }
};

}  // namespace

void block_product_amx(const PanelProduct& p) {
  block_product<Amx>(p);
}

}  // namespace invar::cpu
