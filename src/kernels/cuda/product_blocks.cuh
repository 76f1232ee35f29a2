// Products of up to 32 rows by matrices of blocks (order `hopper`): the weights are read once, as
// they are stored, and become bf16 in registers. A warp takes 16 outputs, or 8 pairs, of one run:
// it streams their slabs through a ring of its own, unpacks units of 32 elements and multiplies
// them by mma.sync, whose bits are those of wgmma (mma.cuh). Runs meet as in
// product_few_split_k.cu.
#pragma once

#include "base/check.h"
#include "kernels/cuda/block_slabs.cuh"
#include "kernels/cuda/blocks.h"
#include "kernels/cuda/mma.cuh"
#include "kernels/cuda/product_hopper.cuh"

namespace invar::cuda {

constexpr int kBlockRows = 16;  // rows of weights that a warp takes
constexpr int kSlabWarps = 12;  // of a block of threads, most
constexpr int kSwizzled = 128;  // bytes of a row of a box that TMA swizzles

// How the slabs of 16 rows lie in shared memory. Values of whole lines of 128 bytes are swizzled;
// others have a pitch of an odd number of 16 bytes: so no two rows of eight meet in a bank.
template <DType type>
struct SlabStage {
  using Shape = SlabShape<type>;
  static constexpr bool kIsSwizzled = Shape::kValues % kSwizzled == 0;
  static constexpr int kBoxes = kIsSwizzled ? Shape::kValues / kSwizzled : 1;
  static constexpr int kOdd = Shape::kValues / 16 % 2 ? Shape::kValues : Shape::kValues + 16;
  static constexpr int kPitch = kIsSwizzled ? kSwizzled : kOdd;
  // TMA begins at multiples of 16 bytes: other scales lie somewhere in their rows.
  static constexpr bool kScalesAreAligned = Shape::kScales % 16 == 0;
  static constexpr int kScalePitch = kScalesAreAligned ? Shape::kScales : 48;
  static constexpr int kBox = kBlockRows * kPitch;
  static constexpr int kValues = kBoxes * kBox, kScales = kBlockRows * kScalePitch;
};

// One row's slab there, for lane j of a quad.
template <DType type>
struct SharedSlab : SlabBytes {
  using Stage = SlabStage<type>;
  int flip;  // of the 16-byte chunks of a swizzled row

  __device__ __forceinline__ SharedSlab(const uint8_t* values, const uint8_t* scales, int row,
                                        int lane)
      : SlabBytes{values + row * Stage::kPitch, scales + row * Stage::kScalePitch, lane % 4},
        flip(row % 8 * 16) {}

  __device__ __forceinline__ uint32_t quad(int at) const {
    if constexpr (Stage::kIsSwizzled)
      return word(at / kSwizzled * Stage::kBox + (at % kSwizzled ^ flip) + 4 * j);
    else
      return word(at + 4 * j);
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
  int scales_from, sums_at, bars_at;  // in shared memory

  __device__ int slabs() const { return (units + 7) / 8; }
};

// Where the scales of a slab begin in a row.
template <DType type>
__device__ __forceinline__ int scales_of(const SlabGrid& grid, int run, int slab) {
  return grid.scales_at + run * grid.run_scales + slab * SlabShape<type>::kScales;
}

// What a warp fetches: slab after slab of tile after tile.
template <DType type, int kMatrices>
struct SlabStream {
  using Stage = SlabStage<type>;
  using Shape = SlabShape<type>;
  uint32_t values, scales, full;  // of this warp's stages
  int tile, tiles_apart, run;
  int slab = 0;

  // The next slab into a stage.
  __device__ __forceinline__ void fetch(const SlabMaps& maps, const SlabGrid& grid, int stage) {
    const uint32_t barrier = full + 8 * stage, to = values + stage * Stage::kValues;
    barrier_expect(barrier, Stage::kValues + Stage::kScales);
    const int at = run * grid.run_values + slab * Shape::kValues;
#pragma unroll
    for (int box = 0; box < Stage::kBoxes; ++box)
      load(to + box * Stage::kBox, maps.values, at + box * kSwizzled, barrier);
    load(scales + stage * Stage::kScales, maps.scales, scales_of<type>(grid, run, slab) / 16 * 16,
         barrier);
    if (++slab == grid.slabs()) slab = 0, tile += tiles_apart;
  }

