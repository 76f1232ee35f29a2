// Products of e4m3 numbers of many rows: tiles of 128 rows by two warpgroups of 64 each; blocks in
// pairs share weights (TileTeam). The chain of a group is in registers; at the group's end it is
// added, scaled, to the run's sum, while the other warpgroup multiplies (numerics 2.2). Runs meet
// in the tree of numerics 2.
#include <algorithm>

#include "kernels/cuda/fp8_kind.cuh"
#include "kernels/cuda/run_tree.cuh"

namespace invar::cuda {

namespace {

constexpr int kThreads = 384;
// Scales are fetched for four groups at a time, which lie side by side, by four lanes: one group at
// a time they are so many requests of four bytes that these take longer than the product.
constexpr int kScaleThreads = 64, kScaleGroups = 4, kScaleStages = 3;

// A stage has the numbers of a group, one of another ring the scales of kScaleGroups of them: of
// each those of rows and then those of columns in the order of `slot`.
template <int kColumns, bool kHasRuns>
struct Shape {
  static constexpr int kWeightsAt = kTileRows * 128, kStageBytes = kWeightsAt + kColumns * 128;
  // Groups lie so that four of a row, and eight rows of each, are in different banks.
  static constexpr int kScales = kTileRows + kColumns + 8, kScaleBytes = kScaleGroups * kScales * 4;
  // Room for the sum of a tile's first four runs, and for that of two.
  static constexpr int kParkBytes = kHasRuns ? 2 * kTileRows * kColumns * 4 : 0;
  static constexpr int kStages =
      (kMaxSharedBytes - 1024 - kParkBytes - kScaleStages * (kScaleBytes + 16)) /
      (kStageBytes + 16);
  static constexpr int kParkAt = kStages * kStageBytes, kScalesAt = kParkAt + kParkBytes,
                       kBarsAt = kScalesAt + kScaleStages * kScaleBytes,
                       kBytes = kBarsAt + (kStages + kScaleStages) * 16;
};

// The rings of a block, of numbers and of scales.
struct Rings {
  Ring numbers, scales;

  template <typename Shape>
  static __device__ Rings at(uint32_t base) {
    const uint32_t bars = base + Shape::kBarsAt, more = bars + 16 * Shape::kStages;
    return {{bars, bars + 8 * Shape::kStages, Shape::kStages},
            {more, more + 8 * kScaleStages, kScaleStages}};
  }
  __device__ void init(int releases) const {
    numbers.init(releases);
    for (int i = 0; i < kScaleStages; ++i) {
      barrier_init(scales.full + 8 * i, kScaleThreads);
      barrier_init(scales.empty + 8 * i, 8);
    }
    barriers_are_ready();
  }
};

// Where the scale of a column lies: a lane's four of two blocks of 8 columns stand together.
__device__ __forceinline__ int slot(int column) {
  return column / 16 * 16 + column % 8 / 2 * 4 + column / 8 % 2 * 2 + column % 2;
}

// sum = fma(chain, scale, sum): `low` and `high` are the scales of a lane's two rows.
template <int kColumns>
__device__ __forceinline__ void promote(const float (&chain)[kColumns / 2], float low, float high,
                                        const float4* columns, float (&sum)[kColumns / 2]) {
#pragma unroll
  for (int j = 0; j < kColumns / 16; ++j) {
    const float4 w = columns[j * 4];
    const float scale[4] = {w.x, w.y, w.z, w.w};
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const float both = (i / 2 % 2 ? high : low) * scale[i / 4 * 2 + i % 2];
      sum[j * 8 + i] = __fmaf_rn(chain[j * 8 + i], both, sum[j * 8 + i]);
    }
  }
}

// One of the two warpgroups that multiply.
template <int kColumns, bool kHasRuns, bool kWhole, int kPair>
struct Multiplier {
  using S = Shape<kColumns, kHasRuns>;
  static constexpr int kValues = kColumns / 2;
  const TileTeam<kPair>& team;
  unsigned char* shared;
  Rings rings;
  int half, run_columns;
  int groups = 0;  // that the scales' stage has been read for

  // The sum of the run of this group, which becomes the next run's first.
  __device__ __forceinline__ void sum_run(Fp8Group& group, float (&sum)[kValues]) {
#pragma unroll
    for (int i = 0; i < kValues; ++i) sum[i] = 0.0f;
    const int run = group.run, end = (run + 1) * run_columns;
    if constexpr (kWhole) {
#pragma unroll 1
      while (group.first + kLineBytes < end) add_groups<2>(group, sum);
      if (group.run != run) return;
    }
#pragma unroll 1
    while (group.run == run) add_groups<1>(group, sum);
  }
  // The next tile's scales begin in a stage of their own.
  __device__ __forceinline__ void end_tile() {
    if (groups > 0) release_scales();
  }

