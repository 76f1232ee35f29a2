// Tiles of experts' rows, whose numbers only the device knows (numerics 7): rows begin[e] ..
// begin[e + 1] are those of expert e.
#pragma once

#include "kernels/cuda/elementwise.cuh"

namespace invar::cuda {

// Of experts that have many rows each.
void hopper_gated_experts_of_many_rows(const ExpertGatedMatmulParams& p, const Execution& on);

struct ExpertTile {
  int expert, begin, end;  // rows
};

// Tiles of up to tile_rows rows of one expert each, on a line of all; in shared memory.
struct ExpertTiles {
  int experts, tile_rows;
  int32_t* begin;  // [experts + 1]
  int32_t* first;  // [experts + 1]: the first tile of each expert, and how many there are

  // Both lists, by all threads of a block. What other kernels wrote is read past the first cache,
  // which may hold what was there before.
  __device__ void lay_out(const int32_t* begins) const {
    for (int i = static_cast<int>(threadIdx.x); i <= experts; i += static_cast<int>(blockDim.x))
      begin[i] = __ldcg(begins + i);
    __syncthreads();
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

  __device__ int count() const { return first[experts]; }

  __device__ ExpertTile tile(int number) const {
    int low = 0, high = experts;  // first[low] <= number < first[high]
    while (high - low > 1) {
      const int middle = (low + high) / 2;
      (first[middle] <= number ? low : high) = middle;
    }
    const int row = begin[low] + (number - first[low]) * tile_rows, last = begin[low + 1];
    return {low, row, row + tile_rows < last ? row + tile_rows : last};
  }
};

}  // namespace invar::cuda
