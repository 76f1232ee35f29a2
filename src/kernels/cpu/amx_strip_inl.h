// All matrix products on AMX share this: a strip of up to two tiles of rows meets up to two panels,
// leaf by leaf. Registers 0 to 3 hold chains, those of row tile t and panel p in 2 t + p; 4 and 5
// hold the rows, 6 and 7 the panels. Each product decides for itself which leaves meet when, what
// is fetched meanwhile and where the chains go.
#pragma once

#include <cstdint>

#include "kernels/cpu/amx_tiles_inl.h"

namespace invar::cpu {

namespace {

constexpr int64_t kTileBytes = 1024, kTileFloats = 256, kTileRowBytes = 64;

// Whole panels, and tiles of `rows` rows.
inline void configure_tiles(int64_t rows = 16) {
  TileConfig config;
  for (int t = 0; t < 8; ++t) {
    config.row_bytes[t] = kTileRowBytes;
    config.rows[t] = static_cast<uint8_t>(t < 6 ? rows : 16);
  }
  tile_configure(config);
}

// Where the chains of some tiles of rows and some panels lie.
struct Chains {
  float* first;
  int64_t row, tile, panel;  // bytes from one to the next

  float* at(int64_t t, int64_t p) const {
    return reinterpret_cast<float*>(reinterpret_cast<char*>(first) + t * tile + p * panel);
  }
  Chains from(int64_t t, int64_t p) const { return {at(t, p), row, tile, panel}; }
};

// One tile after another: [panel][tile][16][16].
inline Chains packed_chains(float* first, int64_t tiles) {
  return {first, kTileRowBytes, kTileBytes, tiles * kTileBytes};
}

// R tiles of rows and P panels, each 1 or 2.
template <int R, int P>
inline void zero_chains() {
  tile_zero<0>();
  if constexpr (P == 2) tile_zero<1>();
  if constexpr (R == 2) tile_zero<2>();
  if constexpr (R == 2 && P == 2) tile_zero<3>();
}
template <int R, int P>
inline void load_chains(const Chains& from) {
  tile_load<0>(from.at(0, 0), from.row);
  if constexpr (P == 2) tile_load<1>(from.at(0, 1), from.row);
  if constexpr (R == 2) tile_load<2>(from.at(1, 0), from.row);
  if constexpr (R == 2 && P == 2) tile_load<3>(from.at(1, 1), from.row);
}
template <int R, int P>
inline void store_chains(const Chains& to) {
  tile_store<0>(to.at(0, 0), to.row);
  if constexpr (P == 2) tile_store<1>(to.at(0, 1), to.row);
  if constexpr (R == 2) tile_store<2>(to.at(1, 0), to.row);
  if constexpr (R == 2 && P == 2) tile_store<3>(to.at(1, 1), to.row);
}

enum class RowsAre { read_again, past_l1 };

template <int T, RowsAre kRows>
inline void load_rows(const void* x, int64_t stride) {
  if constexpr (kRows == RowsAre::past_l1)
    tile_load_once<T>(x, stride);
  else
    tile_load<T>(x, stride);
}

// One leaf of the tiles at `x` and `second`, rows `stride` bytes apart, by the panels at `w` and
// `other`. An operand is loaded just before its first product: the loads run ahead by themselves.
template <int R, int P, RowsAre kRows>
inline void add_leaf(const void* x, const void* second, int64_t stride, const void* w,
                     const void* other) {
  load_rows<4, kRows>(x, stride);
  tile_load<6>(w, kTileRowBytes);
  tile_dot<0, 4, 6>();
  if constexpr (P == 2) {
    tile_load<7>(other, kTileRowBytes);
    tile_dot<1, 4, 7>();
  }
  if constexpr (R == 2) {
    load_rows<5, kRows>(second, stride);
    tile_dot<2, 5, 6>();
    if constexpr (P == 2) tile_dot<3, 5, 7>();
  }
}

// One 512-bit addition a leaf keeps the vector unit awake: after less than a microsecond without,
// it sleeps, and the next store of a tile waits for it.
inline void stay_awake() {
  __asm__ volatile("vaddps %%zmm31, %%zmm31, %%zmm31" : : : "xmm31");
}

// Calls f.operator()<R, P>() for R tiles of rows by P panels.
template <typename F>
inline void with_shape(int64_t tiles, int64_t panels, const F& f) {
  if (tiles == 2)
    panels == 2 ? f.template operator()<2, 2>() : f.template operator()<2, 1>();
  else
    panels == 2 ? f.template operator()<1, 2>() : f.template operator()<1, 1>();
}

}  // namespace

}  // namespace invar::cpu
