// What the matrix products of order `hopper` share: their operands for TMA and tiles. Weights lie
// in rows (WeightLayout::rows).
#pragma once

#include <algorithm>

#include "kernels/cuda/cuda_kernels.h"
#include "kernels/cuda/product_ends.cuh"
#include "kernels/cuda/tma.cuh"

namespace invar::cuda {

constexpr int kTileRows = 128;

constexpr int ceil_div(int64_t a, int64_t b) {
  return static_cast<int>((a + b - 1) / b);
}

PlainEnd end_of(const MatmulParams& p);
GatedEnd end_of(const GatedMatmulParams& p);

// The operands of a product for TMA. Rows of a run are {inner, row, run}; a gated pair's weights
// are {inner, 8 outputs, gate or up, block of 8 outputs}, so that a box holds blocks of gate and up
// in turn. The inner elements that a run lacks for whole slices are read as zeros, of x and of w:
// such steps change no chain.
struct ProductMaps {
  CUtensorMap x, w;
};
// Boxes of so many rows of x, and of so many rows of w (gate and up together) in so many parts.
ProductMaps maps_of(const MatmulParams& p, int x_rows, int w_rows, int split_k = 1);
ProductMaps maps_of(const GatedMatmulParams& p, int x_rows, int w_rows);
// The same of stacks of several experts: rows of weights are {inner, row, expert}, or those of
// gated pairs {inner, 8 outputs, gate or up, block of 8 outputs counted through the experts'
// pairs}.
ProductMaps expert_maps_of(const MatmulParams& p, int x_rows, int w_rows);
ProductMaps expert_maps_of(const GatedMatmulParams& p, int x_rows, int w_rows);
// The same of heads: rows of x are {inner, row, head}.
ProductMaps heads_maps_of(const HeadsMatmulParams& p, int x_rows, int w_rows);

// The beginning of every kernel of products, by all threads of a block. A stage of the ring is
// empty when so many warps have released it.
__device__ __forceinline__ void set_up(const Ring& ring, const CUtensorMap& x, const CUtensorMap& w,
                                       int releases) {
  if (threadIdx.x == 0) {
    prefetch(x);
    prefetch(w);
    ring.init(releases);
  }
  __syncthreads();
}

template <int kMatrices>
__device__ __forceinline__ void load_weights(uint32_t to, const CUtensorMap& w, int slice,
                                             int first_row, int run, uint32_t barrier) {
  if constexpr (kMatrices == 1)
    load_box(to, w, slice * kSlice, first_row, run, barrier);
  else
    load_box(to, w, slice * kSlice, 0, 0, first_row / (2 * kBlockOutputs), barrier);
}
// The same into both blocks of a cluster.
template <int kMatrices>
__device__ __forceinline__ void load_weights_to_both(uint32_t to, const CUtensorMap& w, int slice,
                                                     int first_row, int run, uint32_t barrier) {
  if constexpr (kMatrices == 1)
    load_box_to_both(to, w, slice * kSlice, first_row, run, barrier);
  else
    load_box_to_both(to, w, slice * kSlice, 0, 0, first_row / (2 * kBlockOutputs), barrier);
}
// The same, of weights that no other block reads.
template <int kMatrices>
__device__ __forceinline__ void load_weights_once(uint32_t to, const CUtensorMap& w, int slice,
                                                  int first_row, int run, uint32_t barrier,
                                                  uint64_t policy = kEvictFirst) {
  if constexpr (kMatrices == 1)
    load_box_once(to, w, slice * kSlice, first_row, run, barrier, policy);
  else
    load_box_once(to, w, slice * kSlice, 0, 0, first_row / (2 * kBlockOutputs), barrier, policy);
}

// A product in tiles of 128 rows, or of `height`. Blocks that work at the same time take `group`
// tiles below each other before they go to the right, so that they share what they read.
struct TileGrid {
  int64_t rows;
  int row_tiles, column_tiles;
  int tile_rows;  // that exist: fewer than a tile has when there are fewer in all
  int slices;     // of a run
  int split_k;
  int height = kTileRows;
  int group = 8;
  int ahead = 0;  // stages of weights that a block fetches before the kernels before it are done

