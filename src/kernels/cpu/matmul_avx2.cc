// Matrix products of order `portable` on AVX2: a panel is two halves of eight outputs, and the
// chains of numerics 1 run down the lanes.
//
// Up to three rows take even and odd chains together, straight from the packed panel. More rows
// share a stretch of one panel unpacked to f32: 6 rows by 2 halves of the even chains fill the
// registers, then the same with the odd ones.
#include <immintrin.h>

#include "kernels/cpu/panel_product.h"

namespace invar::cpu {

namespace {

#include "kernels/cpu/vec16_avx2.h"
// after it
#include "kernels/cpu/vec16_math.h"
// after that
#include "kernels/cpu/product_inl.h"

constexpr int kTileRows = 6;
constexpr int kFewRows = 3;
constexpr int kStretchLeaves = 4;
constexpr int kBlockRows = 96;
constexpr int kGroupPanels = 8;
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
  int64_t next_lines;  // per leaf; `multiply_few` fetches one line for each that it reads
};

void add_leaf(float* chain, __m256 value) {
  _mm256_store_ps(chain, _mm256_add_ps(_mm256_load_ps(chain), value));
}

template <int R, int P>
void clear_chains(const Tile& t) {
  for (int p = 0; p < P; ++p)
    for (int i = 0; i < R * 16; i += 8)
      _mm256_store_ps(t.chains + p * kBlockRows * 16 + i, _mm256_setzero_ps());
}

template <bool kBf16, int R, int P>
void multiply_few(const Tile& t) {
  const __m256i odd_half = _mm256_set1_epi32(static_cast<int>(0xffff0000));
  constexpr int kPairBytes = kBf16 ? 64 : 128;
  if (t.first) clear_chains<R, P>(t);
  const char* next = t.next;
  for (int64_t leaf = 0; leaf < t.leaves; ++leaf) {
    const float* x = t.x + leaf * kLeaf;
    const char* w = t.w + leaf * 16 * kPairBytes;
    __m256 even[R][P][2], odd[R][P][2];
    for (int r = 0; r < R; ++r)
      for (int p = 0; p < P; ++p)
        for (int h = 0; h < 2; ++h) even[r][p][h] = odd[r][p][h] = _mm256_setzero_ps();
    for (int j = 0; j < 16; ++j) {
      for (int p = 0; p < P; ++p) {
        const char* pair = w + p * t.w_panel + j * kPairBytes;
        for (int h = 0; h < 2; ++h) {
          __m256 w_even, w_odd;
          if (kBf16) {
            const __m256i both = _mm256_load_si256(reinterpret_cast<const __m256i*>(pair + h * 32));
            w_even = _mm256_castsi256_ps(_mm256_slli_epi32(both, 16));
            w_odd = _mm256_castsi256_ps(_mm256_and_si256(both, odd_half));
          } else {
            w_even = _mm256_load_ps(reinterpret_cast<const float*>(pair + h * 32));
            w_odd = _mm256_load_ps(reinterpret_cast<const float*>(pair + 64 + h * 32));
          }
          for (int r = 0; r < R; ++r) {
            const float* pair_of_row = x + r * kRowStride + 2 * j;
            even[r][p][h] =
                _mm256_fmadd_ps(_mm256_broadcast_ss(pair_of_row), w_even, even[r][p][h]);
            odd[r][p][h] =
                _mm256_fmadd_ps(_mm256_broadcast_ss(pair_of_row + 1), w_odd, odd[r][p][h]);
          }
        }
        for (int i = 0; i < kPairBytes; i += kLine)
          _mm_prefetch(next + p * t.next_panel + i, _MM_HINT_T0);
      }
      next += kPairBytes;
    }
    for (int r = 0; r < R; ++r)
      for (int p = 0; p < P; ++p)
        for (int h = 0; h < 2; ++h)
          add_leaf(t.chains + (p * kBlockRows + r) * 16 + h * 8,
                   _mm256_add_ps(even[r][p][h], odd[r][p][h]));
  }
}

// The even chains of one leaf of one panel in f32; with x and w one element further, the odd ones.
template <int R>
inline void half_leaf(const float* x, const float* w, __m256 (&chain)[R][2]) {
  for (int r = 0; r < R; ++r) chain[r][0] = chain[r][1] = _mm256_setzero_ps();
  for (int j = 0; j < 16; ++j) {
    const __m256 w0 = _mm256_load_ps(w + j * 32), w1 = _mm256_load_ps(w + j * 32 + 8);
    for (int r = 0; r < R; ++r) {
      const __m256 x_r = _mm256_broadcast_ss(x + r * kRowStride + 2 * j);
      chain[r][0] = _mm256_fmadd_ps(x_r, w0, chain[r][0]);
      chain[r][1] = _mm256_fmadd_ps(x_r, w1, chain[r][1]);
    }
  }
}

// One panel in f32.
template <int R>
void multiply_many(const Tile& t) {
  if (t.first) clear_chains<R, 1>(t);
  const char* next = t.next;
  for (int64_t leaf = 0; leaf < t.leaves; ++leaf) {
    for (int64_t i = 0; i < t.next_lines; ++i, next += kLine) _mm_prefetch(next, _MM_HINT_T0);
    const float* x = t.x + leaf * kLeaf;
    const float* w = reinterpret_cast<const float*>(t.w) + leaf * kLeaf * 16;
    __m256 even[R][2], odd[R][2];
    half_leaf(x, w, even);
    half_leaf(x + 1, w + 16, odd);
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
  static int64_t row_limit(const PanelProduct&) { return kRows; }
  static int64_t place_of(int64_t row, int64_t) { return row; }

  explicit Avx2(int64_t) {}

  void accumulate(const Stretch& s) {
    copy_rows(s);
    if (s.rows <= kFewRows)
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
      for (int64_t i = 0; i < s.leaves * kLeaf; i += 8)
        if (s.f32)
          _mm256_store_ps(to + i, _mm256_loadu_ps(reinterpret_cast<const float*>(from) + i));
        else
          _mm256_store_si256(reinterpret_cast<__m256i*>(to + i),
                             _mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128(
                                                   reinterpret_cast<const __m128i*>(from + i * 2))),
                                               16));
    }
  }

  // Few rows: every panel is read once, straight from memory.
  void stream(const Stretch& s) {
    for (int64_t p = 0, count; p < s.panels; p += count) {
      count = s.rows == 1 && s.panels - p >= 2 ? 2 : 1;
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
      if (count == 2)
        (s.f32 ? multiply_few<false, 1, 2> : multiply_few<true, 1, 2>)(tile);
      else
        (s.f32 ? kFewOnePanel<false> : kFewOnePanel<true>)[s.rows - 1](tile);
    }
  }

  // Many rows: a panel in f32 stays in L1 while the rows pass by in tiles.
  void reuse(const Stretch& s) {
    const int64_t tiles = ceil_div(s.rows, kTileRows);
    const int64_t leaf_lines = s.f32 ? 32 : 16;
    for (int64_t p = 0; p < s.panels; ++p) {
      if (!s.f32) unpack(s.w + p * s.panel_bytes, s.leaves);
      Tile tile{.x = nullptr,
                .w = s.f32 ? s.w + p * s.panel_bytes : reinterpret_cast<const char*>(w_),
                .w_panel = 0,
                .leaves = s.leaves,
                .first = s.first,
                .chains = nullptr,
                .next = nullptr,
                .next_panel = 0,
                .next_lines = s.next ? ceil_div(leaf_lines, tiles) : 0};
      for (int64_t i = 0; i < tiles; ++i) {
        const int64_t begin = s.rows * i / tiles, end = s.rows * (i + 1) / tiles;
        tile.x = x_ + begin * kRowStride;
        tile.chains = s.chains + (p * kRows + begin) * 16;
        // The tiles share out the lines of the coming stretch.
        if (i * tile.next_lines >= leaf_lines) tile.next_lines = 0;
        tile.next = s.next + p * s.panel_bytes + i * tile.next_lines * s.leaves * kLine;
        kMany[end - begin - 1](tile);
      }
    }
  }

  void unpack(const char* w, int64_t leaves) {
    const __m256i odd_half = _mm256_set1_epi32(static_cast<int>(0xffff0000));
    for (int64_t pair = 0; pair < leaves * 16; ++pair)
      for (int64_t h = 0; h < 2; ++h) {
        const __m256i both =
            _mm256_load_si256(reinterpret_cast<const __m256i*>(w + pair * 64 + h * 32));
        float* to = w_ + pair * 32 + h * 8;
        _mm256_store_si256(reinterpret_cast<__m256i*>(to), _mm256_slli_epi32(both, 16));
        _mm256_store_si256(reinterpret_cast<__m256i*>(to + 16), _mm256_and_si256(both, odd_half));
      }
  }

  alignas(64) float x_[kRows * kRowStride];
  alignas(64) float w_[kStretchLeaves * kLeaf * 16];
};

}  // namespace

void product_avx2(const PanelProduct& p) {
  Product<Avx2>(p).run();
}

}  // namespace invar::cpu
