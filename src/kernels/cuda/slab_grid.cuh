// The shape of a product by slabs, as the host chooses it: warps, stages, and what lies where in
// shared memory (product_blocks.cuh).
#pragma once

#include "base/check.h"
#include "kernels/cuda/blocks.h"
#include "kernels/cuda/slab_stream.cuh"

namespace invar::cuda {

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

}  // namespace invar::cuda
