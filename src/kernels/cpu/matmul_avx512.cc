// Matrix products of order `portable` on AVX-512: a lane is an output, so the chains of numerics 1
// run down the lanes.
//
// The even and the odd chain of 6 rows by 2 panels fill 24 registers. A bf16 pair costs one shift
// and one mask; from 7 rows on a stretch is unpacked to f32 once and used by every row.
#include <immintrin.h>

#include "kernels/cpu/panel_product.h"

namespace invar::cpu {

namespace {

#include "kernels/cpu/vec16_avx512.h"
// after it
#include "kernels/cpu/vec16_math.h"
// after that
#include "kernels/cpu/product_inl.h"

constexpr int kTileRows = 6;
constexpr int kStretchLeaves = 4;  // two panels unpacked: 16 KB, half of a small L1
constexpr int kBlockRows = 132;
constexpr int kGroupPanels = 8;  // one conversion of the rows to f32 serves so many panels
// Elements between rows of f32 copies: an odd number of cache lines.
constexpr int kRowStride = kStretchLeaves * kLeaf + 16;

// What a tile multiplies: R rows by P panels.
struct Tile {
  const float* x;  // rows kRowStride apart
  const char* w;
  int64_t w_panel;  // bytes from panel to panel
  int64_t leaves;
  bool first;
  float* chains;     // panels kBlockRows * 16 apart
  const char* next;  // to be fetched
  int64_t next_panel;
  int64_t next_lines;  // per panel and leaf
};

// kBf16: panels as packed; f32 otherwise. kStream: the panels come from memory and no other tile
// reads them, so one line is fetched for each line read.
template <bool kBf16, bool kStream, int R, int P>
void multiply(const Tile& t) {
  const __m512i odd_half = _mm512_set1_epi32(static_cast<int>(0xffff0000));
  constexpr int kPairBytes = kBf16 ? 64 : 128;
  const char* next = t.next;
  for (int r = 0; t.first && r < R; ++r)
    for (int p = 0; p < P; ++p)
      _mm512_store_ps(t.chains + (p * kBlockRows + r) * 16, _mm512_setzero_ps());
  for (int64_t leaf = 0; leaf < t.leaves; ++leaf) {
    const float* x = t.x + leaf * kLeaf;
    const char* w = t.w + leaf * 16 * kPairBytes;
    if (!kStream) {
      for (int p = 0; p < P; ++p)
        for (int64_t i = 0; i < t.next_lines; ++i)
          _mm_prefetch(next + p * t.next_panel + i * kLine, _MM_HINT_T0);
      next += t.next_lines * kLine;
    }
    __m512 even[R][P], odd[R][P];
    for (int r = 0; r < R; ++r)
      for (int p = 0; p < P; ++p) even[r][p] = odd[r][p] = _mm512_setzero_ps();
    for (int j = 0; j < 16; ++j) {
      __m512 w_even[P], w_odd[P];
      for (int p = 0; p < P; ++p) {
        const char* pair = w + p * t.w_panel + j * kPairBytes;
        if (kBf16) {
          const __m512i both = _mm512_load_si512(pair);
          w_even[p] = _mm512_castsi512_ps(_mm512_slli_epi32(both, 16));
          w_odd[p] = _mm512_castsi512_ps(_mm512_and_si512(both, odd_half));
        } else {
          w_even[p] = _mm512_load_ps(pair);
          w_odd[p] = _mm512_load_ps(pair + 64);
        }
        if (kStream)
          for (int i = 0; i < kPairBytes; i += kLine)
            _mm_prefetch(next + p * t.next_panel + i, _MM_HINT_T0);
      }
      if (kStream) next += kPairBytes;
      for (int r = 0; r < R; ++r) {
        const __m512 x_even = _mm512_set1_ps(x[r * kRowStride + 2 * j]);
        const __m512 x_odd = _mm512_set1_ps(x[r * kRowStride + 2 * j + 1]);
        for (int p = 0; p < P; ++p) {
          even[r][p] = _mm512_fmadd_ps(x_even, w_even[p], even[r][p]);
          odd[r][p] = _mm512_fmadd_ps(x_odd, w_odd[p], odd[r][p]);
        }
      }
    }
    for (int r = 0; r < R; ++r)
      for (int p = 0; p < P; ++p) {
        float* chain = t.chains + (p * kBlockRows + r) * 16;
        const __m512 value = _mm512_add_ps(even[r][p], odd[r][p]);
        _mm512_store_ps(chain, _mm512_add_ps(_mm512_load_ps(chain), value));
      }
  }
}

using Multiply = void (*)(const Tile&);
template <bool kBf16, bool kStream, int P>
constexpr Multiply kByRows[kTileRows] = {
    multiply<kBf16, kStream, 1, P>, multiply<kBf16, kStream, 2, P>, multiply<kBf16, kStream, 3, P>,
    multiply<kBf16, kStream, 4, P>, multiply<kBf16, kStream, 5, P>, multiply<kBf16, kStream, 6, P>};
// One or two rows: four panels, for enough chains in flight.
template <bool kBf16>
constexpr Multiply kFourPanels[2] = {multiply<kBf16, true, 1, 4>, multiply<kBf16, true, 2, 4>};

template <bool kBf16, bool kStream>
Multiply multiply_of(int64_t rows, int64_t panels) {
  return panels == 1 ? kByRows<kBf16, kStream, 1>[rows - 1] : kByRows<kBf16, kStream, 2>[rows - 1];
}

struct Avx512 {
  static constexpr int kRows = kBlockRows, kTileRows = cpu::kTileRows;
  static constexpr int kPanels = kGroupPanels, kLeaves = kStretchLeaves;
  static int64_t row_limit(const PanelProduct&) { return kRows; }
  static int64_t place_of(int64_t row, int64_t) { return row; }