  __device__ __host__ int tiles() const { return row_tiles * column_tiles; }
  struct Place {
    int row, column;
  };
  __device__ Place slot(int tile) const {
    const int per_group = group * column_tiles, number = tile / per_group, rest = tile % per_group;
    const int left = row_tiles - number * group, tall = left < group ? left : group;
    return {number * group + rest % tall, rest / tall};
  }
  // The first row that tile `row` reads. The last tile begins so early that all of its rows exist:
  // reading rows that do not takes TMA longer. It writes only those of its own.
  __device__ int64_t first_row(int row) const {
    const int64_t first = int64_t{row} * height, latest = rows - tile_rows;
    return first < latest ? first : latest;
  }
};
template <typename End>
TileGrid grid_of(const End& end, int64_t rows, int64_t k, int split_k, int columns,
                 int height = kTileRows) {
  return {.rows = rows,
          .row_tiles = ceil_div(rows, height),
          .column_tiles = ceil_div(end.padded * End::kMatrices, columns),
          .tile_rows = static_cast<int>(std::min<int64_t>(rows, height)),
          .slices = ceil_div(k / split_k, kSlice),
          .split_k = split_k,
          .height = height};
}

// The blocks that work on a grid, kPair of them (1, or 2: a cluster) on row tiles below each other
// of the same columns: each fetches a part of the weights and both get it, so that half as many are
// read from the L2 cache. Under the power limit of a long prompt that is time.
template <int kPair>
struct TileTeam {
  int rank, number, count;  // this block's place in its pair, its pair's, and how many pairs

  __device__ static TileTeam of_block() {
    const int block = static_cast<int>(blockIdx.x), blocks = static_cast<int>(gridDim.x);
    return {kPair > 1 ? static_cast<int>(cluster_rank()) : 0, block / kPair, blocks / kPair};
  }
  // A pair's part of the grid: tiles of kPair row tiles.
  __device__ __host__ static TileGrid together(TileGrid grid) {
    grid.row_tiles = (grid.row_tiles + kPair - 1) / kPair;
    grid.group /= kPair;
    return grid;
  }
  // This block's tile: a row tile past the last is read as the last, and nothing of it is written.
  __device__ TileGrid::Place place(const TileGrid& of_pairs, int tile) const {
    const TileGrid::Place there = of_pairs.slot(tile);
    return {there.row * kPair + rank, there.column};
  }

  // One thread for a stage of weights: this block's part of `columns` rows of them.
  template <int kMatrices>
  __device__ void load_weights(uint32_t to, const CUtensorMap& w, int slice, int first_row,
                               int columns, int run, uint32_t barrier) const {
    if constexpr (kPair == 1)
      cuda::load_weights<kMatrices>(to, w, slice, first_row, run, barrier);
    else
      load_weights_to_both<kMatrices>(to + rank * (columns / 2) * 128, w, slice,
                                      first_row + rank * (columns / 2), run, barrier);
  }
  // One lane of a warp that has read the stage of this barrier: its own block may fill it again,
  // and the other one.
  __device__ void release(uint32_t empty) const {
    barrier_arrive(empty);
    if constexpr (kPair == 2) barrier_arrive_in_cluster(address_in(1 - rank, empty));
  }
  // By all threads: after the barriers are ready, and at the end, when nobody needs the other's
  // memory any more.
  __device__ static void meet() {
    if constexpr (kPair == 2) {
      __syncwarp();
      cluster_arrive();
      cluster_wait();
    }
  }
  static int blocks(const TileGrid& grid, int multiprocessors) {
    return std::min(together(grid).tiles(), multiprocessors / kPair) * kPair;
  }
};

inline int64_t inner_size(const MatmulParams& p) {
  return p.w.k;
}
inline int64_t inner_size(const GatedMatmulParams& p) {
  return p.gate_up.k;
}
inline int split_k_of(const MatmulParams& p) {
  return p.split_k;
}
inline int split_k_of(const GatedMatmulParams&) {
  return 1;
}

}  // namespace invar::cuda
