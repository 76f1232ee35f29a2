// Matrix products of order `portable` on AVX-512: a lane is an output, so the chains of numerics 1
// run down the lanes.
//
// The even and the odd chain of 6 rows by 2 panels, or of 12 by 1, fill 24 registers. A bf16 pair
// costs one shift and one mask; from 13 rows on a stretch is unpacked to f32 once and used by every
// row.
#include <immintrin.h>

#include "kernels/cpu/panel_product.h"
// in this order
#include "kernels/cpu/vec16_avx512.h"
// after it
#include "kernels/cpu/vec16_math.h"
// after it
#include "kernels/cpu/product_end_inl.h"
// after it
#include "kernels/cpu/product_inl.h"

namespace invar::cpu {

namespace {

constexpr int kTileRows = 6;
constexpr int kStreamRows = 12;    // that one reading of the weights from memory serves
constexpr int kStretchLeaves = 4;  // two panels unpacked: 16 KB, half of a small L1
constexpr int kBlockRows = 132;
constexpr int kGroupPanels = 8;  // one conversion of the rows to f32 serves so many panels
// Elements between rows of f32 copies: an odd number of cache lines.
constexpr int kRowStride = kStretchLeaves * kLeaf + 16;

// Chains of R rows by P panels within a leaf.
template <int R, int P>
struct Chains {
  __m512 even[R][P], odd[R][P];
};

// Pair j of a leaf. The first product of a chain needs no addition: fma(x, w, +0) differs from it
// in the sign of a zero at most, and the + 0 that ends every dot removes that.
template <bool kBf16, bool kFirst, int R, int P>
[[gnu::always_inline]] inline void add_pair(Chains<R, P>& c, const float* x,
                                            const char* const (&panel)[P], int j) {
  const __m512i odd_half = _mm512_set1_epi32(static_cast<int>(0xffff0000));
  __m512 w_even[P], w_odd[P];
  for (int p = 0; p < P; ++p) {
    if (kBf16) {
      const __m512i both = _mm512_load_si512(panel[p] + j * 64);
      w_even[p] = _mm512_castsi512_ps(_mm512_slli_epi32(both, 16));
      w_odd[p] = _mm512_castsi512_ps(_mm512_and_si512(both, odd_half));
    } else {
      w_even[p] = _mm512_load_ps(panel[p] + j * 128);
      w_odd[p] = _mm512_load_ps(panel[p] + j * 128 + 64);
    }
  }
  for (int r = 0; r < R; ++r) {
    const __m512 x_even = _mm512_set1_ps(x[r * kRowStride + j]);
    const __m512 x_odd = _mm512_set1_ps(x[r * kRowStride + 16 + j]);
    for (int p = 0; p < P; ++p) {
      c.even[r][p] = kFirst ? _mm512_mul_ps(x_even, w_even[p])
                            : _mm512_fmadd_ps(x_even, w_even[p], c.even[r][p]);
      c.odd[r][p] =
          kFirst ? _mm512_mul_ps(x_odd, w_odd[p]) : _mm512_fmadd_ps(x_odd, w_odd[p], c.odd[r][p]);
    }
  }
}

// kBf16: panels as packed; f32 otherwise. kStream: the panels come from memory and no other tile
// reads them, so one line is fetched for each line read.
template <bool kBf16, bool kStream, int R, int P>
void multiply(const Tile& t) {
  constexpr int kPairBytes = kBf16 ? 64 : 128;
  for (int r = 0; t.first && r < R; ++r)
    for (int p = 0; p < P; ++p)
      _mm512_store_ps(t.chains + (p * kBlockRows + r) * 16, _mm512_setzero_ps());
  const float* x = t.x;
  const char *panel[P], *next[P];
  for (int p = 0; p < P; ++p) {
    panel[p] = t.w + p * t.w_panel;
    next[p] = t.next + p * t.next_panel;
  }
  for (int64_t leaf = 0; leaf < t.leaves; ++leaf) {
    for (int p = 0; p < P; ++p)
      for (int64_t i = 0; !kStream && i < t.next_lines; ++i, next[p] += kLine)
        _mm_prefetch(next[p], _MM_HINT_T0);
    Chains<R, P> c;
    const auto fetch = [&](int j) {
      for (int p = 0; kStream && p < P; ++p)
        for (int i = 0; i < kPairBytes; i += kLine)
          _mm_prefetch(next[p] + j * kPairBytes + i, _MM_HINT_T0);
    };
    add_pair<kBf16, true>(c, x, panel, 0);
    fetch(0);
    for (int j = 1; j < 16; ++j) {
      add_pair<kBf16, false>(c, x, panel, j);
      fetch(j);
    }
    for (int r = 0; r < R; ++r)
      for (int p = 0; p < P; ++p) {
        float* chain = t.chains + (p * kBlockRows + r) * 16;
        const __m512 value = _mm512_add_ps(c.even[r][p], c.odd[r][p]);
        _mm512_store_ps(chain, _mm512_add_ps(_mm512_load_ps(chain), value));
      }
    x += kLeaf;
    for (int p = 0; p < P; ++p) {
      panel[p] += 16 * kPairBytes;
      if (kStream) next[p] += 16 * kPairBytes;
    }
  }
}

using Multiply = void (*)(const Tile&);
template <bool kBf16, bool kStream, int P>
constexpr Multiply kByRows[kTileRows] = {
    multiply<kBf16, kStream, 1, P>, multiply<kBf16, kStream, 2, P>, multiply<kBf16, kStream, 3, P>,
    multiply<kBf16, kStream, 4, P>, multiply<kBf16, kStream, 5, P>, multiply<kBf16, kStream, 6, P>};
// From 7 rows on: one panel has chains enough in flight, and its weights are unpacked in registers
// for all of the rows. This is the verification of a short draft.
template <bool kBf16>
constexpr Multiply kOnePanel[kStreamRows - kTileRows] = {
    multiply<kBf16, true, 7, 1>,  multiply<kBf16, true, 8, 1>,  multiply<kBf16, true, 9, 1>,
    multiply<kBf16, true, 10, 1>, multiply<kBf16, true, 11, 1>, multiply<kBf16, true, 12, 1>};
// One or two rows: four panels, for enough chains in flight.
template <bool kBf16>
constexpr Multiply kFourPanels[2] = {multiply<kBf16, true, 1, 4>, multiply<kBf16, true, 2, 4>};

template <bool kBf16, bool kStream>
Multiply multiply_of(int64_t rows, int64_t panels) {
  if (kStream && rows > kTileRows) return kOnePanel<kBf16>[rows - kTileRows - 1];
  return panels == 1 ? kByRows<kBf16, kStream, 1>[rows - 1] : kByRows<kBf16, kStream, 2>[rows - 1];
}

struct Avx512 {
  static constexpr int kRows = kBlockRows, kTileRows = cpu::kTileRows;
  static constexpr int kPanels = kGroupPanels, kLeaves = kStretchLeaves;

