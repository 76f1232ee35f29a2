// Matrix products of order `portable` on AVX2: a panel is two halves of eight outputs, and the
// chains of numerics 1 run down the lanes.
//
// Up to three rows take even and odd chains together, straight from the packed panel. More rows
// share a stretch of one panel unpacked to f32: 6 rows by 2 halves of the even chains fill the
// registers, then the same with the odd ones.
#include <immintrin.h>

#include "kernels/cpu/panel_product.h"
// in this order
#include "kernels/cpu/vec16_avx2.h"
// after it
#include "kernels/cpu/vec16_math.h"
// after it
#include "kernels/cpu/product_end_inl.h"
// after it
#include "kernels/cpu/product_inl.h"

namespace invar::cpu {

namespace {

constexpr int kTileRows = 6;
constexpr int kFewRows = 3;
constexpr int kStretchLeaves = 4;
constexpr int kBlockRows = 96;
constexpr int kGroupPanels = 8;
// Elements between rows of f32 copies: an odd number of cache lines.
constexpr int kRowStride = kStretchLeaves * kLeaf + 16;

inline void add_leaf(float* chain, __m256 value) {
  _mm256_store_ps(chain, _mm256_add_ps(_mm256_load_ps(chain), value));
}

template <int R, int P>
void clear_chains(const Tile& t) {
  for (int p = 0; p < P; ++p)
    for (int i = 0; i < R * 16; i += 8)
      _mm256_store_ps(t.chains + p * kBlockRows * 16 + i, _mm256_setzero_ps());
}

// R rows by P panels, as packed; one line is fetched for each that is read.
template <bool kBf16, int R, int P>
void multiply_few(const Tile& t) {
  const __m256i odd_half = _mm256_set1_epi32(static_cast<int>(0xffff0000));
  constexpr int kPairBytes = kBf16 ? 64 : 128;
  if (t.first) clear_chains<R, P>(t);
  const float* x = t.x;
  const char *panel[P], *next[P];
  for (int p = 0; p < P; ++p) {
    panel[p] = t.w + p * t.w_panel;
    next[p] = t.next + p * t.next_panel;
  }
  for (int64_t leaf = 0; leaf < t.leaves; ++leaf, x += kLeaf) {
    __m256 even[R][P][2], odd[R][P][2];
    for (int r = 0; r < R; ++r)
      for (int p = 0; p < P; ++p)
        for (int h = 0; h < 2; ++h) even[r][p][h] = odd[r][p][h] = _mm256_setzero_ps();
    for (int j = 0; j < 16; ++j)
      for (int p = 0; p < P; ++p) {
        for (int h = 0; h < 2; ++h) {
          __m256 w_even, w_odd;
          if (kBf16) {
            const __m256i both =
                _mm256_load_si256(reinterpret_cast<const __m256i*>(panel[p] + h * 32));
            w_even = _mm256_castsi256_ps(_mm256_slli_epi32(both, 16));
            w_odd = _mm256_castsi256_ps(_mm256_and_si256(both, odd_half));
          } else {
            w_even = _mm256_load_ps(reinterpret_cast<const float*>(panel[p] + h * 32));
            w_odd = _mm256_load_ps(reinterpret_cast<const float*>(panel[p] + 64 + h * 32));
          }
          for (int r = 0; r < R; ++r) {
            const float* x_even = x + r * kRowStride + j;
            even[r][p][h] = _mm256_fmadd_ps(_mm256_broadcast_ss(x_even), w_even, even[r][p][h]);
            odd[r][p][h] = _mm256_fmadd_ps(_mm256_broadcast_ss(x_even + 16), w_odd, odd[r][p][h]);
          }
        }
        for (int i = 0; i < kPairBytes; i += kLine) _mm_prefetch(next[p] + i, _MM_HINT_T0);
        panel[p] += kPairBytes;
        next[p] += kPairBytes;
      }
    for (int r = 0; r < R; ++r)
      for (int p = 0; p < P; ++p)
        for (int h = 0; h < 2; ++h)
          add_leaf(t.chains + (p * kBlockRows + r) * 16 + h * 8,
                   _mm256_add_ps(even[r][p][h], odd[r][p][h]));
  }
}

// The even chains of one leaf of one panel in f32; with x and w 16 elements further, the odd ones.
// The first product of a chain needs no addition: fma(x, w, +0) differs from it in the sign of a
// zero at most, and the + 0 that ends every dot removes that.
template <int R>
[[gnu::always_inline]] inline void half_leaf(const float* x, const float* w,
                                             __m256 (&chain)[R][2]) {
  const __m256 first[2] = {_mm256_load_ps(w), _mm256_load_ps(w + 8)};
  for (int r = 0; r < R; ++r)
    for (int h = 0; h < 2; ++h)
      chain[r][h] = _mm256_mul_ps(_mm256_broadcast_ss(x + r * kRowStride), first[h]);
  for (int j = 1; j < 16; ++j) {
    const __m256 w0 = _mm256_load_ps(w + j * 32), w1 = _mm256_load_ps(w + j * 32 + 8);
    for (int r = 0; r < R; ++r) {
      const __m256 x_r = _mm256_broadcast_ss(x + r * kRowStride + j);
      chain[r][0] = _mm256_fmadd_ps(x_r, w0, chain[r][0]);
      chain[r][1] = _mm256_fmadd_ps(x_r, w1, chain[r][1]);
    }
  }
}

// R rows by one panel in f32.
template <int R>
void multiply_many(const Tile& t) {
  if (t.first) clear_chains<R, 1>(t);
  const char* next = t.next;
  const float *x = t.x, *w = reinterpret_cast<const float*>(t.w);
  for (int64_t leaf = 0; leaf < t.leaves; ++leaf, x += kLeaf, w += kLeaf * 16) {
    for (int64_t i = 0; i < t.next_lines; ++i, next += kLine) _mm_prefetch(next, _MM_HINT_T0);
    __m256 even[R][2], odd[R][2];
    half_leaf(x, w, even);
    half_leaf(x + 16, w + 16, odd);
    for (int r = 0; r < R; ++r)
      for (int h = 0; h < 2; ++h)
        add_leaf(t.chains + r * 16 + h * 8, _mm256_add_ps(even[r][h], odd[r][h]));
  }
}

using Multiply = void (*)(const Tile&);
template <bool kBf16>
constexpr Multiply kFewOnePanel[kFewRows] = {multiply_few<kBf16, 1, 1>, multiply_few<kBf16, 2, 1>,
                                             multiply_few<kBf16, 3, 1>};
constexpr Multiply kMany[kTileRows] = {multiply_many<1>, multiply_many<2>, multiply_many<3>,
                                       multiply_many<4>, multiply_many<5>, multiply_many<6>};

struct Avx2 {
  static constexpr int kRows = kBlockRows, kTileRows = cpu::kTileRows;
  static constexpr int kPanels = kGroupPanels, kLeaves = kStretchLeaves;

