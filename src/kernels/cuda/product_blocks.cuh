// Products of up to 8 rows by matrices of blocks, and in several runs of up to 32 (order `hopper`;
// others product_blocks_wide.cuh): the weights are read once, as they are stored, and become bf16
// in registers. A warp takes 16 outputs, or 8 pairs, of one run, or of few outputs 8: it unpacks
// units of 32 elements and multiplies them by mma.sync, whose bits are those of wgmma (mma.cuh).
// One run: the warps of a block take rows side by side of slabs that another warp has brought for
// all. Several runs: each warp has one, with a ring of its own, and they meet as in
// product_few_split_k.cu.
#pragma once

#include "base/check.h"
#include "kernels/cuda/block_slabs.cuh"
#include "kernels/cuda/blocks.h"
#include "kernels/cuda/mma.cuh"
#include "kernels/cuda/product_hopper.cuh"
#include "kernels/cuda/row_in_block.cuh"

namespace invar::cuda {

constexpr int kEightRows = 8;   // rows of weights whose lanes are apart
constexpr int kSlabWarps = 12;  // of a block of threads, most, that multiply
constexpr int kSwizzled = 128;  // bytes of a row of a box that TMA swizzles

// Rows of 16 bytes at a time of which no two of eight meet in a bank.
constexpr int odd_pitch(int bytes) {
  return ((bytes + 15) / 16 | 1) * 16;
}

// How the slabs of rows lie in shared memory. Values of whole lines of 128 bytes are swizzled;
// others have an odd pitch.
template <DType type>
struct SlabStage {
  using Shape = SlabShape<type>;
  static constexpr bool kIsSwizzled = Shape::kValues % kSwizzled == 0;
  static constexpr int kBoxes = kIsSwizzled ? Shape::kValues / kSwizzled : 1;
  static constexpr int kPitch = kIsSwizzled ? kSwizzled : odd_pitch(Shape::kValues);
  static constexpr int kRowBytes = kBoxes * kPitch;
};

// Where a warp's rows of a slab lie: those of each box, and their scales.
struct SlabPlace {
  const uint8_t* values;
  int box;  // bytes from one to the next
  const uint8_t* scales;
  int scale_pitch;
};

__device__ __forceinline__ uint32_t load_shared(uint32_t at) {
  uint32_t word;
  asm volatile("ld.shared.b32 %0, [%1];" : "=r"(word) : "r"(at));
  return word;
}

// One row's slab there, for lane j of a quad.
template <DType type>
struct SharedSlab : SlabBytes {
  using Stage = SlabStage<type>;
  using Shape = SlabShape<type>;
  static constexpr bool kAtOnce = Shape::kBlocks == 8 && Shape::kScales == 16;  // the scales
  // Of a swizzled row: the lane's word of chunk 0 of a line, in shared memory, and from one line to
  // the next. A line begins at a multiple of 128, so that a chunk's number is one more xor.
  uint32_t first;
  int box;
  uint32_t all_scales[4];

  __device__ __forceinline__ SharedSlab(const SlabPlace& place, int row, int lane)
      : SlabBytes{place.values + row * Stage::kPitch, place.scales + row * place.scale_pitch,
                  lane % 4},
        first(shared_address(values) + row % 8 * 16 + 4 * j),
        box(place.box) {
    if constexpr (kAtOnce) {
      const uint4 v = *reinterpret_cast<const uint4*>(this->scales);
      all_scales[0] = v.x, all_scales[1] = v.y, all_scales[2] = v.z, all_scales[3] = v.w;
    }
  }

  __device__ __forceinline__ uint32_t quad(int at) const {
    if constexpr (Stage::kIsSwizzled)
      return load_shared((first ^ at % kSwizzled) + at / kSwizzled * box);
    else
      return word(at + 4 * j);
  }
  __device__ __forceinline__ float half(int at) const {
    if constexpr (!kAtOnce) return SlabBytes::half(at);
    const uint32_t both = all_scales[at / 4];
    return __half2float(__ushort_as_half(static_cast<unsigned short>(at % 4 ? both >> 16 : both)));
  }
};

struct SlabMaps {
  CUtensorMap values, scales;
};

struct SlabGrid {
  const bf16_t* x;  // rows; of more than eight as SlabRows has them
  int64_t x_stride;
  int rows, runs, units;                  // units of a run
  int run_values, run_scales, scales_at;  // bytes
  int tiles, stages;
  int tile_rows;  // rows of weights in a stage
  // Scales come for `group` slabs at a time, into stages of their own.
  int group, scale_stages, scale_pitch;
  int scales_from, sums_at, bars_at;  // in shared memory
  RowNorm norm = {};  // of which the only row is, which then lies behind the barriers
  int staged_at = 0;

