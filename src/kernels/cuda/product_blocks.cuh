// Products of up to 8 rows by matrices of blocks, and in several runs of up to 32 (order `hopper`;
// others product_blocks_wide.cuh): the weights are read once, as they are stored, and become bf16
// in registers. A warp takes 16 outputs, or 8 pairs, of one run, or of few outputs 8: it unpacks
// units of 32 elements and multiplies them by mma.sync, whose bits are those of wgmma (mma.cuh).
// One run: the warps of a block take rows side by side of slabs that another warp has brought for
// all. Several runs: each warp has one, with a ring of its own, and they meet as in
// product_few_split_k.cu.
#pragma once

#include "kernels/cuda/row_in_block.cuh"
#include "kernels/cuda/slab_grid.cuh"

namespace invar::cuda {

// The dots of a warp: of 16 outputs by eights of rows as mma.cuh has them, or (kTiles 1) of 8
// outputs by rows, the first of which are a lane's row and two outputs.
template <int kEights>
using SlabDots = float[kEights][4];

// A slab of a warp's rows of weights, from unit `first` of the run on: all of it, or as many units
// as the run has left.
template <DType type, int kTiles, int kEights, bool kIsWhole>
__device__ __forceinline__ void multiply_slab(const SlabPlace& place, int first, int units,
                                              SlabRows<kEights>& x, SlabDots<kEights>& d) {
  const int lane = threadIdx.x % 32;
  using Row = Slab<type, SharedSlab<type>>;
  const Row low(SharedSlab<type>(place, lane / 4, lane)),
      high(SharedSlab<type>(place, (kTiles - 1) * 8 + lane / 4, lane));
#pragma unroll
  for (int u = 0; u < kSlab / kSlabUnit; ++u) {
    if (!kIsWhole && u >= units) break;
    SlabEights upper, lower;
    low.unit(u, upper);
    if constexpr (kTiles == 2) high.unit(u, lower);
    constexpr int kAhead = SlabRows<kEights>::kAhead;
#pragma unroll
    for (int s = 0; s < 2; ++s)
#pragma unroll
      for (int b = 0; b < kEights; ++b)
        if (kEights == 1 || b < x.eights()) {  // a branch would keep units from overlapping
          const StepRows rows = x.rows(u % kAhead, s, b);
          if constexpr (kTiles == 2)
            step(d[b], {{upper[s][0], lower[s][0], upper[s][1], lower[s][1]}}, rows);
          else  // rows 8 to 15 are whatever: nothing of them is kept
            step(d[b], {{rows.b[0], rows.b[0], rows.b[1], rows.b[1]}},
                 {{upper[s][0], upper[s][1]}});
        }
    x.load(u % kAhead, first + u + kAhead);
  }
}

template <DType type, int kTiles, int kEights>
__device__ __forceinline__ void multiply_slab(const SlabPlace& place, int first, int left,
                                              SlabRows<kEights>& x, SlabDots<kEights>& d) {
  if (SlabShape<type>::kBlocks == 1 || left >= kSlab / kSlabUnit)
    multiply_slab<type, kTiles, kEights, true>(place, first, left, x, d);
  else
    multiply_slab<type, kTiles, kEights, false>(place, first, left, x, d);
}

// The dots of a warp as they end, of one run; `output` is its first.
template <int kTiles, typename End>
__device__ __forceinline__ void end_dots(const End& end, int output, int rows,
                                         const SlabDots<1>& d) {
  const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4 * 2;
  if constexpr (kTiles == 1) {
    if (g >= rows) return;
    end.one(g, output + t, d[0][0]);
    end.one(g, output + t + 1, d[0][1]);
  } else if constexpr (End::kMatrices == 2) {
    end.template column<8>(d[0], t, output + g, rows);
  } else {
#pragma unroll
    for (int i = 0; i < 4; ++i)
      if (t + i % 2 < rows) end.one(t + i % 2, output + g + i / 2 * 8, d[0][i]);
  }
}

constexpr int kRunRows = 16;  // rows of weights that the runs of a block share

// The same of several runs, a warp each: their binary tree (numerics 2). By all threads; `old` is
// what this thread's first output is added to.
template <int kEights>
__device__ __forceinline__ void end_tile_of_runs(const PlainEnd& end, int tile, int rows, int runs,
                                                 float old, float* sums,
                                                 const SlabDots<kEights>& d) {
  const int lane = threadIdx.x % 32, run = threadIdx.x / 32;
  constexpr int kRun = kEights * 8 * kRunRows;  // [run][row][output]
#pragma unroll
  for (int i = 0; i < kEights * 4; ++i) {
    const int row = i / 4 * 8 + lane % 4 * 2 + i % 2, output = i / 2 % 2 * 8 + lane / 4;
    sums[run * kRun + row * kRunRows + output] = d[i / 4][i % 4];
  }
  __syncthreads();
  const int threads = static_cast<int>(blockDim.x), thread = static_cast<int>(threadIdx.x);
  for (int i = thread; i < rows * kRunRows; i += threads) {
    float s[kMostSplitK];
#pragma unroll
    for (int r = 0; r < kMostSplitK; ++r) s[r] = r < runs ? sums[r * kRun + i] : 0.0f;
#pragma unroll
    for (int apart = 1; apart < kMostSplitK; apart *= 2)
#pragma unroll
      for (int r = 0; r < kMostSplitK; r += 2 * apart)
        if (apart < runs) s[r] = s[r] + s[r + apart];
    const int output = tile * kRunRows + i % kRunRows;
    if (i != thread)
      end.one(i / kRunRows, output, s[0]);
    else if (output < end.n)
      end.y[i / kRunRows * end.stride + output] = end.finished(output, s[0], old);
  }
  __syncthreads();  // the sums are the next tile's
}

// One run. Each warp but the last, which fetches, takes kTiles times 8 rows of a tile.
template <DType type, int kTiles, typename End>
__global__ __launch_bounds__((kSlabWarps + 1) * 32,
                             1) void few_blocks_kernel(const __grid_constant__ SlabMaps maps,
                                                       const __grid_constant__ SlabGrid grid,
                                                       const End end) {
  using Stage = SlabStage<type>;
  extern __shared__ __align__(1024) unsigned char shared[];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, warps = blockDim.x / 32 - 1;
  const uint32_t full = shared_address(shared) + grid.bars_at, empty = full + 8 * grid.stages;
  const int first_tile = static_cast<int>(blockIdx.x), tiles_apart = static_cast<int>(gridDim.x);
  if (threadIdx.x == 0) {
    prefetch(maps.values), prefetch(maps.scales);
    for (int i = 0; i < grid.stages; ++i) barrier_init(full + 8 * i, 1);
    for (int i = 0; i < grid.stages; ++i) barrier_init(empty + 8 * i, warps);
    barriers_are_ready();
  }
  __syncthreads();
  let_next_kernel_start();

  if (warp == warps) {
    if (lane != 0) return;
    SlabStream<type, End::kMatrices> stream{.values = shared_address(shared),
                                            .scales = shared_address(shared) + grid.scales_from,
                                            .full = full,
                                            .tile = first_tile,
                                            .tiles_apart = tiles_apart,
                                            .run = 0};
    for (int i = 0; i < grid.stages && !stream.ends(grid); ++i) stream.fetch(maps, grid, i);
    for (uint32_t parity = 0; !stream.ends(grid); parity ^= 1)
      for (int i = 0; i < grid.stages && !stream.ends(grid); ++i) {
        barrier_wait(empty + 8 * i, parity);
        stream.fetch(maps, grid, i);
      }
    return;
  }

  const int row = warp * kTiles * kEightRows;
  SlabReader<type> slabs{.values = shared + row * Stage::kPitch,
                         .scales = shared + grid.scales_from + row * grid.scale_pitch,
                         .full = full};
  const bf16_t* rows = grid.x;
  if (grid.norm.x) {
    auto* row = reinterpret_cast<bf16_t*>(shared + grid.staged_at + norm_bytes(grid.norm.width));
    norm_row(grid.norm, reinterpret_cast<float*>(shared + grid.staged_at),
             static_cast<int>(threadIdx.x), warps * kWarp,
             [&](int e, uint2 four) { *reinterpret_cast<uint2*>(row + e) = four; });
    named_sync(1, warps * kWarp);
    rows = row;
  } else {
    wait_for_kernels_before();
  }
  for (int tile = first_tile; tile < grid.tiles; tile += tiles_apart) {
    SlabDots<1> d = {};
    SlabRows<1> x(grid, rows, 0);
    for (int slab = 0; slab < grid.slabs(); ++slab) {
      const SlabPlace place = slabs.wait(grid, 0, slab);
      const int unit = slab * (kSlab / kSlabUnit);
      multiply_slab<type, kTiles, 1>(place, unit, grid.units - unit, x, d);
      __syncwarp();
      if (lane == 0) barrier_arrive(empty + 8 * slabs.stage);
      slabs.next(grid, slab + 1 == grid.slabs());
    }
    end_dots<kTiles>(end, (tile * grid.tile_rows + row) / End::kMatrices, grid.rows, d);
  }
}

template <DType type, int kEights>
__global__ __launch_bounds__(256, 2) void few_blocks_of_runs_kernel(
    const __grid_constant__ SlabMaps maps, const __grid_constant__ SlabGrid grid,
    const PlainEnd end) {
  using Stage = SlabStage<type>;
  extern __shared__ __align__(1024) unsigned char shared[];
  const int run = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int values_at = run * grid.stages * kRunRows * Stage::kRowBytes,
            scales_at = grid.scales_from + run * grid.scale_stages * kRunRows * grid.scale_pitch;
  const uint32_t base = shared_address(shared), full = base + grid.bars_at + run * grid.stages * 8;
  const int first_tile = static_cast<int>(blockIdx.x), tiles_apart = static_cast<int>(gridDim.x);
  SlabStream<type, 1> stream{.values = base + values_at,
                             .scales = base + scales_at,
                             .full = full,
                             .tile = first_tile,
                             .tiles_apart = tiles_apart,
                             .run = run};
  if (lane == 0) {
    if (run == 0) prefetch(maps.values), prefetch(maps.scales);
    for (int i = 0; i < grid.stages; ++i) barrier_init(full + 8 * i, 1);
    barriers_are_ready();
    for (int i = 0; i < grid.stages && !stream.ends(grid); ++i) stream.fetch(maps, grid, i);
  }
  __syncwarp();
  let_next_kernel_start();
  wait_for_kernels_before();

  SlabReader<type> slabs{.values = shared + values_at, .scales = shared + scales_at, .full = full};
  for (int tile = first_tile; tile < grid.tiles; tile += tiles_apart) {
    SlabDots<kEights> d = {};
    float old = 0;
    const int i = threadIdx.x, output = tile * kRunRows + i % kRunRows;
    if (end.accumulate && i < grid.rows * kRunRows && output < end.n)
      old = end.y[i / kRunRows * end.stride + output];
    SlabRows<kEights> x(grid, grid.x, run);
    for (int slab = 0; slab < grid.slabs(); ++slab) {
      const SlabPlace place = slabs.wait(grid, run, slab);
      const int unit = slab * (kSlab / kSlabUnit);
      multiply_slab<type, 2, kEights>(place, unit, grid.units - unit, x, d);
      __syncwarp();
      if (lane == 0 && !stream.ends(grid)) {
        stream.fetch(maps, grid, slabs.stage);
      }
      slabs.next(grid, slab + 1 == grid.slabs());
    }
    end_tile_of_runs<kEights>(end, tile, grid.rows, grid.runs, old,
                              reinterpret_cast<float*>(shared + grid.sums_at), d);
  }
}

// ---- On the host

// Warps leave some of a multiprocessor's memory to its cache, where rows of x lie.
constexpr int kRingBudget = 160 << 10;

template <DType type, int kTiles, typename Params>
void few_blocks_of_one_run(const Params& p, const Matrix& w, const Execution& on,
                           const RowNorm& norm) {
  const auto end = end_of(p);
  using End = decltype(end_of(p));
  const int processors = gpu_of(on).multiprocessors();
  const int outputs = end.padded * End::kMatrices, each = kTiles * kEightRows;
  const int warps = slab_warps(ceil_div(outputs, each), processors);
  SlabGrid grid =
      slab_grid<type>(p, w, 1, outputs, warps * each, static_cast<const bf16_t*>(p.x.data));
  set_stages<type>(grid, 1, 2, kRingBudget, 0);
  const SlabMaps maps = slab_maps(w, End::kMatrices, grid.tile_rows, SlabStage<type>::kPitch,
                                  SlabStage<type>::kIsSwizzled, grid.scale_pitch);
  const int blocks = std::min(grid.tiles, processors);
  grid.norm = norm;
  grid.staged_at = round_up(grid.bars_at + grid.stages * 16, 16);
  CHECK(!norm.x || norms_row(norm.width, warps * kWarp), "a norm of too few threads");
  launch("multiplying blocks", few_blocks_kernel<type, kTiles, End>,
         {.blocks = blocks,
          .threads = (warps + 1) * 32,
          .shared_bytes = grid.staged_at + (norm.x ? norm_bytes(norm.width) + norm.width * 2 : 0),
          .early = true},
         on, maps, grid, end);
}

template <DType type, int kEights>
void few_blocks_of_runs(const MatmulParams& p, const Execution& on) {
  const PlainEnd end = end_of(p);
  const int processors = gpu_of(on).multiprocessors(), runs = p.split_k;
  SlabGrid grid = slab_grid<type>(p, p.w, runs, end.padded, kRunRows, laid_out_rows(p, p.w.k, on));
  const int beside = std::min(16 / runs, ceil_div(grid.tiles, processors));  // blocks
  set_stages<type>(grid, runs, 1, kRingBudget / beside, runs * kEights * 8 * kRunRows * 4);
  const SlabMaps maps = slab_maps(p.w, 1, kRunRows, SlabStage<type>::kPitch,
                                  SlabStage<type>::kIsSwizzled, grid.scale_pitch);
  const int blocks = std::min(grid.tiles, processors * beside);
  launch("multiplying blocks", few_blocks_of_runs_kernel<type, kEights>,
         {.blocks = blocks,
          .threads = runs * 32,
          .shared_bytes = grid.bars_at + runs * grid.stages * 8,
          .early = true},
         on, maps, grid, end);
}

// Of few outputs a warp takes eight, so that there are twice as many warps.
inline bool is_thin(const Matrix& w, const Execution& on) {
  return w.count == 1 && w.n <= int64_t{kSlabWarps} * kEightRows * gpu_of(on).multiprocessors();
}
inline bool few_blocks_norm(const Matrix& w, const Execution& on) {
  const int each = (is_thin(w, on) ? 1 : 2) * kEightRows;
  const int warps = slab_warps(ceil_div(outputs_of(w), each), gpu_of(on).multiprocessors());
  return norms_row(w.k, warps * kWarp);
}

template <DType type>
void few_blocks_matmul(const MatmulParams& p, const Execution& on, const RowNorm& norm) {
  if (p.split_k > 1)
    p.rows <= 8 ? few_blocks_of_runs<type, 1>(p, on) : few_blocks_of_runs<type, 4>(p, on);
  else
    is_thin(p.w, on) ? few_blocks_of_one_run<type, 1>(p, p.w, on, norm)
                     : few_blocks_of_one_run<type, 2>(p, p.w, on, norm);
}

template <DType type>
void few_blocks_gated(const GatedMatmulParams& p, const Execution& on, const RowNorm& norm) {
  few_blocks_of_one_run<type, 2>(p, p.gate_up, on, norm);
}

}  // namespace invar::cuda