  explicit Avx512(int64_t) {}

  void accumulate(const Stretch& s) {
    copy_rows(s);
    if (s.rows <= kTileRows)
      stream(s);
    else
      reuse(s);
  }

 private:
  // The rows as f32.
  void copy_rows(const Stretch& s) {
    for (int64_t r = 0; r < s.rows; ++r) {
      const char* from = s.x + r * s.x_stride;
      float* to = x_ + r * kRowStride;
      for (int64_t i = 0; i < s.leaves * kLeaf; i += 16)
        if (s.f32)
          _mm512_store_ps(to + i, _mm512_loadu_ps(from + i * 4));
        else
          _mm512_store_si512(to + i,
                             _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256(
                                                   reinterpret_cast<const __m256i*>(from + i * 2))),
                                               16));
    }
  }

  // Few rows: every panel is read once, straight from memory.
  void stream(const Stretch& s) {
    for (int64_t p = 0, count; p < s.panels; p += count) {
      const int64_t left = s.panels - p;
      count = s.rows <= 2 && left >= 4 ? 4 : left >= 2 ? 2 : 1;
      const char* w = s.w + p * s.panel_bytes;
      const Tile tile{.x = x_,
                      .w = w,
                      .w_panel = s.panel_bytes,
                      .leaves = s.leaves,
                      .first = s.first,
                      .chains = s.chains + p * kRows * 16,
                      .next = s.next ? s.next + p * s.panel_bytes : w,
                      .next_panel = s.panel_bytes,
                      .next_lines = 0};
      if (count == 4)
        (s.f32 ? kFourPanels<false> : kFourPanels<true>)[s.rows - 1](tile);
      else
        (s.f32 ? multiply_of<false, true> : multiply_of<true, true>)(s.rows, count)(tile);
    }
  }

  // Many rows: two panels in f32 stay in L1 while the rows pass by in tiles.
  void reuse(const Stretch& s) {
    const int64_t tiles = ceil_div(s.rows, kTileRows);
    const int64_t leaf_lines = s.f32 ? 32 : 16;
    for (int64_t p = 0, count; p < s.panels; p += count) {
      count = s.panels - p >= 2 ? 2 : 1;
      if (!s.f32)
        for (int64_t q = 0; q < count; ++q)
          unpack(s.w + (p + q) * s.panel_bytes, s.leaves, w_ + q * kPanelFloats);
      Tile tile{.x = nullptr,
                .w = s.f32 ? s.w + p * s.panel_bytes : reinterpret_cast<const char*>(w_),
                .w_panel = s.f32 ? s.panel_bytes : kPanelFloats * 4,
                .leaves = s.leaves,
                .first = s.first,
                .chains = nullptr,
                .next = nullptr,
                .next_panel = s.panel_bytes,
                .next_lines = s.next ? ceil_div(leaf_lines, tiles) : 0};
      for (int64_t i = 0; i < tiles; ++i) {
        const int64_t begin = s.rows * i / tiles, end = s.rows * (i + 1) / tiles;
        tile.x = x_ + begin * kRowStride;
        tile.chains = s.chains + (p * kRows + begin) * 16;
        // The tiles share out the lines of the coming stretch.
        if (i * tile.next_lines >= leaf_lines) tile.next_lines = 0;
        tile.next = s.next + p * s.panel_bytes + i * tile.next_lines * s.leaves * kLine;
        multiply_of<false, false>(end - begin, count)(tile);
      }
    }
  }

  static void unpack(const char* w, int64_t leaves, float* out) {
    const __m512i odd_half = _mm512_set1_epi32(static_cast<int>(0xffff0000));
    for (int64_t pair = 0; pair < leaves * 16; ++pair) {
      const __m512i both = _mm512_load_si512(w + pair * 64);
      _mm512_store_si512(out + pair * 32, _mm512_slli_epi32(both, 16));
      _mm512_store_si512(out + pair * 32 + 16, _mm512_and_si512(both, odd_half));
    }
  }

  static constexpr int64_t kPanelFloats = kStretchLeaves * kLeaf * 16;
  alignas(64) float x_[kRows * kRowStride];
  alignas(64) float w_[2 * kPanelFloats];
};

}  // namespace

void product_avx512(const PanelProduct& p) {
  Product<Avx512>(p).run();
}

}  // namespace invar::cpu