  __device__ __host__ int slabs() const { return (units + 7) / 8; }
};

// Where the scales of a slab begin in a row.
template <DType type>
__device__ __forceinline__ int scales_of(const SlabGrid& grid, int run, int slab) {
  return grid.scales_at + run * grid.run_scales + slab * SlabShape<type>::kScales;
}

// What is fetched: slab after slab of tile after tile.
template <DType type, int kMatrices>
struct SlabStream {
  using Stage = SlabStage<type>;
  using Shape = SlabShape<type>;
  uint32_t values, scales, full;  // of the stages
  int tile, tiles_apart, run;
  int slab = 0, in_group = 0, scale_stage = 0;

  // The next slab into a stage, and with the first one of a group its scales.
  __device__ __forceinline__ void fetch(const SlabMaps& maps, const SlabGrid& grid, int stage) {
    const uint32_t barrier = full + 8 * stage;
    const int box_bytes = grid.tile_rows * Stage::kPitch;
    const uint32_t to = values + stage * Stage::kBoxes * box_bytes;
    const int group_bytes = grid.tile_rows * grid.scale_pitch;
    const bool begins = in_group == 0;
    barrier_expect(barrier, Stage::kBoxes * box_bytes + (begins ? group_bytes : 0));
    const int at = run * grid.run_values + slab * Shape::kValues;
#pragma unroll
    for (int box = 0; box < Stage::kBoxes; ++box)
      load(to + box * box_bytes, maps.values, grid, at + box * kSwizzled, barrier);
    if (begins) {
      load(scales + scale_stage * group_bytes, maps.scales, grid,
           scales_of<type>(grid, run, slab) / 16 * 16, barrier);
      if (++scale_stage == grid.scale_stages) scale_stage = 0;
    }
    if (++in_group == grid.group) in_group = 0;
    if (++slab == grid.slabs()) slab = in_group = 0, tile += tiles_apart;
  }
  __device__ __forceinline__ bool ends(const SlabGrid& grid) const {
    return tile >= grid.tiles;
  }

 private:
  __device__ __forceinline__ void load(uint32_t to, const CUtensorMap& map, const SlabGrid& grid,
                                       int byte, uint32_t barrier) const {
    if constexpr (kMatrices == 1)
      load_box_once(to, map, byte / 2, tile * grid.tile_rows, 0, barrier);
    else
      load_box_once(to, map, byte / 2, 0, 0, tile * (grid.tile_rows / 16), barrier);
  }
};

// Where a reader of that is.
template <DType type>
struct SlabReader {
  const uint8_t *values, *scales;  // of the stages, at its first row
  uint32_t full;
  int stage = 0, scale_stage = 0, in_group = 0, group_at = 0;
  uint32_t parity = 0;

  __device__ __forceinline__ SlabPlace wait(const SlabGrid& grid, int run, int slab) {
    barrier_wait(full + 8 * stage, parity);
    const int at = scales_of<type>(grid, run, slab);
    if (in_group == 0) group_at = at / 16 * 16;
    return {values + stage * grid.tile_rows * SlabStage<type>::kRowBytes,
            grid.tile_rows * SlabStage<type>::kPitch,
            scales + scale_stage * grid.tile_rows * grid.scale_pitch + (at - group_at),
            grid.scale_pitch};
  }
  __device__ __forceinline__ void next(const SlabGrid& grid, bool is_last) {
    if (++stage == grid.stages) stage = 0, parity ^= 1;
    if (++in_group == grid.group || is_last) {
      in_group = 0;
      if (++scale_stage == grid.scale_stages) scale_stage = 0;
    }
  }
};

// The units of a run's rows of x, as steps take them, so many units ahead of where they are needed:
// the first of a multiprocessor's warps to read one waits for the L2 cache.
template <int kEights>
class SlabRows {
 public:
  static constexpr int kAhead = 8 / kEights;

