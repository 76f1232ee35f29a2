// Products of many rows (order `hopper`): each of two warpgroups owns a whole tile of 128 x 128, so
// that one writes its results while the other multiplies.
#include <algorithm>

#include "kernels/cuda/ping_pong.cuh"
#include "kernels/cuda/product_schedules.h"

namespace invar::cuda {

namespace {

using namespace ping_pong;

constexpr int kStages = 7, kBytes = kStages * (kStageBytes + 16);

template <int kPair, typename End>
__global__ __launch_bounds__(kThreads,
                             1) void ping_pong_kernel(const __grid_constant__ CUtensorMap x,
                                                      const __grid_constant__ CUtensorMap w,
                                                      const TileGrid grid, const End end) {
  extern __shared__ __align__(1024) unsigned char shared[];
  const uint32_t base = shared_address(shared);
  const int tid = threadIdx.x, warpgroup = tid / 128;
  using Team = TileTeam<kPair>;
  const Team team = Team::of_block();
  const TileGrid of_pairs = Team::together(grid);
  const int tiles = of_pairs.tiles();
  Ring ring{base + kStages * kStageBytes, base + kStages * (kStageBytes + 8), kStages};
  set_up(ring, x, w, 4 * kPair);
  Team::meet();
  let_next_kernel_start();

  if (warpgroup == 0) {
    fewer_registers<kFetchRegisters>();
    if (tid == 0) {
      wait_for_kernels_before();
      for (int tile = team.number; tile < tiles; tile += team.count) {
        const auto [row, column] = team.place(of_pairs, tile);
        const int first_row = static_cast<int>(grid.first_row(row));
        for (int slice = 0; slice < grid.slices; ++slice, ring.next()) {
          const uint32_t to = base + ring.stage * kStageBytes, full = ring.full_now();
          barrier_wait(ring.empty_now(), ring.parity ^ 1);
          barrier_expect(full, (grid.tile_rows + kColumns) * 128);
          load_box(to, x, slice * kSlice, first_row, 0, full);
          team.template load_weights<End::kMatrices>(to + kWeightsAt, w, slice, column * kColumns,
                                                     kColumns, 0, full);
        }
      }
    }
  } else {
    more_registers<kRegisters>();
    const int lane = tid % 32, warp = tid % 128 / 32;
    multiply(team, ring, base, warpgroup - 1, tiles, grid.slices,
             [&](int tile, auto& upper, auto& lower) {
               const auto [row, column] = team.place(of_pairs, tile);
               const int64_t own = int64_t{row} * kTileRows,
                             t = grid.first_row(row) + warp * 16 + lane / 4;
               const int first = column * (kColumns / End::kMatrices) + lane % 4 * 2;
               end.template tile<kColumns>(upper, t, first, own, grid.rows);
               end.template tile<kColumns>(lower, t + 64, first, own, grid.rows);
             });
  }
  Team::meet();
}

template <int kPair, typename Params>
void launch_ping_pong(const Params& p, const Execution& on) {
  const auto end = end_of(p);
  using End = decltype(end_of(p));
  const TileGrid grid = grid_of(end, p.rows, inner_size(p), 1, kColumns);
  const ProductMaps maps = maps_of(p, grid.tile_rows, kColumns / kPair);
  const LaunchShape shape = {.blocks = TileTeam<kPair>::blocks(grid, gpu_of(on).multiprocessors()),
                             .threads = kThreads,
                             .shared_bytes = kBytes,
                             .cluster = kPair,
                             .early = true};
  launch("multiplying matrices", ping_pong_kernel<kPair, End>, shape, on, maps.x, maps.w, grid,
         end);
}

}  // namespace

template <int kPair>
void ping_pong_matmul(const MatmulParams& p, const Execution& on) {
  launch_ping_pong<kPair>(p, on);
}
template <int kPair>
void ping_pong_gated(const GatedMatmulParams& p, const Execution& on) {
  launch_ping_pong<kPair>(p, on);
}
template void ping_pong_matmul<1>(const MatmulParams&, const Execution&);
template void ping_pong_matmul<2>(const MatmulParams&, const Execution&);
template void ping_pong_gated<1>(const GatedMatmulParams&, const Execution&);
template void ping_pong_gated<2>(const GatedMatmulParams&, const Execution&);

}  // namespace invar::cuda
