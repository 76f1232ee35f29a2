// The tile registers of src/kernels/cpu/amx_tiles_inl.h in memory, so that whatever is written for
// them can be tested bit by bit on machines without AMX. Found first by the test's copy of those
// files. One thread only.
#pragma once

#include <cstdint>
#include <cstring>

namespace invar::cpu {

namespace {

struct TileConfig {
  uint8_t palette = 1, start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};
};

struct EmulatedTile {
  int rows, words;  // as configured
  uint32_t word[16][16];
};
EmulatedTile tiles[8];
bool tiles_are_configured = false;

inline void tile_configure(const TileConfig& config) {
  for (int t = 0; t < 8; ++t) {
    tiles[t] = {};
    tiles[t].rows = config.rows[t];
    tiles[t].words = config.row_bytes[t] / 4;
    if (config.row_bytes[t] % 4 != 0 || config.row_bytes[t] > 64 || config.rows[t] > 16)
      __builtin_trap();
  }
  tiles_are_configured = true;
}
inline void tile_release() {
  tiles_are_configured = false;
}
template <int T>
inline EmulatedTile& tile() {
  if (!tiles_are_configured) __builtin_trap();  // as the instruction would
  return tiles[T];
}
template <int T>
inline void tile_zero() {
  for (auto& row : tile<T>().word)
    for (uint32_t& word : row) word = 0;
}
template <int T>
inline void tile_load(const void* from, int64_t stride) {
  tile_zero<T>();
  for (int r = 0; r < tile<T>().rows; ++r)
    __builtin_memcpy(tile<T>().word[r], static_cast<const char*>(from) + r * stride,
                     4 * tile<T>().words);
}
template <int T>
inline void tile_load_once(const void* from, int64_t stride) {
  tile_load<T>(from, stride);
}
template <int T>
inline void tile_store(void* to, int64_t stride) {
  for (int r = 0; r < tile<T>().rows; ++r)
    __builtin_memcpy(static_cast<char*>(to) + r * stride, tile<T>().word[r], 4 * tile<T>().words);
}
inline float as_float(uint32_t bits) {
  return __builtin_bit_cast(float, bits);
}
template <int C, int A, int B>
inline void tile_dot() {
  EmulatedTile &c = tile<C>(), &a = tile<A>(), &b = tile<B>();
  if (c.rows != a.rows || b.rows != a.words || c.words != b.words) __builtin_trap();
  for (int m = 0; m < c.rows; ++m) {
    float even[16] = {}, odd[16] = {};
    for (int j = 0; j < b.rows; ++j) {
      const float x_even = as_float(a.word[m][j] << 16),
                  x_odd = as_float(a.word[m][j] & 0xffff0000);
      for (int n = 0; n < b.words; ++n) {
        even[n] = __builtin_fmaf(x_even, as_float(b.word[j][n] << 16), even[n]);
        odd[n] = __builtin_fmaf(x_odd, as_float(b.word[j][n] & 0xffff0000), odd[n]);
      }
    }
    for (int n = 0; n < c.words; ++n)
      c.word[m][n] = __builtin_bit_cast(uint32_t, as_float(c.word[m][n]) + (even[n] + odd[n]));
  }
}

template <int C, int A, int B>
inline void tile_dot_int8() {
  EmulatedTile &c = tile<C>(), &a = tile<A>(), &b = tile<B>();
  if (c.rows != a.rows || b.rows != a.words || c.words != b.words) __builtin_trap();
  for (int m = 0; m < c.rows; ++m)
    for (int j = 0; j < b.rows; ++j)
      for (int n = 0; n < b.words; ++n)
        for (int i = 0; i < 32; i += 8)
          c.word[m][n] += static_cast<uint32_t>(static_cast<int8_t>(a.word[m][j] >> i)) *
                          (b.word[j][n] >> i & 0xff);
}

inline __m256i round_to_bf16(__m512 x) {
  alignas(64) uint32_t bits[16];
  alignas(32) uint16_t y[16];
  _mm512_store_ps(bits, x);
  for (int i = 0; i < 16; ++i) {
    const uint32_t magnitude = bits[i] & 0x7fffffff, sign = bits[i] >> 16 & 0x8000;
    const uint32_t rounded = (bits[i] + 0x7fff + (bits[i] >> 16 & 1)) >> 16;
    y[i] = static_cast<uint16_t>(magnitude > 0x7f800000   ? 0x7fff
                                 : magnitude < 0x00800000 ? sign
                                                          : rounded);
  }
  return _mm256_load_si256(reinterpret_cast<const __m256i*>(y));
}

}  // namespace

}  // namespace invar::cpu