  __device__ __forceinline__ SlabRows(const SlabGrid& grid, const bf16_t* x, int run)
      : units_(grid.units), eights_((grid.rows + 7) / 8) {
    const int lane = threadIdx.x % 32, first = run * grid.units;
    if constexpr (kEights == 1) {
      const int row = min(lane / 4, grid.rows - 1);
      at_ =
          reinterpret_cast<const char*>(x + row * grid.x_stride + first * kSlabUnit) + lane % 4 * 8;
    } else {
      at_ = reinterpret_cast<const char*>(x) + (first * eights_ * 32 + lane) * 16;
    }
#pragma unroll
    for (int u = 0; u < kAhead; ++u) load(u, u);
  }

  __device__ __forceinline__ int eights() const {
    return eights_;
  }
  // Step s of eight b of the unit whose place among those ahead is `place`.
  __device__ __forceinline__ StepRows rows(int place, int s, int b) const {
    const uint2 pairs = ahead_[place][b][s];
    return {{pairs.x, pairs.y}};
  }
  // Fills a place with unit `unit`, or the last.
  __device__ __forceinline__ void load(int place, int unit) {
    unit = min(unit, units_ - 1);
    if constexpr (kEights == 1) {
      const auto* from = reinterpret_cast<const uint2*>(at_ + static_cast<unsigned>(unit) *
                                                                  (kSlabUnit * sizeof(bf16_t)));
      ahead_[place][0][0] = from[0];
      ahead_[place][0][1] = from[4];
    } else {
#pragma unroll
      for (int b = 0; b < kEights; ++b)
        if (b < eights_) {
          keep(place, b, reinterpret_cast<const uint4*>(at_)[(unit * eights_ + b) * 32]);
        }
    }
  }

 private:
  __device__ __forceinline__ void keep(int place, int b, uint4 both) {
    ahead_[place][b][0] = make_uint2(both.x, both.y);
    ahead_[place][b][1] = make_uint2(both.z, both.w);
  }

  const char* at_;
  int units_, eights_;
  uint2 ahead_[kAhead][kEights][2];
};

// More than eight rows of x as a warp reads them: [unit][eight rows][lane] of four elements of each
// half of the unit.
static __global__ void lay_out_rows_kernel(const bf16_t* x, int64_t stride, int rows, int units,
                                           uint4* out) {
  let_next_kernel_start();
  wait_for_kernels_before();
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x), lane = i % 32;
  const int eights = (rows + 7) / 8, unit = i / 32 / eights;
  if (unit >= units) return;
  const int row = min(i / 32 % eights * 8 + lane / 4, rows - 1);
  const uint2* from =
      reinterpret_cast<const uint2*>(x + row * stride + unit * kSlabUnit) + lane % 4;
  const uint2 first = from[0], second = from[4];
  out[i] = {first.x, first.y, second.x, second.y};
}

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

inline SlabMaps slab_maps(const Matrix& w, int matrices, int rows, int pitch, bool is_swizzled,
                          int scale_pitch) {
  const auto row = static_cast<uint64_t>(w.unit_bytes());
  const auto map = [&](int bytes, bool swizzled) {
    const auto inner = static_cast<uint32_t>(bytes / 2);
    if (matrices == 1)
      return tensor_map<3>(w.data,
                           {.sizes = {row / 2, static_cast<uint64_t>(w.n), 1},
                            .strides = {row, row * static_cast<uint64_t>(w.all_rows())},
                            .box = {inner, static_cast<uint32_t>(rows), 1}},
                           swizzled);
    const uint64_t blocks = static_cast<uint64_t>(w.all_rows()) / kBlockOutputs;
    return tensor_map<4>(
        w.data,
        {.sizes = {row / 2, kBlockOutputs, 2, blocks},
         .strides = {row, blocks * kBlockOutputs * row, kBlockOutputs * row},
         .box = {inner, kBlockOutputs, 2, static_cast<uint32_t>(rows / (2 * kBlockOutputs))}},
        swizzled);
  };
  return {map(pitch, is_swizzled), map(scale_pitch, false)};
}

