// Tiles of experts' rows, whose numbers only the device knows (numerics 7): rows begin[e] ..
// begin[e + 1] are those of expert e.
#pragma once

#include "kernels/cuda/elementwise.cuh"

namespace invar::cuda {

// The first tile of each expert, and the end, on a line of all: first[0 .. experts] in shared
// memory. By all threads of a block.
__device__ inline void lay_out_tiles(const int32_t* begin, int experts, int tile_rows,
                                     int32_t* first) {
  if (threadIdx.x < kWarp) {
    const int lane = static_cast<int>(threadIdx.x), per = (experts + kWarp - 1) / kWarp;
    const auto tiles_of = [&](int e) {
      return e < experts ? (begin[e + 1] - begin[e] + tile_rows - 1) / tile_rows : 0;
    };
    int mine = 0;
    for (int e = lane * per; e < (lane + 1) * per; ++e) mine += tiles_of(e);
    int end = mine;
    for (int step = 1; step < kWarp; step *= 2) {
      const int before = __shfl_up_sync(kAllLanes, end, step);
      if (lane >= step) end += before;
    }
    int at = end - mine;
    for (int e = lane * per; e < (lane + 1) * per && e < experts; ++e) {
      first[e] = at;
      at += tiles_of(e);
    }
    if (lane == kWarp - 1) first[experts] = end;
  }
  __syncthreads();
}

struct ExpertTile {
  int expert, begin, end;  // rows
};

// Tile number `tile` of that line, which has so many.
__device__ __forceinline__ ExpertTile expert_tile(const int32_t* begin, int experts, int tile_rows,
                                                  const int32_t* first, int tile) {
  int low = 0, high = experts;  // first[low] <= tile < first[high]
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    (first[middle] <= tile ? low : high) = middle;
  }
  const int row = begin[low] + (tile - first[low]) * tile_rows, last = begin[low + 1];
  return {low, row, row + tile_rows < last ? row + tile_rows : last};
}

}  // namespace invar::cuda