 private:
  static __device__ __forceinline__ int lane() {
    return static_cast<int>(threadIdx.x) % kWarp;
  }

  __device__ __forceinline__ void release_scales() {
    __syncwarp();
    if (lane() == 0) barrier_arrive(rings.scales.empty_now());
    rings.scales.next();
    groups = 0;
  }
  // Adds groups to the sum: while one is added the next is multiplied.
  template <int kCount>
  __device__ __forceinline__ void add_groups(Fp8Group& group, float (&sum)[kValues]) {
    float chain[kCount][kValues];
    Ring ahead = rings.numbers;
#pragma unroll
    for (int j = 0; j < kCount; ++j, ahead.next()) {
      barrier_wait(ahead.full_now(), ahead.parity);
      multiply(ahead.stage, group, chain[j]);
      group.template next<kWhole>(run_columns);
    }
    steps_wait<kCount - 1>();
    add(chain[0], sum);
    if constexpr (kCount == 2) {
      steps_wait<0>();
      add(chain[1], sum);
    }
  }
  // A finished chain, that of the first stage not released.
  __device__ __forceinline__ void add(float (&chain)[kValues], float (&sum)[kValues]) {
    values_stay(chain);
    if (lane() == 0) team.release(rings.numbers.empty_now());
    rings.numbers.next();
    if (groups == 0) barrier_wait(rings.scales.full_now(), rings.scales.parity);
    const int row = half * 64 + static_cast<int>(threadIdx.x) % 128 / kWarp * 16 + lane() / 4;
    const float* scales = reinterpret_cast<const float*>(shared + S::kScalesAt) +
                          (rings.scales.stage * kScaleGroups + groups) * S::kScales;
    promote<kColumns>(chain, scales[row], scales[row + 8],
                      reinterpret_cast<const float4*>(scales + kTileRows) + lane() % 4, sum);
    if (++groups == kScaleGroups) release_scales();
  }
  __device__ __forceinline__ void multiply(int number, const Fp8Group& group,
                                           float (&chain)[kValues]) const {
    const uint32_t stage = shared_address(shared) + number * S::kStageBytes;
    const uint64_t a = describe_rows(stage + half * 64 * 128),
                   b = describe_rows(stage + S::kWeightsAt);
    if constexpr (kWhole) {
      steps_begin();
#pragma unroll
      for (int i = 0; i < kLineBytes / 32; ++i)
        e4m3_step<kColumns>(chain, a + 2 * i, b + 2 * i, i != 0);
    } else {
      const int steps = group.steps(run_columns);
      int i = 0;
      do {
        steps_begin();
        e4m3_step<kColumns>(chain, a + 2 * i, b + 2 * i, i != 0);
      } while (++i < steps);
    }
    steps_commit();
  }
};

// A block's part of the weights of a group that begins with column `first`.
template <int kMatrices, int kPair>
__device__ __forceinline__ void load_weights_of(const TileTeam<kPair>& team, uint32_t to,
                                                const CUtensorMap& w, int first, int row, int rows,
                                                uint32_t barrier) {
  to += team.rank * (rows / kPair) * 128;
  row += team.rank * (rows / kPair);
  if constexpr (kMatrices == 1)
    kPair == 1 ? load_box(to, w, first / 2, row, 0, barrier)
               : load_box_to_both(to, w, first / 2, row, 0, barrier);
  else
    kPair == 1 ? load_box(to, w, first / 2, 0, 0, row / (2 * kBlockOutputs), barrier)
               : load_box_to_both(to, w, first / 2, 0, 0, row / (2 * kBlockOutputs), barrier);
}

// The thread that fetches numbers.
template <int kColumns, bool kHasRuns, bool kWhole, int kPair, int kMatrices>
__device__ __forceinline__ void fetch_numbers(const CUtensorMap& x, const CUtensorMap& w,
                                              const Fp8Kind& kind, const TileGrid& grid,
                                              const TileTeam<kPair>& team, uint32_t base,
                                              Ring ring) {
  using S = Shape<kColumns, kHasRuns>;
  const TileGrid of_pairs = TileTeam<kPair>::together(grid);
  for (int tile = team.number; tile < of_pairs.tiles(); tile += team.count) {
    const auto [row, column] = team.place(of_pairs, tile);
    const int first_row = static_cast<int>(grid.first_row(row)), run_columns = kind.run_columns();
    for (Fp8Group group; group.run < kind.runs;
         group.template next<kWhole>(run_columns), ring.next()) {
      const uint32_t to = base + ring.stage * S::kStageBytes, full = ring.full_now();
      barrier_wait(ring.empty_now(), ring.parity ^ 1);
      barrier_expect(full, (grid.tile_rows + kColumns) * 128);
      load_box(to, x, group.first / 2, first_row, 0, full);
      load_weights_of<kMatrices>(team, to + S::kWeightsAt, w, group.first, column * kColumns,
                                 kColumns, full);
    }
  }
}

// Of every 16th row or column of a tile, `count` of which exist, the scale of one group: to `to`
// and every 16th place after it.
template <int kCount>
struct ScaleColumn {
  const char* from;
  int64_t step;
  int count;

