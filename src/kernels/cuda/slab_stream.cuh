// Slabs of matrices of blocks on their way through shared memory: how one warp fetches them and the
// others read them, and their rows of x (product_blocks.cuh).
#pragma once

#include "kernels/cuda/block_slabs.cuh"
#include "kernels/cuda/mma.cuh"
#include "kernels/cuda/product_hopper.cuh"

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
  // The lane's word of chunk 0 of a swizzled row's line, in shared memory, and the step from one
  // line to the next. A line begins at a multiple of 128, so that a chunk's number is one more xor.
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

// The slabs that a block fetches, one after the other, tile after tile.
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

}  // namespace invar::cuda