// Warps of a block: those that keep all multiprocessors busy to the end.
inline int slab_warps(int tiles, int multiprocessors) {
  int best = kSlabWarps, best_cost = 0;
  for (int warps = 1; warps <= kSlabWarps; ++warps) {
    const int cost = ceil_div(tiles, warps * multiprocessors) * (warps + 2);
    if (best_cost == 0 || cost <= best_cost) best = warps, best_cost = cost;
  }
  return best;
}

// x as SlabRows reads it: where more than eight rows are laid out in the scratch memory, there.
template <typename Params>
const bf16_t* laid_out_rows(const Params& p, int64_t k, const Execution& on) {
  constexpr int kThreads = 256;
  const auto* x = static_cast<const bf16_t*>(p.x.data);
  if (p.rows <= 8) return x;
  CHECK(p.scratch, "products of blocks need scratch memory");
  const int units = static_cast<int>(k / kSlabUnit), rows = static_cast<int>(p.rows);
  const int threads = units * ((rows + 7) / 8) * 32;
  launch("laying out rows", lay_out_rows_kernel,
         {.blocks = ceil_div(threads, kThreads),
          .threads = kThreads,
          .shared_bytes = 0,
          .early = true},
         on, x, p.x.stride, rows, units, static_cast<uint4*>(p.scratch));
  return static_cast<const bf16_t*>(p.scratch);
}

// Scales of a slab come with those of others of its run: as many as lie in about 128 bytes.
template <DType type>
void set_scale_groups(SlabGrid& grid) {
  constexpr int kMost = 128 / SlabShape<type>::kScales > 0 ? 128 / SlabShape<type>::kScales : 1;
  constexpr bool kIsAligned = SlabShape<type>::kScales % 16 == 0;
  const int slabs = grid.slabs(), groups = ceil_div(slabs, kMost);
  grid.group = ceil_div(slabs, groups);
  grid.scale_pitch = odd_pitch(grid.group * SlabShape<type>::kScales + (kIsAligned ? 0 : 14));
}
// Stages of them: a group is there until its last slab has been read, when another one is as far
// ahead as the ring is long.
inline int scale_stages_for(const SlabGrid& grid, int stages) {
  const int last = grid.slabs() - (ceil_div(grid.slabs(), grid.group) - 1) * grid.group;
  return ceil_div(stages - 1, last) + 1;
}

template <DType type, typename Params>
SlabGrid slab_grid(const Params& p, const Matrix& w, int runs, int outputs, int tile_rows,
                   const bf16_t* x) {
  const int run = static_cast<int>(w.k / runs), block = storage_of(type).block;
  SlabGrid grid{.x = x,
                .x_stride = p.x.stride,
                .rows = static_cast<int>(p.rows),
                .runs = runs,
                .units = run / kSlabUnit,
                .run_values = run / block * storage_of(type).value_bytes,
                .run_scales = run / block * storage_of(type).scale_bytes,
                .scales_at = static_cast<int>(w.scales_at()),
                .tiles = ceil_div(outputs, tile_rows),
                .tile_rows = tile_rows};
  set_scale_groups<type>(grid);
  return grid;
}
// As many stages as `budget` holds of `rings`, which have so many barriers for a stage; then where
// things lie, `sums` bytes of sums among them.
template <DType type>
void set_stages(SlabGrid& grid, int rings, int barriers, int budget, int sums) {
  const int slab = grid.tile_rows * SlabStage<type>::kRowBytes,
            scales = grid.tile_rows * grid.scale_pitch;
  const auto bytes_of = [&](int stages) {
    return rings * (stages * (slab + 8 * barriers) + scale_stages_for(grid, stages) * scales);
  };
  constexpr int kMostStages = 16;
  grid.stages = 2;
  while (grid.stages < kMostStages && bytes_of(grid.stages + 1) + sums <= budget) ++grid.stages;
  grid.scale_stages = scale_stages_for(grid, grid.stages);
  grid.scales_from = rings * grid.stages * slab;
  grid.sums_at = grid.scales_from + rings * grid.scale_stages * scales;
  grid.bars_at = grid.sums_at + sums;
}

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
