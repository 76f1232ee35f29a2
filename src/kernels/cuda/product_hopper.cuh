// What the matrix products of order `hopper` share: their operands for TMA, tiles, and what becomes
// of a dot. Weights lie in rows (WeightLayout::rows).
#pragma once

#include <algorithm>

#include "kernels/cuda/cuda_kernels.h"
#include "kernels/cuda/elementwise.cuh"
#include "kernels/cuda/tma.cuh"

namespace invar::cuda {

constexpr int kTileRows = 128;
constexpr int kBlockOutputs = 8;  // of a block of accumulators, and of gate and up in turn

constexpr int ceil_div(int64_t a, int64_t b) {
  return static_cast<int>((a + b - 1) / b);
}

// y[t][n] from the finished dots.
struct PlainEnd {
  static constexpr int kMatrices = 1;
  const float* bias;
  bool accumulate;
  float* y;
  int64_t stride;
  int n, padded;            // padded: so many outputs are to be computed
  bool in_pairs, in_fours;  // rows of y are whole pairs of 8 bytes, whole 16 bytes

  __device__ void one(int64_t t, int output, float dot) const {
    if (output >= n) return;
    float value = dot + 0.0f;
    if (bias) value = value + bias[output];
    float* out = y + t * stride + output;
    *out = accumulate ? *out + value : value;
  }

  // Four outputs of a row in two steps: what they are added to, and then the result.
  __device__ float4 before(int64_t t, int output) const {
    float4 old = {0, 0, 0, 0};
    if (!accumulate) return old;
    const float* from = y + t * stride + output;
    if (in_fours && output + 3 < n) return *reinterpret_cast<const float4*>(from);
    if (output < n) old.x = from[0];
    if (output + 1 < n) old.y = from[1];
    if (output + 2 < n) old.z = from[2];
    if (output + 3 < n) old.w = from[3];
    return old;
  }
  __device__ float finished(int output, float dot, float old) const {
    float value = dot + 0.0f;
    if (bias && output < n) value = value + bias[output];
    return accumulate ? old + value : value;
  }
  __device__ void four(int64_t t, int output, float4 dot, float4 old) const {
    const float4 value = {finished(output, dot.x, old.x), finished(output + 1, dot.y, old.y),
                          finished(output + 2, dot.z, old.z), finished(output + 3, dot.w, old.w)};
    float* to = y + t * stride + output;
    if (in_fours && output + 3 < n) {
      *reinterpret_cast<float4*>(to) = value;
      return;
    }
    if (output < n) to[0] = value.x;
    if (output + 1 < n) to[1] = value.y;
    if (output + 2 < n) to[2] = value.z;
    if (output + 3 < n) to[3] = value.w;
  }

  // Brings what outputs of a row are added to near, when it is to be added and is all there.
  __device__ void fetch(int64_t t, int output, int outputs) const {
    if (!accumulate || !in_fours || output + outputs > n) return;
    prefetch_bytes(y + t * stride + output, outputs * 4);
  }

  // The dots of rows t and t + 8 that one lane of a tile holds (wgmma_steps.cuh), the first of them
  // of output `column`; rows from `begin` to `end` are written. Conditions stand outside of the
  // loops: the tensor cores wait for this code.
  template <int kColumns>
  __device__ __forceinline__ void tile(float (&d)[kColumns / 2], int64_t t, int column,
                                       int64_t begin, int64_t end) const {
    constexpr int kPairs = kColumns / 8;
    constexpr int kAtOnce = kPairs % 16 == 0 ? 16 : kPairs % 8 == 0 ? 8 : 6;  // reads of y
    static_assert(kPairs % kAtOnce == 0);
    const bool is_whole = in_pairs && (column | 7) + kColumns - 8 < n;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int64_t row = t + 8 * half;
      if (row < begin || row >= end) continue;
      if (!is_whole) {
#pragma unroll
        for (int j = 0; j < 2 * kPairs; ++j)
          one(row, column + j / 2 * 8 + j % 2, d[j / 2 * 4 + half * 2 + j % 2]);
        continue;
      }
      float2* out = reinterpret_cast<float2*>(y + row * stride + column);
#pragma unroll
      for (int j = 0; j < 2 * kPairs; ++j) {
        float& value = d[j / 2 * 4 + half * 2 + j % 2];
        value = value + 0.0f;
      }
      if (bias) {
#pragma unroll
        for (int j = 0; j < 2 * kPairs; ++j) {
          float& value = d[j / 2 * 4 + half * 2 + j % 2];
          value = value + __ldg(bias + column + j / 2 * 8 + j % 2);
        }
      }
      if (accumulate) {
#pragma unroll
        for (int first = 0; first < kPairs; first += kAtOnce) {
          float2 old[kAtOnce];
#pragma unroll
          for (int j = 0; j < kAtOnce; ++j) old[j] = out[(first + j) * 4];
#pragma unroll
          for (int j = 0; j < kAtOnce; ++j) {
            const int at = (first + j) * 4 + half * 2;
            d[at] = old[j].x + d[at];
            d[at + 1] = old[j].y + d[at + 1];
          }
        }
      }
#pragma unroll
      for (int j = 0; j < kPairs; ++j) out[j * 4] = {d[j * 4 + half * 2], d[j * 4 + half * 2 + 1]};
    }
  }
};

