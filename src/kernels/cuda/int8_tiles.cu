// Products of integers of many rows: tiles of 128 rows by 256 columns, or by 128 where there are
// several runs, by two warpgroups of 64 rows each; blocks in pairs share weights (TileTeam). A
// run's exact sums become floats (numerics 2.1), which meet in the tree of numerics 2.
#include <algorithm>

#include "kernels/cuda/int8.h"
#include "kernels/cuda/product_kinds.cuh"

namespace invar::cuda {

namespace {

constexpr int kThreads = 384;

template <int kColumns, bool kHasRuns>
struct Shape {
  static constexpr int kWeightsAt = kTileRows * 128, kStageBytes = kWeightsAt + kColumns * 128;
  // Room for the sum of a tile's first four runs, and for the scales of its outputs, of each
  // warpgroup.
  static constexpr int kParkBytes = kHasRuns ? kTileRows * kColumns * 4 : 0;
  static constexpr int kScaleBytes = 2 * kColumns * 4;
  static constexpr int kStages =
      (kMaxSharedBytes - 1024 - kParkBytes - kScaleBytes) / (kStageBytes + 16);
  static constexpr int kBytes = kStages * (kStageBytes + 16) + kParkBytes + kScaleBytes;
};

// The scale of column c of a tile of weights that begins with column `first`.
template <int kMatrices>
__device__ __forceinline__ float column_scale(const Int8Kind& kind, int first, int c) {
  if constexpr (kMatrices == 1) return kind.weight_scale(first + c);
  return kind.weight_scale(first / 2 + c / 16 * 8 + c % 8, c / 8 % 2);
}

// The sums of a run.
template <int kColumns, int kPair>
__device__ __forceinline__ void sum_run(int (&d)[kColumns / 2], Ring& ring, uint32_t base, int half,
                                        int slices, int lane, const TileTeam<kPair>& team,
                                        int stage_bytes) {
  int previous = -1;
#pragma unroll 1
  for (int slice = 0; slice < slices; ++slice, ring.next()) {
    barrier_wait(ring.full_now(), ring.parity);
    const uint32_t stage = base + ring.stage * stage_bytes;
    const uint64_t a = describe_rows(stage + half * 64 * 128),
                   b = describe_rows(stage + kTileRows * 128);
    steps_begin();
#pragma unroll
    for (int i = 0; i < kLineBytes / 32; ++i)
      integer_step<kColumns>(d, a + 2 * i, b + 2 * i, (slice | i) != 0);
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

// What a thread multiplies sums by: its two rows' scales, and its columns' in shared memory. `use`
// gets each value, and its place.
template <int kColumns, typename Use>
__device__ __forceinline__ void scale_sums(const int (&sum)[kColumns / 2], float low, float high,
                                           const float* columns, Use use) {
#pragma unroll
  for (int j = 0; j < kColumns / 8; ++j) {
    const float2 w = *reinterpret_cast<const float2*>(columns + j * 8);
    use(4 * j, __int2float_rn(sum[4 * j]) * (low * w.x));
    use(4 * j + 1, __int2float_rn(sum[4 * j + 1]) * (low * w.y));
    use(4 * j + 2, __int2float_rn(sum[4 * j + 2]) * (high * w.x));
    use(4 * j + 3, __int2float_rn(sum[4 * j + 3]) * (high * w.y));
  }
}

// The tree of 2, 4 or 8 runs, which come one after the other: what waits for the other half of a
// pair, and of a four; the first four's sum waits at `parked`, 128 threads' values side by side.
template <int kValues>
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

template <int kColumns, bool kHasRuns, int kPair, typename End>
__global__ __launch_bounds__(kThreads,
                             1) void int8_tile_kernel(const __grid_constant__ CUtensorMap x,
                                                      const __grid_constant__ CUtensorMap w,
                                                      const Int8Kind kind, const TileGrid grid,
                                                      const End end) {
  using S = Shape<kColumns, kHasRuns>;
  constexpr int kValues = kColumns / 2;
  extern __shared__ __align__(1024) unsigned char shared[];
  const uint32_t base = shared_address(shared),
                 bars = base + S::kStages * S::kStageBytes + S::kParkBytes + S::kScaleBytes;
  const int tid = threadIdx.x, warpgroup = tid / 128;
  using Team = TileTeam<kPair>;
  const Team team = Team::of_block();
  const TileGrid of_pairs = Team::together(grid);
  const int tiles = of_pairs.tiles();
  Ring ring{bars, bars + S::kStages * 8, S::kStages};
  set_up(ring, x, w, 8 * kPair);
  Team::meet();
  let_next_kernel_start();

  if (warpgroup == 0) {
    fewer_registers<40>();
    if (tid == 0) {
      wait_for_kernels_before();
      for (int tile = team.number; tile < tiles; tile += team.count) {
        const auto [row, column] = team.place(of_pairs, tile);
        const int first_row = static_cast<int>(grid.first_row(row));
        for (int run = 0; run < grid.split_k; ++run)
          for (int slice = 0; slice < grid.slices; ++slice, ring.next()) {
            const uint32_t to = base + ring.stage * S::kStageBytes, full = ring.full_now();
            barrier_wait(ring.empty_now(), ring.parity ^ 1);
            barrier_expect(full, (grid.tile_rows + kColumns) * 128);
            load_box(to, x, slice * kSlice, first_row, run, full);
            team.template load_weights<End::kMatrices>(to + S::kWeightsAt, w, slice,
                                                       column * kColumns, kColumns, run, full);
          }
      }
    }
  } else {
    more_registers<232>();
    wait_for_kernels_before();
    const int half = warpgroup - 1, lane = tid % 32, warp = tid % 128 / 32;
    auto* parked = reinterpret_cast<float*>(shared + S::kStages * S::kStageBytes) + tid % 128 +
                   half * 128 * kValues;
    float* columns =
        reinterpret_cast<float*>(shared + S::kStages * S::kStageBytes + S::kParkBytes) +
        half * kColumns;
    for (int tile = team.number; tile < tiles; tile += team.count) {
      const auto [row, column] = team.place(of_pairs, tile);
      named_sync(1 + half, 128);  // the scales of the tile before are read
      for (int c = tid % 128; c < kColumns; c += 128)
        columns[c] = column_scale<End::kMatrices>(kind, column * kColumns, c);
      named_sync(1 + half, 128);
      const int64_t t = grid.first_row(row) + half * 64 + warp * 16 + lane / 4;
      const RunScale* low = kind.x + min(t, grid.rows - 1) * grid.split_k;
      const RunScale* high = kind.x + min(t + 8, grid.rows - 1) * grid.split_k;
      // The tensor cores' steps are written once: copies of sums would make each step wait for the
      // one before it.
      const int runs = kHasRuns ? grid.split_k : 1;
      float d[kValues];
      RunTree<kHasRuns ? kValues : 1> tree{.parked = parked};
#pragma unroll 1
      for (int run = 0; run < runs; ++run) {
        int sum[kValues];
        const float low_scale = low[run].scale, high_scale = high[run].scale;
        sum_run<kColumns>(sum, ring, base, half, grid.slices, lane, team, S::kStageBytes);
        const auto scaled = [&](auto use) {
          scale_sums<kColumns>(sum, low_scale, high_scale, columns + lane % 4 * 2, use);
        };
        if constexpr (kHasRuns)
          tree.add(run, scaled);
        else
          scaled([&](int i, float v) { d[i] = v; });
      }
      if constexpr (kHasRuns) {
#pragma unroll
        for (int i = 0; i < kValues; ++i) d[i] = tree.pair[i];
      }
      end.template tile<kColumns>(d, t, column * (kColumns / End::kMatrices) + lane % 4 * 2,
                                  int64_t{row} * kTileRows, grid.rows);
    }
  }
  Team::meet();
}

template <int kColumns, bool kHasRuns, int kPair, typename Params>
void launch_tiles(const Params& p, const Matrix& w, const Execution& on) {
  using S = Shape<kColumns, kHasRuns>;
  const auto end = end_of(p);
  using End = decltype(end_of(p));
  const int runs = split_k_of(p);
  TileGrid grid = grid_of(end, p.rows, w.row_elements(), runs, kColumns);
  grid.slices = ceil_div(w.row_elements() / runs, kLineBytes);
  const ProductMaps maps = Int8Kind::maps(p, grid.tile_rows, kColumns / kPair);
  const LaunchShape shape = {.blocks = TileTeam<kPair>::blocks(grid, gpu_of(on).multiprocessors()),
                             .threads = kThreads,
                             .shared_bytes = S::kBytes,
                             .cluster = kPair,
                             .early = true};
  launch("multiplying integers", int8_tile_kernel<kColumns, kHasRuns, kPair, End>, shape, on,
         maps.x, maps.w, Int8Kind(p, w), grid, end);
}

// Pairs of blocks where there are pairs of tiles below each other.
template <int kColumns, bool kHasRuns, typename Params>
void tiles(const Params& p, const Matrix& w, const Execution& on) {
  p.rows > kTileRows ? launch_tiles<kColumns, kHasRuns, 2>(p, w, on)
                     : launch_tiles<kColumns, kHasRuns, 1>(p, w, on);
}

}  // namespace

void int8_tiles_matmul(const MatmulParams& p, const Execution& on) {
  p.split_k == 1 ? tiles<256, false>(p, p.w, on) : tiles<128, true>(p, p.w, on);
}

void int8_tiles_gated(const GatedMatmulParams& p, const Execution& on) {
  tiles<256, false>(p, p.gate_up, on);
}

}  // namespace invar::cuda
