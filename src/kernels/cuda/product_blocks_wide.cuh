// Products of 9 to 64 rows by matrices of blocks in one run (order `hopper`), in one pass over the
// weights. As product_blocks.cuh, but a warpgroup unpacks 64 rows of weights into the registers of
// its tensor-core instruction (wgmma_unpacked.cuh), whose other side, rows of x, lies in shared
// memory.
#pragma once

#include "kernels/cuda/product_blocks.cuh"
#include "kernels/cuda/wgmma_unpacked.cuh"

namespace invar::cuda {

constexpr int kMaxWideRows = 192;  // of weights, of a block
constexpr int kSliceUnits = kSlice / kSlabUnit, kSlabSlices = kSlab / kSlice;

// A row's slab as the instruction's registers have a step: elements 2 j, 2 j + 1, 2 j + 8 and 2 j +
// 9 of 16.
template <DType type>
struct StepSlab : SharedSlab<type> {
  using Base = SharedSlab<type>;

  __device__ __forceinline__ StepSlab(const SlabPlace& place, int row, int lane)
      : Base(place, row, lane) {
    this->first -= 4 * this->j - this->j / 2 * 4;
  }
  __device__ __forceinline__ uint32_t quad(int at) const {
    uint32_t low, high;
    if constexpr (Base::Stage::kIsSwizzled) {
      const uint32_t from = (this->first ^ at % kSwizzled) + at / kSwizzled * this->box;
      low = load_shared(from), high = load_shared(from + 8);
    } else {
      low = this->word(at + this->j / 2 * 4), high = this->word(at + this->j / 2 * 4 + 8);
    }
    return __byte_perm(low, high, this->j % 2 ? 0x7632 : 0x5410);
  }
  __device__ __forceinline__ uint32_t fifths(uint32_t word) const {
    return (word >> 2 * this->j & 0x00030003) | (word >> (2 * this->j + 6) & 0x000c000c);
  }
};

struct WideGrid : SlabGrid {
  int groups;            // warpgroups that multiply
  int x_stages, x_from;  // of slices of x
  int slices;
};

// The registers of a slice's steps.
using SliceSteps = uint32_t[kSlice / 16][4];

template <DType type>
__device__ __forceinline__ void unpack_slice(const Slab<type, StepSlab<type>>& low,
                                             const Slab<type, StepSlab<type>>& high, int slice,
                                             int units, SliceSteps& to) {
#pragma unroll
  for (int u = 0; u < kSliceUnits; ++u) {
    SlabEights upper = {}, lower = {};
    if (u < units) {
      low.unit(slice * kSliceUnits + u, upper);
      high.unit(slice * kSliceUnits + u, lower);
    }
#pragma unroll
    for (int s = 0; s < 2; ++s) {
      to[u * 2 + s][0] = upper[s][0], to[u * 2 + s][1] = lower[s][0];
      to[u * 2 + s][2] = upper[s][1], to[u * 2 + s][3] = lower[s][1];
    }
  }
}

// What the thread that fetches does.
template <DType type, int kTokens, int kMatrices>
__device__ __forceinline__ void fetch_wide(const SlabMaps& maps, const CUtensorMap& x,
                                           const WideGrid& grid, uint32_t base) {
  const uint32_t full = base + grid.bars_at, empty = full + 8 * grid.stages;
  Ring of_x{empty + 8 * grid.stages, empty + 8 * grid.stages + 8 * grid.x_stages, grid.x_stages};
  SlabStream<type, kMatrices> stream{.values = base,
                                     .scales = base + grid.scales_from,
                                     .full = full,
                                     .tile = static_cast<int>(blockIdx.x),
                                     .tiles_apart = static_cast<int>(gridDim.x),
                                     .run = 0};
  const int tiles =
      (grid.tiles - static_cast<int>(blockIdx.x) - 1) / static_cast<int>(gridDim.x) + 1;
  const int all = tiles * grid.slices, slabs = tiles * grid.slabs();
  const auto fetch_x = [&](int slice) {
    barrier_wait(of_x.empty_now(), of_x.parity ^ 1);
    barrier_expect(of_x.full_now(), grid.rows * 128);
    load_box(base + grid.x_from + of_x.stage * kTokens * 128, x, slice % grid.slices * kSlice, 0, 0,
             of_x.full_now());
    of_x.next();
  };
  Ring of_slabs{full, empty, grid.stages};
  const auto fetch_slab = [&] {
    barrier_wait(of_slabs.empty_now(), of_slabs.parity ^ 1);
    stream.fetch(maps, grid, of_slabs.stage);
    of_slabs.next();
  };
  int slab = 0, slice = 0;
  for (; slab < slabs && slab < grid.stages; ++slab) fetch_slab();
  wait_for_kernels_before();
  // Slices of x lead by a slab, weights by their stages.
  for (int i = 0; slice < all; ++i) {
    for (; slice < all && slice < (i + 2) * kSlabSlices; ++slice) fetch_x(slice);
    if (slab < slabs) fetch_slab(), ++slab;
  }
}

template <DType type, int kTokens, typename End>
__global__ __launch_bounds__(kMaxWideRows / 64 * 128 + 32,
                             1) void wide_blocks_kernel(const __grid_constant__ SlabMaps maps,
                                                        const __grid_constant__ CUtensorMap x,
                                                        const __grid_constant__ WideGrid grid,
                                                        const End end) {
  using Stage = SlabStage<type>;
  extern __shared__ __align__(1024) unsigned char shared[];
  const uint32_t base = shared_address(shared), full = base + grid.bars_at,
                 empty = full + 8 * grid.stages;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, warps = 4 * grid.groups;
  Ring of_x{empty + 8 * grid.stages, empty + 8 * grid.stages + 8 * grid.x_stages, grid.x_stages};
  if (threadIdx.x == 0) {
    prefetch(maps.values), prefetch(maps.scales), prefetch(x);
    Ring{full, empty, grid.stages}.init(warps);
    of_x.init(warps);
  }
  __syncthreads();
  let_next_kernel_start();
  if (warp == warps) {
    if (lane == 0) fetch_wide<type, kTokens, End::kMatrices>(maps, x, grid, base);
    return;
  }

  const int row = warp * 16;
  const bool has_rows = row < grid.tile_rows;
  SlabReader<type> slabs{.values = shared + row * Stage::kPitch,
                         .scales = shared + grid.scales_from + row * grid.scale_pitch,
                         .full = full};
  for (int tile = static_cast<int>(blockIdx.x); tile < grid.tiles;
       tile += static_cast<int>(gridDim.x)) {
    float d[kTokens / 2];
    SliceSteps steps[2] = {};
    uint32_t of_previous = 0;  // the barrier of x's stage that steps under way read
    for (int slab = 0; slab < grid.slabs(); ++slab) {
      const SlabPlace place = slabs.wait(grid, 0, slab);
      using Row = Slab<type, StepSlab<type>>;
      const Row low(StepSlab<type>(place, lane / 4, lane)),
          high(StepSlab<type>(place, 8 + lane / 4, lane));
      const int units = grid.units - slab * (kSlab / kSlabUnit);
#pragma unroll
      for (int slice = 0; slice < kSlabSlices; ++slice) {
        if (slice * kSliceUnits >= units) break;
        // Registers are unpacked into while the steps before take the other half of them.
        SliceSteps& now = steps[slice % 2];
        if (has_rows) unpack_slice<type>(low, high, slice, units - slice * kSliceUnits, now);
        steps_wait<0>();
        if (lane == 0 && of_previous) barrier_arrive(of_previous);
        barrier_wait(of_x.full_now(), of_x.parity);
        const uint64_t b = describe_rows(base + grid.x_from + of_x.stage * kTokens * 128);
        steps_begin();
#pragma unroll
        for (int i = 0; i < kSlice / 16; ++i)
          unpacked_step<kTokens>(d, now[i], b + 2 * i, (slab | slice | i) != 0);
        steps_commit();
        of_previous = of_x.empty_now();
        of_x.next();
      }
      __syncwarp();
      if (lane == 0) barrier_arrive(empty + 8 * slabs.stage);
      slabs.next(grid, slab + 1 == grid.slabs());
    }
    steps_wait<0>();
    if (lane == 0) barrier_arrive(of_previous);
    wait_for_kernels_before();
    if (!has_rows) continue;
    const int first = (tile * grid.tile_rows + row) / End::kMatrices;
    if constexpr (End::kMatrices == 2) {
      end.template column<kTokens>(d, lane % 4 * 2, first + lane / 4, grid.rows);
    } else {
#pragma unroll
      for (int i = 0; i < kTokens / 2; ++i) {
        const int t = i / 4 * 8 + lane % 4 * 2 + i % 2;
        if (t < grid.rows) end.one(t, first + i / 2 % 2 * 8 + lane / 4, d[i]);
      }
    }
  }
}

// ---- On the host

// The width that keeps all multiprocessors busy to the end.
inline int wide_width(int64_t outputs, int blocks) {
  int best = 16;
  int64_t best_cost = 0;
  for (int width = 16; width <= kMaxWideRows; width += 16) {
    const int64_t cost = int64_t{ceil_div(ceil_div(outputs, width), blocks)} * (width + 2);
    if (best_cost == 0 || cost <= best_cost) best = width, best_cost = cost;
  }
  return best;
}

template <DType type, int kTokens, typename Params>
void wide_blocks(const Params& p, const Matrix& w, const Execution& on) {
  constexpr int kXStages = 8, kXBytes = kTokens * 128;
  const auto end = end_of(p);
  using End = decltype(end_of(p));
  const int processors = gpu_of(on).multiprocessors();
  const int outputs = end.padded * End::kMatrices, width = wide_width(outputs, processors);
  WideGrid grid{slab_grid<type>(p, w, 1, outputs, width, static_cast<const bf16_t*>(p.x.data))};
  grid.groups = ceil_div(width, 64);
  grid.slices = ceil_div(grid.units, kSliceUnits);
  grid.x_stages = kXStages;
  set_stages<type>(grid, 1, 2, kMaxSharedBytes - 2048 - kXStages * (kXBytes + 16), 0);
  grid.x_from = round_up(grid.bars_at, 1024);
  grid.bars_at = grid.x_from + kXStages * kXBytes;
  const SlabMaps maps = slab_maps(w, End::kMatrices, width, SlabStage<type>::kPitch,
                                  SlabStage<type>::kIsSwizzled, grid.scale_pitch);
  const auto k = static_cast<uint64_t>(w.k), stride = static_cast<uint64_t>(p.x.stride) * 2;
  const CUtensorMap x =
      tensor_map<3>(p.x.data, {.sizes = {k, static_cast<uint64_t>(p.rows), 1},
                               .strides = {stride, stride},
                               .box = {kSlice, static_cast<uint32_t>(p.rows), 1}});
  launch("multiplying blocks", wide_blocks_kernel<type, kTokens, End>,
         {.blocks = std::min(grid.tiles, processors),
          .threads = grid.groups * 128 + 32,
          .shared_bytes = grid.bars_at + 16 * (grid.stages + kXStages),
          .early = true},
         on, maps, x, grid, end);
}

template <DType type>
void wide_blocks_matmul(const MatmulParams& p, const Execution& on) {
  p.rows <= 32 ? wide_blocks<type, 32>(p, p.w, on) : wide_blocks<type, 64>(p, p.w, on);
}
template <DType type>
void wide_blocks_gated(const GatedMatmulParams& p, const Execution& on) {
  p.rows <= 32 ? wide_blocks<type, 32>(p, p.gate_up, on) : wide_blocks<type, 64>(p, p.gate_up, on);
}

}  // namespace invar::cuda
