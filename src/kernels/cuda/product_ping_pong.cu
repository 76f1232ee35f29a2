// Products of many rows (order `hopper`): each of two warpgroups owns a whole tile of 128 x 128, so
// that one writes its results while the other multiplies.
#include <algorithm>

#include "kernels/cuda/product_hopper.cuh"
#include "kernels/cuda/product_schedules.h"
#include "kernels/cuda/wgmma_steps.cuh"

namespace invar::cuda {

namespace {

constexpr int kThreads = 384, kColumns = 128, kStages = 7;
constexpr int kWeightsAt = kTileRows * 128, kStageBytes = kWeightsAt + kColumns * 128;
constexpr int kBytes = kStages * (kStageBytes + 16);

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
    fewer_registers<40>();
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
    more_registers<232>();
    const int mine = warpgroup - 1, lane = tid % 32, warp = tid % 128 / 32;
    constexpr int kTurn = 1;  // named barriers kTurn and kTurn + 1: a warpgroup's turn to multiply
    int count = 0;
    for (int tile = team.number; tile < tiles; tile += team.count, ++count) {
      if (count % 2 != mine) {
        ring.skip(grid.slices);
        continue;
      }
      float upper[kColumns / 2], lower[kColumns / 2];
      if (count > 0) named_sync(kTurn + mine, 256);
      int previous = -1;
      for (int slice = 0; slice < grid.slices; ++slice, ring.next()) {
        barrier_wait(ring.full_now(), ring.parity);
        const uint64_t a = describe_rows(base + ring.stage * kStageBytes),
                       b = describe_rows(base + ring.stage * kStageBytes + kWeightsAt);
        steps_begin();
#pragma unroll
        for (int i = 0; i < kSlice / 16; ++i) {
          product_step<kColumns>(upper, a + 2 * i, b + 2 * i, (slice | i) != 0);
          product_step<kColumns>(lower, a + 64 * 8 + 2 * i, b + 2 * i, (slice | i) != 0);
        }
        steps_commit();
        if (previous >= 0) {
          steps_wait<1>();
          if (lane == 0) team.release(ring.empty + 8 * previous);
        }
        previous = ring.stage;
      }
      if (tile + team.count < tiles) named_arrive(kTurn + 1 - mine, 256);
      steps_wait<0>();
      if (lane == 0) team.release(ring.empty + 8 * previous);
      wait_for_kernels_before();
      const auto [row, column] = team.place(of_pairs, tile);
      const int64_t own = int64_t{row} * kTileRows, t = grid.first_row(row) + warp * 16 + lane / 4;
      const int first = column * (kColumns / End::kMatrices) + lane % 4 * 2;
      end.template tile<kColumns>(upper, t, first, own, grid.rows);
      end.template tile<kColumns>(lower, t + 64, first, own, grid.rows);
    }
  }
  Team::meet();
}

template <int kPair, typename Params>
void ping_pong(const Params& p, const Execution& on) {
  auto end = end_of(p);
  using End = decltype(end_of(p));
  const TileGrid grid = grid_of(end, p.rows, inner_size(p), 1, kColumns);
  // In long products, which are bound by power, activations one by one beside the other warpgroup's
  // tile take less than several at once.
  constexpr int kManyTurns = 12;
  if constexpr (End::kMatrices == 2)
    end.in_groups = grid.tiles() <= kManyTurns * gpu_of(on).multiprocessors();
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
  ping_pong<kPair>(p, on);
}
template <int kPair>
void ping_pong_gated(const GatedMatmulParams& p, const Execution& on) {
  ping_pong<kPair>(p, on);
}
template void ping_pong_matmul<1>(const MatmulParams&, const Execution&);
template void ping_pong_matmul<2>(const MatmulParams&, const Execution&);
template void ping_pong_gated<1>(const GatedMatmulParams&, const Execution&);
template void ping_pong_gated<2>(const GatedMatmulParams&, const Execution&);

}  // namespace invar::cuda
