// Products of some hundred rows (order `hopper`): two warpgroups share a tile of 128 rows, or three
// one of 192, and as many columns as give every multiprocessor one. With 256 columns also products
// of thousands of rows: a tile reads three quarters of what two of 128 x 128 do for each operation.
#include <algorithm>

#include "kernels/cuda/product_hopper.cuh"
#include "kernels/cuda/product_schedules.h"
#include "kernels/cuda/wgmma_steps.cuh"

namespace invar::cuda {

namespace {

// kGroups warpgroups multiply, of 64 rows each.
template <int kColumns, int kGroups>
struct Stage {
  static constexpr int kRows = 64 * kGroups, kThreads = 128 * (1 + kGroups);
  static constexpr int kRegisters = kGroups == 2 ? 240 : 160;  // of a thread that multiplies
  static constexpr int kWeightsAt = kRows * 128, kBytes = kWeightsAt + kColumns * 128;
  static constexpr int kCount = (kMaxSharedBytes - 1024) / (kBytes + 16);
};

template <int kColumns, int kGroups, typename End>
__global__ __launch_bounds__(128 * (1 + kGroups),
                             1) void shared_tile_kernel(const __grid_constant__ CUtensorMap x,
                                                        const __grid_constant__ CUtensorMap w,
                                                        const TileGrid grid, const End end) {
  using S = Stage<kColumns, kGroups>;
  extern __shared__ __align__(1024) unsigned char shared[];
  const uint32_t base = shared_address(shared);
  const int tid = threadIdx.x, warpgroup = tid / 128, tiles = grid.tiles();
  Ring ring{base + S::kCount * S::kBytes, base + S::kCount * (S::kBytes + 8), S::kCount};
  set_up(ring, x, w, 4 * kGroups);
  let_next_kernel_start();

  if (warpgroup == 0) {
    fewer_registers<24>();
    if (tid == 0) {
      int ahead = grid.ahead;
      for (int slice = 0; slice < ahead; ++slice) {
        const uint32_t full = ring.full + 8 * slice;
        barrier_expect(full, (grid.tile_rows + kColumns) * 128);
        load_weights<End::kMatrices>(base + slice * S::kBytes + S::kWeightsAt, w, slice,
                                     grid.slot(blockIdx.x).column * kColumns, 0, full);
      }
      wait_for_kernels_before();
      for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
        const auto [row, column] = grid.slot(tile);
        const int first_row = static_cast<int>(grid.first_row(row));
        for (int slice = 0; slice < grid.slices; ++slice, ring.next()) {
          const uint32_t to = base + ring.stage * S::kBytes, full = ring.full_now();
          barrier_wait(ring.empty_now(), ring.parity ^ 1);
          if (ahead > 0) {
            --ahead;
          } else {
            barrier_expect(full, (grid.tile_rows + kColumns) * 128);
            load_weights<End::kMatrices>(to + S::kWeightsAt, w, slice, column * kColumns, 0, full);
          }
          load_box(to, x, slice * kSlice, first_row, 0, full);
        }
      }
    }
  } else {
    more_registers<S::kRegisters>();
    const int half = warpgroup - 1, lane = tid % 32, warp = tid % 128 / 32;
    for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
      float d[kColumns / 2];
      int previous = -1;
      for (int slice = 0; slice < grid.slices; ++slice, ring.next()) {
        barrier_wait(ring.full_now(), ring.parity);
        const uint32_t stage = base + ring.stage * S::kBytes;
        const uint64_t a = describe_rows(stage + half * 64 * 128),
                       b = describe_rows(stage + S::kWeightsAt);
        steps_begin();
#pragma unroll
        for (int i = 0; i < kSlice / 16; ++i)
          product_step<kColumns>(d, a + 2 * i, b + 2 * i, (slice | i) != 0);
        steps_commit();
        if (previous >= 0) {
          steps_wait<1>();
          if (lane == 0) barrier_arrive(ring.empty + 8 * previous);
        }
        previous = ring.stage;
      }
      steps_wait<0>();
      if (lane == 0) barrier_arrive(ring.empty + 8 * previous);
      wait_for_kernels_before();
      const auto [row, column] = grid.slot(tile);
      end.template tile<kColumns>(d, grid.first_row(row) + half * 64 + warp * 16 + lane / 4,
                                  column * (kColumns / End::kMatrices) + lane % 4 * 2,
                                  int64_t{row} * S::kRows, grid.rows);
    }
  }
}

template <int kColumns, int kGroups, typename Params>
void shared_tile(const Params& p, const Execution& on) {
  using S = Stage<kColumns, kGroups>;
  const auto end = end_of(p);
  using End = decltype(end_of(p));
  TileGrid grid = grid_of(end, p.rows, inner_size(p), 1, kColumns, S::kRows);
  // Each block's own weights begin to come before the kernels before it are done. Where blocks
  // share them this is slower.
  const bool early = grid.row_tiles == 1;
  if (early) grid.ahead = std::min(grid.slices, S::kCount);
  const ProductMaps maps = maps_of(p, grid.tile_rows, kColumns);
  const LaunchShape shape = {.blocks = std::min(grid.tiles(), gpu_of(on).multiprocessors()),
                             .threads = S::kThreads,
                             .shared_bytes = S::kCount * (S::kBytes + 16),
                             .early = early};
  launch("multiplying matrices", shared_tile_kernel<kColumns, kGroups, End>, shape, on, maps.x,
         maps.w, grid, end);
}

}  // namespace

template <int kColumns, int kGroups>
void shared_tile_matmul(const MatmulParams& p, const Execution& on) {
  shared_tile<kColumns, kGroups>(p, on);
}
template <int kColumns, int kGroups>
void shared_tile_gated(const GatedMatmulParams& p, const Execution& on) {
  shared_tile<kColumns, kGroups>(p, on);
}
template void shared_tile_matmul<48, 2>(const MatmulParams&, const Execution&);
template void shared_tile_matmul<96, 2>(const MatmulParams&, const Execution&);
template void shared_tile_matmul<96, 3>(const MatmulParams&, const Execution&);
template void shared_tile_matmul<192, 2>(const MatmulParams&, const Execution&);
template void shared_tile_matmul<192, 3>(const MatmulParams&, const Execution&);
template void shared_tile_matmul<256, 2>(const MatmulParams&, const Execution&);
template void shared_tile_gated<96, 2>(const GatedMatmulParams&, const Execution&);
template void shared_tile_gated<192, 2>(const GatedMatmulParams&, const Execution&);
template void shared_tile_gated<192, 3>(const GatedMatmulParams&, const Execution&);
template void shared_tile_gated<256, 2>(const GatedMatmulParams&, const Execution&);

}  // namespace invar::cuda