  static BlockFunctions blocks(DType type) { return best_blocks_avx512(type); }
  // kBlockFloats.
  float* room_for_rows() { return x_; }

  void accumulate(const Stretch& s) {
    copy_rows(s, x_, kRowStride);
    if (s.rows <= kStreamRows)
      stream(s);
    else
      reuse(s);
  }

 private:
  // Few rows: every panel is read once, straight from memory.
  void stream(const Stretch& s) {
    for (int64_t p = 0, count; p < s.panels; p += count) {
      const int64_t left = s.panels - p;
      count = s.rows <= 2 && left >= 4 ? 4 : s.rows <= kTileRows && left >= 2 ? 2 : 1;
      const Panels w = panels_of(s, p, count, room_);
      const Tile tile{.x = x_,
                      .w = w.first,
                      .w_panel = w.bytes,
                      .leaves = s.leaves,
                      .first = s.first,
                      .chains = s.chains + p * kBlockRows * 16,
                      .next = s.next ? s.next + p * s.panel_bytes : w.first,
                      .next_panel = s.next ? s.panel_bytes : w.bytes,
                      .next_lines = 0};
      if (count == 4)
        (s.f32 ? kFourPanels<false> : kFourPanels<true>)[s.rows - 1](tile);
      else
        (s.f32 ? multiply_of<false, true> : multiply_of<true, true>)(s.rows, count)(tile);
    }
  }

  // Many rows: two panels in f32 stay in L1 while the rows pass by in tiles, which share out the
  // lines of the two panels after these.
  void reuse(const Stretch& s) {
    const Tiling tiling(s.rows, kTileRows);
    const int64_t leaf_lines = s.f32 ? 32 : 16;
    for (int64_t p = 0, count; p < s.panels; p += count) {
      count = s.panels - p >= 2 ? 2 : 1;
      const Panels w = panels_of(s, p, count, room_);
      for (int64_t q = 0; !s.f32 && q < count; ++q)
        unpack_panel(w.first + q * w.bytes, s.leaves, w_ + q * kPanelFloats);
      const char* next =
          p + count < s.panels && !s.blocks.expand ? w.first + count * w.bytes : s.next;
      Tile tile{.x = x_,
                .w = s.f32 ? w.first : reinterpret_cast<const char*>(w_),
                .w_panel = s.f32 ? s.panel_bytes : kPanelFloats * 4,
                .leaves = s.leaves,
                .first = s.first,
                .chains = s.chains + p * kBlockRows * 16,
                .next = next,
                .next_panel = s.panel_bytes,
                .next_lines = next ? ceil_div(leaf_lines, tiling.count) : 0};
      for (int64_t i = 0; i < tiling.count; ++i) {
        const int64_t rows = tiling.size(i);
        multiply_of<false, false>(rows, count)(tile);
        tile.x += rows * kRowStride;
        tile.chains += rows * 16;
        tile.next += tile.next_lines * s.leaves * kLine;
        if ((i + 1) * tile.next_lines >= leaf_lines) tile.next_lines = 0;
      }
    }
  }

  static constexpr int64_t kPanelFloats = kStretchLeaves * kLeaf * 16;
  alignas(64) float x_[kBlockRows * kRowStride];
  static_assert(sizeof x_ >= kBlockFloats * sizeof(float));
  alignas(64) float w_[2 * kPanelFloats];
  alignas(64) char room_[4 * kPanelFloats * 2];
};

}  // namespace

void product_avx512(const PanelProduct& p) {
  Product<Avx512>(p).run();
}

}  // namespace invar::cpu
