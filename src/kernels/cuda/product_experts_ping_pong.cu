// Products of experts that have many rows each (order `hopper`), not gated: as product_ping_pong.cu
// each of two warpgroups owns a whole tile of 128 x 128, so that one writes its results while the
// other multiplies, and blocks work in pairs below each other that share weights. Tiles are those
// of all experts, on one line; their number is found on the device.
#include <algorithm>

#include "kernels/cuda/experts.cuh"
#include "kernels/cuda/operations.h"
#include "kernels/cuda/product_hopper.cuh"
#include "kernels/cuda/wgmma_steps.cuh"

namespace invar::cuda {

namespace {

constexpr int kThreads = 384, kColumns = 128, kPair = 2;
constexpr int kWeightsAt = kTileRows * 128, kStageBytes = kWeightsAt + kColumns * 128;
constexpr int kGroup = 8;  // row tiles below each other before it goes to the right

struct ExpertLine {
  const int32_t* begin;
  int experts, columns, slices, stages;
  int lists_at() const { return stages * (kStageBytes + 16); }
};

// An expert's rows, from that of a tile, and which columns.
struct ExpertPlace {
  ExpertTile rows;
  int column;
};

// Tile `number` of the line: expert by expert, within one kGroup row tiles high.
__device__ __forceinline__ ExpertPlace place_of(const ExpertTiles& lists, int columns, int number) {
  int low = 0, high = lists.experts;  // first[low] * columns <= number < first[high] * columns
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    (lists.first[middle] * columns <= number ? low : high) = middle;
  }
  const int rest = number - lists.first[low] * columns, group = rest / (kGroup * columns),
            inside = rest % (kGroup * columns),
            tall = min(kGroup, lists.first[low + 1] - lists.first[low] - group * kGroup);
  const int row = lists.begin[low] + (group * kGroup + inside % tall) * lists.tile_rows;
  return {{low, row, lists.begin[low + 1]}, inside / tall};
}

using Team = TileTeam<kPair>;

__device__ __forceinline__ void fetch_tiles(const CUtensorMap& x, const CUtensorMap& w,
                                            const ExpertLine& line, const ExpertTiles& lists,
                                            const Team& team, Ring ring, uint32_t base) {
  constexpr int kShare = kColumns / kPair;  // rows of weights that this block fetches
  wait_for_kernels_before();
  for (int tile = team.number; tile < lists.count() * line.columns; tile += team.count) {
    const auto [rows, column] = place_of(lists, line.columns, tile);
    const int first = column * kColumns + team.rank * kShare;
    for (int slice = 0; slice < line.slices; ++slice, ring.next()) {
      const uint32_t to = base + ring.stage * kStageBytes, full = ring.full_now();
      const uint32_t weights = to + kWeightsAt + team.rank * kShare * 128;
      barrier_wait(ring.empty_now(), ring.parity ^ 1);
      barrier_expect(full, kStageBytes);
      load_box(to, x, slice * kSlice, rows.begin + team.rank * kTileRows, 0, full);
      load_box_to_both(weights, w, slice * kSlice, first, rows.expert, full);
    }
  }
}

__global__ __launch_bounds__(kThreads,
                             1) void experts_ping_pong_kernel(const __grid_constant__ CUtensorMap x,
                                                              const __grid_constant__ CUtensorMap w,
                                                              const ExpertLine line,
                                                              const PlainEnd end) {
  extern __shared__ __align__(1024) unsigned char shared[];
  const uint32_t base = shared_address(shared), bars = base + line.stages * kStageBytes;
  const int tid = threadIdx.x, warpgroup = tid / 128;
  const Team team = Team::of_block();
  int32_t* memory = reinterpret_cast<int32_t*>(shared + line.stages * (kStageBytes + 16));
  const ExpertTiles lists{line.experts, kPair * kTileRows, memory, memory + line.experts + 1};
  Ring ring{bars, bars + 8 * line.stages, line.stages};
  set_up(ring, x, w, 4 * kPair);
  Team::meet();
  // The gated product before it has waited for the lists, so that they are there.
  let_next_kernel_start();
  lists.lay_out(line.begin);

  if (warpgroup == 0) {
    fewer_registers<40>();
    if (tid == 0) fetch_tiles(x, w, line, lists, team, ring, base);
  } else {
    more_registers<232>();
    const int mine = warpgroup - 1, lane = tid % 32, warp = tid % 128 / 32;
    constexpr int kTurn = 1;  // named barriers kTurn and kTurn + 1: a warpgroup's turn to multiply
    const int tiles = lists.count() * line.columns;
    int count = 0;
    for (int tile = team.number; tile < tiles; tile += team.count, ++count) {
      if (count % 2 != mine) {
        ring.skip(line.slices);
        continue;
      }
      float upper[kColumns / 2], lower[kColumns / 2];
      if (count > 0) named_sync(kTurn + mine, 256);
      int previous = -1;
      for (int slice = 0; slice < line.slices; ++slice, ring.next()) {
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
      const auto [rows, column] = place_of(lists, line.columns, tile);
      const PlainEnd here = end.of(rows.expert, 0);
      const int begin = rows.begin + team.rank * kTileRows, last = min(rows.end, begin + kTileRows);
      const int64_t t = begin + warp * 16 + lane / 4;
      const int first = column * kColumns + lane % 4 * 2;
      here.template tile<kColumns>(upper, t, first, begin, last);
      here.template tile<kColumns>(lower, t + 64, first, begin, last);
    }
  }
  Team::meet();
}

}  // namespace

void hopper_experts_of_many_rows(const ExpertMatmulParams& params, const Execution& on) {
  const MatmulParams& p = params.each;
  const PlainEnd end = end_of(p);
  ExpertLine line{.begin = params.begin,
                  .experts = static_cast<int>(p.w.count),
                  .columns = ceil_div(end.padded, kColumns),
                  .slices = ceil_div(p.w.k, kSlice),
                  .stages = 0};
  const int list_bytes = static_cast<int>(round_up((line.experts + 1) * 8, 16));
  line.stages = std::min(7, (kMaxSharedBytes - list_bytes) / (kStageBytes + 16));
  // An expert has a tile of its own for the rest of its rows, but no row has two.
  const int64_t below = std::min<int64_t>(
      p.rows, std::min<int64_t>(p.rows, line.experts) + p.rows / (kPair * kTileRows));
  const ProductMaps maps = expert_maps_of(p, kTileRows, kColumns / kPair);
  const int64_t pairs =
      std::min<int64_t>(gpu_of(on).multiprocessors() / kPair, below * line.columns);
  launch("multiplying experts' matrices", experts_ping_pong_kernel,
         {.blocks = static_cast<int>(pairs) * kPair,
          .threads = kThreads,
          .shared_bytes = line.lists_at() + list_bytes,
          .cluster = kPair,
          .early = true},
         on, maps.x, maps.w, line, end);
}

}  // namespace invar::cuda