  static BlockFunctions blocks(DType type) { return blocks_avx2(type); }
  // kBlockFloats.
  float* room_for_rows() { return x_; }

  void accumulate(const Stretch& s) {
    copy_rows(s, x_, kRowStride);
    if (s.rows <= kFewRows)
      stream(s);
    else
      reuse(s);
  }

 private:
  // Few rows: every panel is read once, straight from memory.
  void stream(const Stretch& s) {
    for (int64_t p = 0, count; p < s.panels; p += count) {
      count = s.rows == 1 && s.panels - p >= 2 ? 2 : 1;
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
      if (count == 2)
        (s.f32 ? multiply_few<false, 1, 2> : multiply_few<true, 1, 2>)(tile);
      else
        (s.f32 ? kFewOnePanel<false> : kFewOnePanel<true>)[s.rows - 1](tile);
    }
  }

  // Many rows: a panel in f32 stays in L1 while the rows pass by in tiles, which share out the
  // lines of the panel after it.
  void reuse(const Stretch& s) {
    const Tiling tiling(s.rows, kTileRows);
    const int64_t leaf_lines = s.f32 ? 32 : 16;
    for (int64_t p = 0; p < s.panels; ++p) {
      const char* w = panels_of(s, p, 1, room_).first;
      if (!s.f32) unpack_panel(w, s.leaves, w_);
      const char* next = p + 1 < s.panels && !s.blocks.expand ? w + s.panel_bytes : s.next;
      Tile tile{.x = x_,
                .w = s.f32 ? w : reinterpret_cast<const char*>(w_),
                .w_panel = 0,
                .leaves = s.leaves,
                .first = s.first,
                .chains = s.chains + p * kBlockRows * 16,
                .next = next,
                .next_panel = 0,
                .next_lines = next ? ceil_div(leaf_lines, tiling.count) : 0};
      for (int64_t i = 0; i < tiling.count; ++i) {
        const int64_t rows = tiling.size(i);
        kMany[rows - 1](tile);
        tile.x += rows * kRowStride;
        tile.chains += rows * 16;
        tile.next += tile.next_lines * s.leaves * kLine;
        if ((i + 1) * tile.next_lines >= leaf_lines) tile.next_lines = 0;
      }
    }
  }

  alignas(64) float x_[kBlockRows * kRowStride];
  static_assert(sizeof x_ >= kBlockFloats * sizeof(float));
  alignas(64) float w_[kStretchLeaves * kLeaf * 16];
  alignas(64) char room_[2 * kStretchLeaves * kLeaf * 32];
};

}  // namespace

void product_avx2(const PanelProduct& p) {
  Product<Avx2>(p).run();
}

}  // namespace invar::cpu
