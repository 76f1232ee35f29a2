// Products of many rows in several split-K parts (order `hopper`): a block multiplies all parts of
// a tile of 128 rows, or each block of a pair half of them, and adds them up as a binary tree
// (numerics 2).
#include <algorithm>

#include "kernels/cuda/boxed_end.cuh"
#include "kernels/cuda/product_schedules.h"
#include "kernels/cuda/wgmma_steps.cuh"

namespace invar::cuda {

namespace {

constexpr int kThreads = 384;

// Registers of a thread that fetches and of one that multiplies. Clusters need more to fetch.
template <bool kIsCluster>
constexpr int kFetchRegisters = kIsCluster ? 40 : 24;
template <bool kIsCluster>
constexpr int kRegisters = kIsCluster ? 232 : 240;

template <int kColumns, int kBlocks>
struct Shape {
  static constexpr int kWeightsAt = kTileRows * 128, kStageBytes = kWeightsAt + kColumns * 128;
  // Room for the sum of a tile's first four parts, or for the other block's half of a tile.
  static constexpr int kParkBytes = (kBlocks == 1 ? kTileRows : kTileRows / 2) * kColumns * 4;
  static constexpr int kStages = (kMaxSharedBytes - 1024 - kParkBytes) / (kStageBytes + 16);
  static constexpr int kBytes = kStages * (kStageBytes + 16) + kParkBytes;
};

// One chain per run. The loop has no branch but for releasing the stage before: with more the
// compiler would wait for every step.
template <int kColumns, int kPair>
__device__ __forceinline__ void chain(float (&d)[kColumns / 2], Ring& ring, uint32_t base,
                                      int stage_bytes, int half, int slices, int lane,
                                      const TileTeam<kPair>& team) {
  int previous = -1;
#pragma unroll 1
  for (int slice = 0; slice < slices; ++slice, ring.next()) {
    barrier_wait(ring.full_now(), ring.parity);
    const uint32_t stage = base + ring.stage * stage_bytes;
    const uint64_t a = describe_rows(stage + half * 64 * 128),
                   b = describe_rows(stage + kTileRows * 128);
    steps_begin();
#pragma unroll
    for (int i = 0; i < kSlice / 16; ++i)
      product_step<kColumns>(d, a + 2 * i, b + 2 * i, (slice | i) != 0);
    steps_commit();
    if (previous >= 0) {
      steps_wait<1>();
      if (lane == 0) team.release(ring.empty + 8 * previous);
    }
    previous = ring.stage;
  }
  steps_wait<0>();
  if (lane == 0) team.release(ring.empty + 8 * previous);
}

// kBlocks is 1, or 2: block r of a cluster does parts r * split_k / 2 and following, and ends with
// half of the rows. Then there is one tile to a cluster. kPair: as TileTeam, and 1 where kBlocks
// is 2.
template <int kColumns, int kBlocks, int kPair>
__global__ __launch_bounds__(kThreads, 1) void tree_kernel(const __grid_constant__ CUtensorMap x,
                                                           const __grid_constant__ CUtensorMap w,
                                                           const __grid_constant__ CUtensorMap y,
                                                           const TileGrid grid,
                                                           const PlainEnd end) {
  using S = Shape<kColumns, kBlocks>;
  constexpr int kValues = kColumns / 2;
  extern __shared__ __align__(1024) unsigned char shared[];
  const uint32_t base = shared_address(shared), park = base + S::kStages * S::kStageBytes;
  const int tid = threadIdx.x, warpgroup = tid / 128;
  const int rank = kBlocks > 1 ? static_cast<int>(cluster_rank()) : 0;
  const int split_k = grid.split_k / kBlocks;
  using Team = TileTeam<kPair>;
  const Team team = Team::of_block();
  const TileGrid of_pairs = Team::together(grid);
  const int tiles = of_pairs.tiles(), first_tile = team.number / kBlocks,
            step = team.count / kBlocks;
  Ring ring{park + S::kParkBytes, park + S::kParkBytes + S::kStages * 8, S::kStages};
  set_up(ring, x, w, 8 * kPair);
  Team::meet();
  if constexpr (kBlocks > 1) {  // both blocks run before one writes into the other's memory
    cluster_arrive();
    cluster_wait();
  }
  let_next_kernel_start();

  if (warpgroup == 0) {
    fewer_registers<kFetchRegisters<(kBlocks * kPair > 1)>>();
    if (tid == 0) {
      wait_for_kernels_before();
      for (int tile = first_tile; tile < tiles; tile += step) {
        const auto [row, column] = team.place(of_pairs, tile);
        const int first_row = static_cast<int>(grid.first_row(row));
        for (int run = rank * split_k; run < (rank + 1) * split_k; ++run)
          for (int slice = 0; slice < grid.slices; ++slice, ring.next()) {
            const uint32_t to = base + ring.stage * S::kStageBytes, full = ring.full_now();
            barrier_wait(ring.empty_now(), ring.parity ^ 1);
            barrier_expect(full, (grid.tile_rows + kColumns) * 128);
            load_box(to, x, slice * kSlice, first_row, run, full);
            team.template load_weights<1>(to + S::kWeightsAt, w, slice, column * kColumns, kColumns,
                                          run, full);
          }
      }
    }
    if constexpr (kBlocks > 1) {  // the consumers' exchange below counts every thread
      __syncwarp();
      cluster_arrive();
      cluster_wait();
    }
  } else {
    more_registers<kRegisters<(kBlocks * kPair > 1)>>();
    const int half = warpgroup - 1, lane = tid % 32, warp = tid % 128 / 32;
    const BoxedEnd<kColumns> boxed(y, park + half * BoxedEnd<kColumns>::kBytes, half, end);
    auto* parked = reinterpret_cast<float4*>(shared + S::kStages * S::kStageBytes) + tid % 128;
    for (int tile = first_tile; tile < tiles; tile += step) {
      {  // what this block's rows are added to comes near meanwhile, half a row by a thread
        const auto [row, column] = team.place(of_pairs, tile);
        const int worker = tid - 128, own = worker / 2;
        if (own < grid.tile_rows && (kBlocks == 1 || own / 64 == rank))
          end.fetch(grid.first_row(row) + own, column * kColumns + worker % 2 * (kColumns / 2),
                    kColumns / 2);
      }
      float d[kValues], other[kValues], sum[kValues];
      const auto multiply = [&](float(&to)[kValues]) {
        chain<kColumns>(to, ring, base, S::kStageBytes, half, grid.slices, lane, team);
      };
      const int fours = split_k == 8 ? 2 : 1, pairs = split_k >= 4 ? 2 : 1;
#pragma unroll 1
      for (int four = 0; four < fours; ++four) {
#pragma unroll 1
        for (int pair = 0; pair < pairs; ++pair) {
          multiply(d);
          multiply(other);
          if (pair == 0) {
#pragma unroll
            for (int i = 0; i < kValues; ++i) sum[i] = d[i] = d[i] + other[i];
          } else {
#pragma unroll
            for (int i = 0; i < kValues; ++i) d[i] = sum[i] + (d[i] + other[i]);
          }
        }
        if constexpr (kBlocks == 1) {
          float4* mine = parked + half * 128 * (kValues / 4);
          if (four + 1 < fours) {
            boxed.wait_for_room();
#pragma unroll
            for (int i = 0; i < kValues / 4; ++i)
              mine[i * 128] = {d[4 * i], d[4 * i + 1], d[4 * i + 2], d[4 * i + 3]};
          } else if (fours == 2) {
#pragma unroll
            for (int i = 0; i < kValues / 4; ++i) {
              const float4 first = mine[i * 128];
              d[4 * i] = first.x + d[4 * i];
              d[4 * i + 1] = first.y + d[4 * i + 1];
              d[4 * i + 2] = first.z + d[4 * i + 2];
              d[4 * i + 3] = first.w + d[4 * i + 3];
            }
          }
        }
      }
      if constexpr (kBlocks == 2) {  // block r keeps warpgroup r's rows
        const uint32_t there = address_in(1 - rank, park + tid % 128 * 16);
        if (half != rank) {
#pragma unroll
          for (int i = 0; i < kValues / 4; ++i)
            store_in_cluster(there + i * 128 * 16,
                             {d[4 * i], d[4 * i + 1], d[4 * i + 2], d[4 * i + 3]});
        }
        cluster_arrive();
        cluster_wait();
        if (half != rank) break;
#pragma unroll
        for (int i = 0; i < kValues / 4; ++i) {
          const float4 peer = parked[i * 128];
          d[4 * i] = peer.x + d[4 * i];
          d[4 * i + 1] = peer.y + d[4 * i + 1];
          d[4 * i + 2] = peer.z + d[4 * i + 2];
          d[4 * i + 3] = peer.w + d[4 * i + 3];
        }
      }
      wait_for_kernels_before();
      const auto [row, column] = team.place(of_pairs, tile);
      const int64_t first = int64_t{row} * kTileRows;
      if constexpr (kBlocks == 1) {
        if (boxed.can(first, grid.rows)) {
          boxed.write(d, static_cast<int>(first) + half * 64, column * kColumns);
          continue;
        }
      }
      end.tile<kColumns>(d, grid.first_row(row) + half * 64 + warp * 16 + lane / 4,
                         column * kColumns + lane % 4 * 2, first, grid.rows);
    }
    if constexpr (kBlocks == 1) boxed.end();
  }
  Team::meet();
}

}  // namespace

template <int kColumns, int kBlocks, int kPair>
void tree_matmul(const MatmulParams& p, const Execution& on) {
  using S = Shape<kColumns, kBlocks>;
  const PlainEnd end = end_of(p);
  const TileGrid grid = grid_of(end, p.rows, p.w.k, p.split_k, kColumns);
  const ProductMaps maps = maps_of(p, grid.tile_rows, kColumns / kPair);
  const LaunchShape shape = {
      .blocks = kBlocks == 1 ? TileTeam<kPair>::blocks(grid, gpu_of(on).multiprocessors())
                             : 2 * grid.tiles(),
      .threads = kThreads,
      .shared_bytes = S::kBytes,
      .cluster = kBlocks * kPair,
      .early = true};
  launch("multiplying matrices", tree_kernel<kColumns, kBlocks, kPair>, shape, on, maps.x, maps.w,
         boxes_of(end, p.rows), grid, end);
}
template void tree_matmul<128, 1, 1>(const MatmulParams&, const Execution&);
template void tree_matmul<128, 1, 2>(const MatmulParams&, const Execution&);
template void tree_matmul<128, 2, 1>(const MatmulParams&, const Execution&);
template void tree_matmul<96, 1, 1>(const MatmulParams&, const Execution&);
template void tree_matmul<64, 1, 1>(const MatmulParams&, const Execution&);
template void tree_matmul<64, 2, 1>(const MatmulParams&, const Execution&);

}  // namespace invar::cuda