  __device__ __forceinline__ void fetch(int64_t offset, float* to) const {
    float values[kCount] = {};
    const char* at = from + offset;
#pragma unroll
    for (int i = 0; i < kCount; ++i, at += step)
      if (i < count) values[i] = __ldg(reinterpret_cast<const float*>(at));
#pragma unroll
    for (int i = 0; i < kCount; ++i) to[i * 16] = values[i];
  }
};

// The threads that fetch scales: four lanes side by side those of kScaleGroups groups of some rows
// and columns.
template <int kColumns, bool kHasRuns, bool kWhole, int kPair, int kMatrices>
__device__ __forceinline__ void fetch_scales(const Fp8Kind& kind, const TileGrid& grid,
                                             const TileTeam<kPair>& team, unsigned char* shared,
                                             int thread, Ring ring) {
  using S = Shape<kColumns, kHasRuns>;
  constexpr int kAtOnce = kScaleThreads / kScaleGroups;
  static_assert(kAtOnce == 16 && kAtOnce == 2 * kBlockOutputs);
  const TileGrid of_pairs = TileTeam<kPair>::together(grid);
  const int run_columns = kind.run_columns(), mine = thread / kScaleGroups,
            lane_group = thread % kScaleGroups;
  for (int tile = team.number; tile < of_pairs.tiles(); tile += team.count) {
    const auto [row, column] = team.place(of_pairs, tile);
    ScaleColumn<kTileRows / kAtOnce> rows{
        reinterpret_cast<const char*>(kind.x_scales(grid.first_row(row) + mine)),
        int64_t{kAtOnce} * kind.slots * static_cast<int>(sizeof(RunScale)),
        (grid.tile_rows - mine + kAtOnce - 1) / kAtOnce};
    // 16 rows of a tile of weights are eight outputs of each of a pair.
    constexpr int kOutputs = kAtOnce / kMatrices;
    const int output = column * (kColumns / kMatrices) + mine % kOutputs;
    ScaleColumn<kColumns / kAtOnce> columns{
        reinterpret_cast<const char*>(kind.weight_scales(output, mine / kOutputs)),
        kOutputs * kind.unit_bytes, (kind.n - output + kOutputs - 1) / kOutputs};
    // The groups of lane 0 and of this one, which may be past the last.
    Fp8Group first, own;
    own.template skip<kWhole>(lane_group, run_columns, kind.runs);
    for (; first.run < kind.runs; ring.next()) {
      float* to = reinterpret_cast<float*>(shared + S::kScalesAt) +
                  (ring.stage * kScaleGroups + lane_group) * S::kScales;
      barrier_wait(ring.empty_now(), ring.parity ^ 1);
      if (own.run < kind.runs) {
        rows.fetch(own.x_scale() * static_cast<int>(sizeof(RunScale)), to + mine);
        columns.fetch(own.block() * static_cast<int>(sizeof(float)), to + kTileRows + slot(mine));
      }
      barrier_arrive(ring.full_now());
      first.template skip<kWhole>(kScaleGroups, run_columns, kind.runs);
      own.template skip<kWhole>(kScaleGroups, run_columns, kind.runs);
    }
  }
}

template <int kColumns, bool kHasRuns, bool kWhole, int kPair, typename End>
__global__ __launch_bounds__(kThreads,
                             1) void fp8_tile_kernel(const __grid_constant__ CUtensorMap x,
                                                     const __grid_constant__ CUtensorMap w,
                                                     const Fp8Kind kind, const TileGrid grid,
                                                     const End end) {
  using S = Shape<kColumns, kHasRuns>;
  constexpr int kValues = kColumns / 2, kMatrices = End::kMatrices;
  extern __shared__ __align__(1024) unsigned char shared[];
  const uint32_t base = shared_address(shared);
  const int tid = threadIdx.x, warpgroup = tid / 128;
  using Team = TileTeam<kPair>;
  const Team team = Team::of_block();
  const TileGrid of_pairs = Team::together(grid);
  const Rings rings = Rings::at<S>(base);
  if (tid == 0) {
    prefetch(x);
    prefetch(w);
    rings.init(8 * kPair);
  }
  __syncthreads();
  Team::meet();
  let_next_kernel_start();
  wait_for_kernels_before();

  if (warpgroup == 0) {
    fewer_registers<40>();
    if (tid == 0)
      fetch_numbers<kColumns, kHasRuns, kWhole, kPair, kMatrices>(x, w, kind, grid, team, base,
                                                                  rings.numbers);
    else if (tid >= 128 - kScaleThreads)
      fetch_scales<kColumns, kHasRuns, kWhole, kPair, kMatrices>(
          kind, grid, team, shared, tid - (128 - kScaleThreads), rings.scales);
  } else {
    more_registers<232>();
    const int half = warpgroup - 1, lane = tid % 32, warp = tid % 128 / 32;
    Multiplier<kColumns, kHasRuns, kWhole, kPair> multiplier{team, shared, rings, half,
                                                             kind.run_columns()};
    for (int tile = team.number; tile < of_pairs.tiles(); tile += team.count) {
      const auto [row, column] = team.place(of_pairs, tile);
      Fp8Group group;
      float d[kValues];
      if constexpr (kHasRuns) {
        RunTree<kValues> tree{reinterpret_cast<float4*>(shared + S::kParkAt) + tid - 128};
#pragma unroll 1
        for (int run = 0; run < kind.runs; ++run) {
          multiplier.sum_run(group, d);
          tree.add(run, kind.runs, d);
        }
#pragma unroll
        for (int i = 0; i < kValues; ++i) d[i] = tree.pair[i];
      } else {
        multiplier.sum_run(group, d);
      }
      multiplier.end_tile();
      const int64_t t = grid.first_row(row) + half * 64 + warp * 16 + lane / 4;
      end.template tile<kColumns>(d, t, column * (kColumns / kMatrices) + lane % 4 * 2,
                                  int64_t{row} * kTileRows, grid.rows);
    }
  }
  Team::meet();
}

template <int kColumns, bool kHasRuns, bool kWhole, int kPair, typename Params>
void launch_tiles(const Params& p, const Matrix& w, const Execution& on) {
  using S = Shape<kColumns, kHasRuns>;
  const auto end = end_of(p);
  using End = decltype(end_of(p));
  const TileGrid grid = grid_of(end, p.rows, w.k, split_k_of(p), kColumns);
  const ProductMaps maps = Fp8Kind::maps(p, grid.tile_rows, kColumns / kPair);
  const LaunchShape shape = {.blocks = TileTeam<kPair>::blocks(grid, gpu_of(on).multiprocessors()),
                             .threads = kThreads,
                             .shared_bytes = S::kBytes,
                             .cluster = kPair,
                             .early = true};
  launch("multiplying e4m3 numbers", fp8_tile_kernel<kColumns, kHasRuns, kWhole, kPair, End>, shape,
         on, maps.x, maps.w, Fp8Kind(p, w), grid, end);
}

// Pairs of blocks where there are pairs of tiles below each other.
template <int kColumns, bool kHasRuns, typename Params>
void tiles_of(const Params& p, const Matrix& w, const Execution& on) {
  p.rows > kTileRows ? launch_tiles<kColumns, kHasRuns, true, 2>(p, w, on)
                     : launch_tiles<kColumns, kHasRuns, true, 1>(p, w, on);
}

// What a product in tiles of so many columns takes, in columns of a tile: turns over the
// multiprocessors. Beside its columns a tile costs as much as kMore.
template <typename Params>
int cost(const Params& p, int columns, const Execution& on) {
  constexpr int kMore = 64;
  const int tiles = grid_of(end_of(p), p.rows, kSlice, 1, columns).tiles();
  return ceil_div(tiles, gpu_of(on).multiprocessors()) * (columns + kMore);
}

template <int kNarrow, int kWide, bool kHasRuns, typename Params>
void tiles(const Params& p, const Matrix& w, const Execution& on) {
  cost(p, kNarrow, on) < cost(p, kWide, on) ? tiles_of<kNarrow, kHasRuns>(p, w, on)
                                            : tiles_of<kWide, kHasRuns>(p, w, on);
}

}  // namespace

void fp8_tiles_matmul(const MatmulParams& p, const Execution& on) {
  if (p.split_k == 1) return tiles<64, 128, false>(p, p.w, on);
  if (p.w.k / p.split_k % orders::kFp8Group != 0)
    return launch_tiles<48, true, false, 1>(p, p.w, on);
  tiles<48, 96, true>(p, p.w, on);
}

void fp8_tiles_gated(const GatedMatmulParams& p, const Execution& on) {
  tiles<64, 128, false>(p, p.gate_up, on);
}

}  // namespace invar::cuda
