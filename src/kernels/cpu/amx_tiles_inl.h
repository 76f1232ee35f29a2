// The eight tile registers of AMX, and the rounding that every processor with them has. A tile is
// 16 rows of 64 bytes; fewer rows where the configuration says so.
#pragma once

#include <immintrin.h>
#include <cstdint>

namespace invar::cpu {

namespace {

// Memory operand of ldtilecfg, palette 1.
struct alignas(64) TileConfig {
  uint8_t palette = 1, start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};
};

inline void tile_configure(const TileConfig& config) {
  __asm__ volatile("ldtilecfg %0" : : "m"(config) : "memory");
}
// Back to the initial state: a thread with live tiles is costly to switch.
inline void tile_release() {
  __asm__ volatile("tilerelease" : : : "memory");
}
template <int T>
inline void tile_zero() {
  __asm__ volatile("tilezero %%tmm%c0" : : "i"(T));
}
// Rows `stride` bytes apart.
template <int T>
inline void tile_load(const void* from, int64_t stride) {
  __asm__ volatile("tileloadd (%0,%1,1), %%tmm%c2" : : "r"(from), "r"(stride), "i"(T) : "memory");
}
// The same for what is not soon read again: it takes no place in L1.
template <int T>
inline void tile_load_once(const void* from, int64_t stride) {
  __asm__ volatile("tileloaddt1 (%0,%1,1), %%tmm%c2" : : "r"(from), "r"(stride), "i"(T) : "memory");
}
template <int T>
inline void tile_store(void* to, int64_t stride) {
  __asm__ volatile("tilestored %%tmm%c2, (%0,%1,1)" : : "r"(to), "r"(stride), "i"(T) : "memory");
}
// One leaf of order `portable` (numerics 1): C[m][n] += the even chain + the odd chain of row m of
// A with column n of B, a packed leaf of 16 outputs.
template <int C, int A, int B>
inline void tile_dot() {
  __asm__ volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(C), "i"(A), "i"(B));
}

// C[m][n] += products of integers: four neighbours of row m of A, with a sign, and of column n of
// B, without one.
template <int C, int A, int B>
inline void tile_dot_int8() {
  __asm__ volatile("tdpbsud %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(C), "i"(A), "i"(B));
}

// f32_to_bf16 of 16 lanes.
inline __m256i round_to_bf16(__m512 x) {
  __m256i y;
  __asm__("vcvtneps2bf16 %1, %0" : "=v"(y) : "v"(x));
  return y;
}

}  // namespace

}  // namespace invar::cpu
