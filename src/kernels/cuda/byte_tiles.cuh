// Products of many rows of numbers of a byte, with a scale for each output and each run of a row.
// With one run each of two warpgroups owns a tile of 128 x 128 (ping_pong.cuh). With several both
// share one, 64 rows each: a run's sums are scaled (numerics 2.1, 2.5) and meet in the tree of
// numerics 2. Blocks in pairs share weights (TileTeam).
#pragma once

#include <algorithm>

#include "kernels/cuda/boxed_end.cuh"
#include "kernels/cuda/ping_pong.cuh"

namespace invar::cuda::byte_tiles {

using ping_pong::kColumns, ping_pong::kThreads, ping_pong::kStageBytes, ping_pong::kWeightsAt;
constexpr int kValues = kColumns / 2;
// The scales of a tile's outputs, of each warpgroup.
constexpr int kScaleBytes = 2 * kColumns * static_cast<int>(sizeof(float));
// Room for the sum of a tile's first four of several runs.
constexpr int kParkBytes = kTileRows * kColumns * static_cast<int>(sizeof(float));
constexpr int kBudget = kMaxSharedBytes - 1024 - kScaleBytes;
constexpr int kStages = kBudget / (kStageBytes + 16),
              kStagesOfRuns = (kBudget - kParkBytes) / (kStageBytes + 16);

// The scale of column c of a tile of weights that begins with column `first`.
template <int kMatrices, typename Kind>
__device__ __forceinline__ float column_scale(const Kind& kind, int first, int c) {
  if constexpr (kMatrices == 1) return kind.weight_scale(first + c);
  return kind.weight_scale(first / 2 + c / 16 * 8 + c % 8, c / 8 % 2);
}

// By the 128 threads of a warpgroup: those of a tile, when all have read the ones before.
template <int kMatrices, typename Kind>
__device__ __forceinline__ void put_scales(const Kind& kind, int column, int half, float* columns) {
  constexpr int kRead = 3;  // named barriers kRead and kRead + 1
  const int c = static_cast<int>(threadIdx.x) % 128;
  static_assert(kColumns == 128);
  named_sync(kRead + half, 128);
  columns[c] = column_scale<kMatrices>(kind, column * kColumns, c);
  named_sync(kRead + half, 128);
}

// The sums of a run.
template <typename Kind, int kPair>
__device__ __forceinline__ void sum_run(typename Kind::Sum (&d)[kValues], Ring& ring, uint32_t base,
                                        int half, int slices, int lane,
                                        const TileTeam<kPair>& team) {
  int previous = -1;
#pragma unroll 1
  for (int slice = 0; slice < slices; ++slice, ring.next()) {
    barrier_wait(ring.full_now(), ring.parity);
    const uint32_t stage = base + ring.stage * kStageBytes;
    const uint64_t a = describe_rows(stage + half * 64 * 128),
                   b = describe_rows(stage + kWeightsAt);
    steps_begin();
#pragma unroll
    for (int i = 0; i < kLineBytes / 32; ++i)
      Kind::template step<kColumns>(d, a + 2 * i, b + 2 * i, (slice | i) != 0);
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

// Multiplies sums by the scales of a thread's two rows, and those of its columns in shared memory.
// `use` gets each value, and its place.
template <typename Kind, typename Use>
__device__ __forceinline__ void scale_sums(const typename Kind::Sum (&sum)[kValues], float low,
                                           float high, const float* columns, Use use) {
  using Numbers = typename Kind::Numbers;
#pragma unroll
  for (int j = 0; j < kColumns / 8; ++j) {
    const float2 w = *reinterpret_cast<const float2*>(columns + j * 8);
    use(4 * j, Numbers::value(sum[4 * j]) * (low * w.x));
    use(4 * j + 1, Numbers::value(sum[4 * j + 1]) * (low * w.y));
    use(4 * j + 2, Numbers::value(sum[4 * j + 2]) * (high * w.x));
    use(4 * j + 3, Numbers::value(sum[4 * j + 3]) * (high * w.y));
  }
}

// The tree of 2, 4 or 8 runs, which come one after the other: what waits for the other half of a
// pair, and of a four; the first four's sum waits at `parked`, 128 threads' values side by side.
struct RunTree {
  float pair[kValues], four[kValues];
  float* parked;

  // `scaled` gives the values of run `run`. After the last one the sums are in `pair`.
  template <typename Scaled>
  __device__ __forceinline__ void add(int run, Scaled scaled) {
    if (run % 2 == 0)
      scaled([&](int i, float v) { pair[i] = v; });
    else if (run == 1)
      scaled([&](int i, float v) { pair[i] = four[i] = pair[i] + v; });
    else if (run == 5)
      scaled([&](int i, float v) { four[i] = pair[i] + v; });
    else if (run == 3)
      scaled([&](int i, float v) { pair[i] = parked[i * 128] = four[i] + (pair[i] + v); });
    else
      scaled([&](int i, float v) { pair[i] = parked[i * 128] + (four[i] + (pair[i] + v)); });
  }
};

// The work of the thread that fetches.
template <int kMatrices, int kPair>
__device__ __forceinline__ void fetch_tiles(const TileTeam<kPair>& team, const TileGrid& of_pairs,
                                            const TileGrid& grid, const CUtensorMap& x,
                                            const CUtensorMap& w, Ring& ring, uint32_t base) {
  wait_for_kernels_before();
  for (int tile = team.number; tile < of_pairs.tiles(); tile += team.count) {
    const auto [row, column] = team.place(of_pairs, tile);
    const int first_row = static_cast<int>(grid.first_row(row));
    for (int run = 0; run < grid.split_k; ++run)
      for (int slice = 0; slice < grid.slices; ++slice, ring.next()) {
        const uint32_t to = base + ring.stage * kStageBytes, full = ring.full_now();
        barrier_wait(ring.empty_now(), ring.parity ^ 1);
        barrier_expect(full, (grid.tile_rows + kColumns) * 128);
        load_box(to, x, slice * kSlice, first_row, run, full);
        team.template load_weights<kMatrices>(to + kWeightsAt, w, slice, column * kColumns,
                                              kColumns, run, full);
      }
  }
}

// Several runs.
template <typename Kind, int kPair>
__global__ __launch_bounds__(kThreads, 1) void runs_kernel(const __grid_constant__ CUtensorMap x,
                                                           const __grid_constant__ CUtensorMap w,
                                                           const __grid_constant__ CUtensorMap y,
                                                           const Kind kind, const TileGrid grid,
                                                           const PlainEnd end) {
  constexpr int kParkAt = kStagesOfRuns * kStageBytes, kScalesAt = kParkAt + kParkBytes;
  extern __shared__ __align__(1024) unsigned char shared[];
  const uint32_t base = shared_address(shared), bars = base + kScalesAt + kScaleBytes;
  const int tid = threadIdx.x, warpgroup = tid / 128;
  using Team = TileTeam<kPair>;
  const Team team = Team::of_block();
  const TileGrid of_pairs = Team::together(grid);
  const int tiles = of_pairs.tiles();
  Ring ring{bars, bars + kStagesOfRuns * 8, kStagesOfRuns};
  set_up(ring, x, w, 8 * kPair);
  Team::meet();
  let_next_kernel_start();

  if (warpgroup == 0) {
    fewer_registers<ping_pong::kFetchRegisters>();
    if (tid == 0) fetch_tiles<1>(team, of_pairs, grid, x, w, ring, base);
  } else {
    more_registers<ping_pong::kRegisters>();
    wait_for_kernels_before();
    const int half = warpgroup - 1, lane = tid % 32, warp = tid % 128 / 32;
    float* const columns = reinterpret_cast<float*>(shared + kScalesAt) + half * kColumns;
    const BoxedEnd<kColumns> boxed(y, base + kParkAt + half * BoxedEnd<kColumns>::kBytes, half,
                                   end);
    RunTree tree;
    tree.parked = reinterpret_cast<float*>(shared + kParkAt) + tid % 128 + half * 128 * kValues;
    for (int tile = team.number; tile < tiles; tile += team.count) {
      const auto [row, column] = team.place(of_pairs, tile);
      put_scales<1>(kind, column, half, columns);
      const int64_t t = grid.first_row(row) + half * 64 + warp * 16 + lane / 4;
      const RunScale* low = kind.x + min(t, grid.rows - 1) * grid.split_k;
      const RunScale* high = kind.x + min(t + 8, grid.rows - 1) * grid.split_k;
      // The tensor cores' steps are written once: copies of sums would make each step wait for the
      // one before it.
#pragma unroll 1
      for (int run = 0; run < grid.split_k; ++run) {
        typename Kind::Sum sum[kValues];
        const float low_scale = low[run].scale, high_scale = high[run].scale;
        sum_run<Kind>(sum, ring, base, half, grid.slices, lane, team);
        if (run == 3) boxed.wait_for_room();
        tree.add(run, [&](auto use) {
          scale_sums<Kind>(sum, low_scale, high_scale, columns + lane % 4 * 2, use);
        });
      }
      const int64_t first = int64_t{row} * kTileRows;
      if (boxed.can(first, grid.rows))
        boxed.write(tree.pair, static_cast<int>(first) + half * 64, column * kColumns);
      else
        end.tile<kColumns>(tree.pair, t, column * kColumns + lane % 4 * 2, first, grid.rows);
    }
    boxed.end();
  }
  Team::meet();
}

// One run.
template <typename Kind, int kPair, typename End>
__global__ __launch_bounds__(kThreads, 1) void tile_kernel(const __grid_constant__ CUtensorMap x,
                                                           const __grid_constant__ CUtensorMap w,
                                                           const Kind kind, const TileGrid grid,
                                                           const End end) {
  constexpr int kScalesAt = kStages * kStageBytes;
  extern __shared__ __align__(1024) unsigned char shared[];
  const uint32_t base = shared_address(shared), bars = base + kScalesAt + kScaleBytes;
  const int tid = threadIdx.x, warpgroup = tid / 128;
  using Team = TileTeam<kPair>;
  const Team team = Team::of_block();
  const TileGrid of_pairs = Team::together(grid);
  Ring ring{bars, bars + kStages * 8, kStages};
  set_up(ring, x, w, 4 * kPair);
  Team::meet();
  let_next_kernel_start();

  if (warpgroup == 0) {
    fewer_registers<ping_pong::kFetchRegisters>();
    if (tid == 0) fetch_tiles<End::kMatrices>(team, of_pairs, grid, x, w, ring, base);
  } else {
    more_registers<ping_pong::kRegisters>();
    const int half = warpgroup - 1, lane = tid % 32, warp = tid % 128 / 32;
    float* const columns = reinterpret_cast<float*>(shared + kScalesAt) + half * kColumns;
    ping_pong::multiply<Kind>(
        team, ring, base, half, of_pairs.tiles(), grid.slices,
        [&](int tile, const auto& upper, const auto& lower) {
          const auto [row, column] = team.place(of_pairs, tile);
          put_scales<End::kMatrices>(kind, column, half, columns);
          const int first = column * (kColumns / End::kMatrices) + lane % 4 * 2;
          const auto finish = [&](const typename Kind::Sum(&sum)[kValues], int64_t t) {
            float d[kValues];
            scale_sums<Kind>(sum, kind.x[min(t, grid.rows - 1)].scale,
                             kind.x[min(t + 8, grid.rows - 1)].scale, columns + lane % 4 * 2,
                             [&](int i, float v) { d[i] = v; });
            end.template tile<kColumns>(d, t, first, int64_t{row} * kTileRows, grid.rows);
          };
          const int64_t t = grid.first_row(row) + warp * 16 + lane / 4;
          finish(upper, t);
          finish(lower, t + 64);
        });
  }
  Team::meet();
}

// `more` are the kernel's parameters behind the operands.
template <typename Kind, int kPair, typename Params, typename End, typename Kernel,
          typename... Maps>
void launch_tiles(const Params& p, const Matrix& w, const End& end, const Execution& on,
                  Kernel* kernel, int bytes, const Maps&... more) {
  const int runs = split_k_of(p);
  TileGrid grid = grid_of(end, p.rows, w.row_elements(), runs, kColumns);
  grid.slices = ceil_div(w.row_elements() / runs, kLineBytes);
  const ProductMaps maps = Kind::maps(p, grid.tile_rows, kColumns / kPair);
  const LaunchShape shape = {.blocks = TileTeam<kPair>::blocks(grid, gpu_of(on).multiprocessors()),
                             .threads = kThreads,
                             .shared_bytes = bytes,
                             .cluster = kPair,
                             .early = true};
  launch("multiplying rows of bytes", kernel, shape, on, maps.x, maps.w, more..., Kind(p, w), grid,
         end);
}

// Pairs of blocks where there are pairs of tiles below each other.
template <typename Kind, typename Params>
void tiles(const Params& p, const Matrix& w, const Execution& on) {
  constexpr int kBytes = kStages * (kStageBytes + 16) + kScaleBytes;
  const auto end = end_of(p);
  using End = decltype(end_of(p));
  p.rows > kTileRows ? launch_tiles<Kind, 2>(p, w, end, on, tile_kernel<Kind, 2, End>, kBytes)
                     : launch_tiles<Kind, 1>(p, w, end, on, tile_kernel<Kind, 1, End>, kBytes);
}

template <typename Kind>
void tiles_of_runs(const MatmulParams& p, const Execution& on) {
  constexpr int kBytes = kStagesOfRuns * (kStageBytes + 16) + kParkBytes + kScaleBytes;
  const PlainEnd end = end_of(p);
  const CUtensorMap y = boxes_of(end, p.rows);
  p.rows > kTileRows ? launch_tiles<Kind, 2>(p, p.w, end, on, runs_kernel<Kind, 2>, kBytes, y)
                     : launch_tiles<Kind, 1>(p, p.w, end, on, runs_kernel<Kind, 1>, kBytes, y);
}

}  // namespace invar::cuda::byte_tiles