// The gated activation of a pair of dots: blocks of 8 outputs of gate and of up take turns.
struct GatedEnd {
  static constexpr int kMatrices = 2;
  const float* gate_bias;
  const float* up_bias;
  bf16_t* out;
  int64_t stride;
  int n, padded;  // outputs from n on are zeros

  __device__ __forceinline__ bf16_t value(int output, float gate, float up) const {
    if (output >= n) return 0;
    gate = gate + 0.0f;
    up = up + 0.0f;
    if (gate_bias) gate = gate + __ldg(gate_bias + output);
    if (up_bias) up = up + __ldg(up_bias + output);
    return f32_to_bf16(silu_times(gate, up));
  }
  __device__ void one(int64_t t, int output, float gate, float up) const {
    if (output < padded) out[t * stride + output] = value(output, gate, up);
  }

  // As PlainEnd::tile, of kColumns / 2 outputs. `column` counts outputs and is even.
  template <int kColumns>
  __device__ __forceinline__ void tile(const float (&d)[kColumns / 2], int64_t t, int column,
                                       int64_t begin, int64_t end) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int64_t row = t + 8 * half;
      if (row < begin || row >= end) continue;
      bf16_t* to = out + row * stride + column;
#pragma unroll
      for (int j = 0; j < kColumns / 16; ++j) {
        const int output = column + j * 8;
        if (output >= padded) continue;
        const float *gate = d + j * 8 + half * 2, *up = gate + 4;
        const uint32_t pair = value(output, gate[0], up[0]) |
                              static_cast<uint32_t>(value(output + 1, gate[1], up[1])) << 16;
        *reinterpret_cast<uint32_t*>(to + j * 8) = pair;
      }
    }
  }
};

PlainEnd end_of(const MatmulParams& p);
GatedEnd end_of(const GatedMatmulParams& p);

// The operands of a product for TMA. Rows of a run are {inner, row, run}; a gated pair's weights
// are {inner, 8 outputs, gate or up, block of 8 outputs}, so that a box holds blocks of gate and up
// in turn. The inner elements that a run lacks for whole slices are read as zeros, of x and of w:
// such steps change no chain.
struct ProductMaps {
  CUtensorMap x, w;
};
// Boxes of so many rows of x, and of so many rows of w (gate and up together) in so many runs.
ProductMaps maps_of(const MatmulParams& p, int x_rows, int w_rows, int runs = 1);
ProductMaps maps_of(const GatedMatmulParams& p, int x_rows, int w_rows);

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
                                                  int first_row, int run, uint32_t barrier) {
  if constexpr (kMatrices == 1)
    load_box_once(to, w, slice * kSlice, first_row, run, barrier);
  else
    load_box_once(to, w, slice * kSlice, 0, 0, first_row / (2 * kBlockOutputs), barrier);
}

// A product in tiles of 128 rows, or of `height`. Blocks that work at the same time take `group`
// tiles below each other before they go to the right, so that they share what they read.
struct TileGrid {
  int64_t rows;
  int row_tiles, column_tiles;
  int tile_rows;  // that exist: fewer than a tile has when there are fewer in all
  int slices;     // of a run
  int runs;
  int height = kTileRows;
  int group = 8;

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
TileGrid grid_of(const End& end, int64_t rows, int64_t k, int runs, int columns,
                 int height = kTileRows) {
  return {.rows = rows,
          .row_tiles = ceil_div(rows, height),
          .column_tiles = ceil_div(end.padded * End::kMatrices, columns),
          .tile_rows = static_cast<int>(std::min<int64_t>(rows, height)),
          .slices = ceil_div(k / runs, kSlice),
          .runs = runs,
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
  static int blocks(const TileGrid& grid) {
    return std::min(together(grid).tiles(), multiprocessors() / kPair) * kPair;
  }
};

inline int64_t inner_size(const MatmulParams& p) {
  return p.w.k;
}
inline int64_t inner_size(const GatedMatmulParams& p) {
  return p.gate_up.k;
}
inline int runs_of(const MatmulParams& p) {
  return p.runs;
}
inline int runs_of(const GatedMatmulParams&) {
  return 1;
}

}  // namespace invar::cuda