 private:
  __device__ __forceinline__ void load(uint32_t to, const CUtensorMap& map, int byte,
                                       uint32_t barrier) const {
    if constexpr (kMatrices == 1)
      load_box(to, map, byte / 2, tile * kBlockRows, 0, barrier);
    else
      load_box(to, map, byte / 2, 0, 0, tile, barrier);
  }
};

// The units of a run's rows of x, as steps take them, so many units ahead of where they are needed:
// the first of a multiprocessor's warps to read one waits for the L2 cache.
template <int kEights>
class SlabRows {
 public:
  static constexpr int kAhead = 8 / kEights;

  __device__ __forceinline__ SlabRows(const SlabGrid& grid, int run)
      : units_(grid.units), eights_((grid.rows + 7) / 8) {
    const int lane = threadIdx.x % 32, first = run * grid.units;
    if constexpr (kEights == 1) {
      const int row = min(lane / 4, grid.rows - 1);
      at_ = reinterpret_cast<const uint2*>(grid.x + row * grid.x_stride + first * kSlabUnit) +
            lane % 4;
    } else {
      at_ = reinterpret_cast<const uint2*>(grid.x) + (first * eights_ * 32 + lane) * 2;
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
      ahead_[place][0][0] = at_[unit * 8];
      ahead_[place][0][1] = at_[unit * 8 + 4];
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

  const uint2* at_;
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

// A slab of 16 rows of weights, from unit `first` of the run on: all of it, or as many units as the
// run has left.
template <DType type, int kEights, bool kIsWhole>
__device__ __forceinline__ void multiply_slab(const uint8_t* values, const uint8_t* scales,
                                              int first, int units, SlabRows<kEights>& x,
                                              float (&d)[kEights][4]) {
  const int lane = threadIdx.x % 32;
  using Row = Slab<type, SharedSlab<type>>;
  const Row low(SharedSlab<type>(values, scales, lane / 4, lane)),
      high(SharedSlab<type>(values, scales, lane / 4 + 8, lane));
#pragma unroll
  for (int u = 0; u < kSlab / kSlabUnit; ++u) {
    if (!kIsWhole && u >= units) break;
    SlabEights upper, lower;
    low.unit(u, upper);
    high.unit(u, lower);
    constexpr int kAhead = SlabRows<kEights>::kAhead;
#pragma unroll
    for (int s = 0; s < 2; ++s)
#pragma unroll
      for (int b = 0; b < kEights; ++b)
        if (b < x.eights())
          step(d[b], {{upper[s][0], lower[s][0], upper[s][1], lower[s][1]}},
               x.rows(u % kAhead, s, b));
    x.load(u % kAhead, first + u + kAhead);
  }
}

// The dots of a tile as they end, of one run.
template <int kEights, typename End>
__device__ __forceinline__ void end_tile(const End& end, int tile, int rows,
                                         const float (&d)[kEights][4]) {
  const int lane = threadIdx.x % 32;
  const int first = tile * (kBlockRows / End::kMatrices) + lane / 4, t = lane % 4 * 2;
  float flat[kEights * 4];
#pragma unroll
  for (int i = 0; i < kEights * 4; ++i) flat[i] = d[i / 4][i % 4];
  if constexpr (End::kMatrices == 2) {
    end.template column<kEights * 8>(flat, t, first, rows);
  } else {
#pragma unroll
    for (int i = 0; i < kEights * 4; ++i) {
      const int row = i / 4 * 8 + t + i % 2;
      if (row < rows) end.one(row, first + i / 2 % 2 * 8, flat[i]);
    }
  }
}

// The same of several runs, a warp each: their binary tree (numerics 2). By all threads.
template <int kEights>
__device__ __forceinline__ void end_tile_of_runs(const PlainEnd& end, int tile, int rows, int runs,
                                                 float* sums, const float (&d)[kEights][4]) {
  const int lane = threadIdx.x % 32, run = threadIdx.x / 32;
  constexpr int kRun = kEights * 8 * kBlockRows;  // [run][row][output]
#pragma unroll
  for (int i = 0; i < kEights * 4; ++i) {
    const int row = i / 4 * 8 + lane % 4 * 2 + i % 2, output = i / 2 % 2 * 8 + lane / 4;
    sums[run * kRun + row * kBlockRows + output] = d[i / 4][i % 4];
  }
  __syncthreads();
  for (int i = threadIdx.x; i < rows * kBlockRows; i += blockDim.x) {
    float s[kMostSplitK];
#pragma unroll
    for (int r = 0; r < kMostSplitK; ++r) s[r] = r < runs ? sums[r * kRun + i] : 0.0f;
#pragma unroll
    for (int apart = 1; apart < kMostSplitK; apart *= 2)
#pragma unroll
      for (int r = 0; r < kMostSplitK; r += 2 * apart)
        if (apart < runs) s[r] = s[r] + s[r + apart];
    end.one(i / kBlockRows, tile * kBlockRows + i % kBlockRows, s[0]);
  }
  __syncthreads();  // the sums are the next tile's
}

template <DType type, int kEights, bool kHasRuns, typename End>
__global__ __launch_bounds__(kHasRuns ? 256 : kSlabWarps * 32,
                             kHasRuns
                                 ? 2
                                 : 1) void few_blocks_kernel(const __grid_constant__ SlabMaps maps,
                                                             const __grid_constant__ SlabGrid grid,
                                                             const End end) {
  using Stage = SlabStage<type>;
  extern __shared__ __align__(1024) unsigned char shared[];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int bars = grid.bars_at + warp * grid.stages * 8, run = kHasRuns ? warp : 0;
  const uint8_t* values = shared + warp * grid.stages * Stage::kValues;
  const uint8_t* scales = shared + grid.scales_from + warp * grid.stages * Stage::kScales;
  const uint32_t full = shared_address(shared) + bars;
  const int at_once = kHasRuns ? 1 : static_cast<int>(blockDim.x) / 32;  // tiles
  const int first_tile = static_cast<int>(blockIdx.x) * at_once + (kHasRuns ? 0 : warp),
            tiles_apart = static_cast<int>(gridDim.x) * at_once;
  SlabStream<type, End::kMatrices> stream{.values = shared_address(values),
                                          .scales = shared_address(scales),
                                          .full = full,
                                          .tile = first_tile,
                                          .tiles_apart = tiles_apart,
                                          .run = run};
  if (lane == 0) {
    if (warp == 0) prefetch(maps.values), prefetch(maps.scales);
    for (int i = 0; i < grid.stages; ++i) barrier_init(full + 8 * i, 1);
    barriers_are_ready();
    for (int i = 0; i < grid.stages && stream.tile < grid.tiles; ++i) stream.fetch(maps, grid, i);
  }
  __syncwarp();
  let_next_kernel_start();
  wait_for_kernels_before();

  int stage = 0;
  uint32_t parity = 0;
  for (int tile = first_tile; tile < grid.tiles; tile += tiles_apart) {
    float d[kEights][4] = {};
    SlabRows<kEights> x(grid, run);
    for (int unit = 0; unit < grid.units; unit += kSlab / kSlabUnit) {
      barrier_wait(full + 8 * stage, parity);
      const uint8_t *v = values + stage * Stage::kValues, *s = scales + stage * Stage::kScales;
      if constexpr (!Stage::kScalesAreAligned)
        s += scales_of<type>(grid, run, unit / (kSlab / kSlabUnit)) % 16;
      const int left = grid.units - unit;
      if (SlabShape<type>::kBlocks == 1 || left >= kSlab / kSlabUnit)
        multiply_slab<type, kEights, true>(v, s, unit, left, x, d);
      else
        multiply_slab<type, kEights, false>(v, s, unit, left, x, d);
      __syncwarp();
      if (lane == 0 && stream.tile < grid.tiles) stream.fetch(maps, grid, stage);
      if (++stage == grid.stages) stage = 0, parity ^= 1;
    }
    if constexpr (kHasRuns)
      end_tile_of_runs(end, tile, grid.rows, grid.runs,
                       reinterpret_cast<float*>(shared + grid.sums_at), d);
    else
      end_tile(end, tile, grid.rows, d);
  }
}

// ---- On the host

inline SlabMaps slab_maps(const Matrix& w, int matrices, int pitch, bool is_swizzled,
                          int scale_pitch) {
  const auto row = static_cast<uint64_t>(w.unit_bytes());
  const auto map = [&](int bytes, bool swizzled) {
    const auto inner = static_cast<uint32_t>(bytes / 2);
    if (matrices == 1)
      return tensor_map<3>(w.data,
                           {.sizes = {row / 2, static_cast<uint64_t>(w.n), 1},
                            .strides = {row, row * static_cast<uint64_t>(w.all_rows())},
                            .box = {inner, kBlockRows, 1}},
                           swizzled);
    const uint64_t blocks = static_cast<uint64_t>(w.all_rows()) / kBlockOutputs;
    return tensor_map<4>(w.data,
                         {.sizes = {row / 2, kBlockOutputs, 2, blocks},
                          .strides = {row, blocks * kBlockOutputs * row, kBlockOutputs * row},
                          .box = {inner, kBlockOutputs, 2, 1}},
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

template <DType type, int kEights, bool kHasRuns, typename Params>
void launch_few_blocks(const Params& p, const Matrix& w, int runs, const Execution& on) {
  using Stage = SlabStage<type>;
  const auto end = end_of(p);
  using End = decltype(end_of(p));
  const int processors = gpu_of(on).multiprocessors();
  const int run = static_cast<int>(w.k / runs), block = storage_of(type).block;
  SlabGrid grid{.x = laid_out_rows(p, w.k, on),
                .x_stride = p.x.stride,
                .rows = static_cast<int>(p.rows),
                .runs = runs,
                .units = run / kSlabUnit,
                .run_values = run / block * storage_of(type).value_bytes,
                .run_scales = run / block * storage_of(type).scale_bytes,
                .scales_at = static_cast<int>(w.scales_at()),
                .tiles = ceil_div(int64_t{end.padded} * End::kMatrices, kBlockRows)};
  const int warps = kHasRuns ? runs : slab_warps(grid.tiles, processors);
  const int at_once = kHasRuns ? 1 : warps;  // tiles
  // Blocks side by side on a multiprocessor, which leave some of its memory to its cache.
  const int beside = kHasRuns ? std::min(16 / runs, ceil_div(grid.tiles, processors)) : 1;
  constexpr int kBudget = 160 << 10;
  const int sums = kHasRuns ? runs * kEights * 8 * kBlockRows * 4 : 0;
  const int room = (kBudget / beside - sums) / (warps * (Stage::kValues + Stage::kScales + 8));
  grid.stages = std::clamp(room, 2, 8);
  grid.scales_from = warps * grid.stages * Stage::kValues;
  grid.sums_at = grid.scales_from + warps * grid.stages * Stage::kScales;
  grid.bars_at = grid.sums_at + sums;
  const SlabMaps maps =
      slab_maps(w, End::kMatrices, Stage::kPitch, Stage::kIsSwizzled, Stage::kScalePitch);
  const LaunchShape shape = {.blocks = std::min(ceil_div(grid.tiles, at_once), processors * beside),
                             .threads = warps * 32,
                             .shared_bytes = grid.bars_at + warps * grid.stages * 8,
                             .early = true};
  launch("multiplying blocks", few_blocks_kernel<type, kEights, kHasRuns, End>, shape, on, maps,
         grid, end);
}

template <DType type>
void few_blocks_matmul(const MatmulParams& p, const Execution& on) {
  const bool few = p.rows <= 8;
  if (p.split_k == 1)
    few ? launch_few_blocks<type, 1, false>(p, p.w, 1, on)
        : launch_few_blocks<type, 4, false>(p, p.w, 1, on);
  else
    few ? launch_few_blocks<type, 1, true>(p, p.w, p.split_k, on)
        : launch_few_blocks<type, 4, true>(p, p.w, p.split_k, on);
}

template <DType type>
void few_blocks_gated(const GatedMatmulParams& p, const Execution& on) {
  p.rows <= 8 ? launch_few_blocks<type, 1, false>(p, p.gate_up, 1, on)
              : launch_few_blocks<type, 4, false>(p, p.gate_up, 1, on);
}

}  // namespace invar::cuda
