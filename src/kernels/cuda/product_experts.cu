// Products of many experts, each with some of the rows (order `hopper`): one kernel whose blocks
// stay and take tiles of all experts in turn. As in product_few.cu the weights are the 64-row side
// of the tensor-core instruction, rows of x its columns. How many tiles there are is found on the
// device, so that the grid is the same for any choice of experts.
#include <algorithm>

#include "base/check.h"
#include "kernels/cuda/experts.cuh"
#include "kernels/cuda/operations.h"
#include "kernels/cuda/product_hopper.cuh"
#include "kernels/cuda/wgmma_steps.cuh"

namespace invar::cuda {

namespace {

constexpr int kMaxWidth = 192;

struct ExpertGrid {
  const int32_t* begin;
  int experts;
  int width, groups, columns, slices;  // rows of weights of a tile; tiles beside each other
  int blocks;                          // gated: blocks of outputs of an expert's pair
  int stages, stage_bytes, bars_at, first_at;
};

template <int kMatrices>
__device__ __forceinline__ void load_experts_weights(uint32_t to, const CUtensorMap& w, int slice,
                                                     const ExpertGrid& grid, int expert, int column,
                                                     uint32_t barrier) {
  const int first = column * grid.width;
  if constexpr (kMatrices == 1)
    load_box(to, w, slice * kSlice, first, expert, barrier);
  else
    load_box(to, w, slice * kSlice, 0, 0, expert * grid.blocks + first / (2 * kBlockOutputs),
             barrier);
}

template <int kTokens, typename End>
__global__ __launch_bounds__(kMaxWidth / 64 * 128 + 32,
                             1) void experts_kernel(const __grid_constant__ CUtensorMap x,
                                                    const __grid_constant__ CUtensorMap w,
                                                    const ExpertGrid grid, const End end) {
  extern __shared__ __align__(1024) unsigned char shared[];
  const uint32_t base = shared_address(shared), bars = base + grid.bars_at;
  const int tid = threadIdx.x, group = tid / 128, lane = tid % 32;
  int32_t* first = reinterpret_cast<int32_t*>(shared + grid.first_at);
  Ring ring{bars, bars + 8 * grid.stages, grid.stages};
  set_up(ring, x, w, 4 * grid.groups);
  let_next_kernel_start();
  wait_for_kernels_before();
  lay_out_tiles(grid.begin, grid.experts, kTokens, first);
  const int tiles = first[grid.experts] * grid.columns;
  const auto rows_of = [&](int tile) {
    return expert_tile(grid.begin, grid.experts, kTokens, first, tile / grid.columns);
  };

  if (group == grid.groups) {  // one warp
    if (lane != 0) return;
    for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
      const ExpertTile at = rows_of(tile);
      for (int slice = 0; slice < grid.slices; ++slice, ring.next()) {
        const uint32_t to = base + ring.stage * grid.stage_bytes, full = ring.full_now();
        barrier_wait(ring.empty_now(), ring.parity ^ 1);
        barrier_expect(full, (grid.width + kTokens) * 128);
        load_experts_weights<End::kMatrices>(to, w, slice, grid, at.expert, tile % grid.columns,
                                             full);
        load_box(to + grid.width * 128, x, slice * kSlice, at.begin, 0, full);
      }
    }
    return;
  }

  const int sixteen = group * 4 + tid % 128 / 32;  // which 16 rows of weights this warp has
  for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    float d[kTokens / 2];
    int previous = -1;
    for (int slice = 0; slice < grid.slices; ++slice, ring.next()) {
      barrier_wait(ring.full_now(), ring.parity);
      const uint32_t stage = base + ring.stage * grid.stage_bytes;
      const uint64_t a = describe_rows(stage + group * 64 * 128),
                     b = describe_rows(stage + grid.width * 128);
      steps_begin();
#pragma unroll
      for (int i = 0; i < kSlice / 16; ++i)
        product_step<kTokens>(d, a + 2 * i, b + 2 * i, (slice | i) != 0);
      steps_commit();
      if (previous >= 0) {
        steps_wait<1>();
        if (lane == 0) barrier_arrive(ring.empty + 8 * previous);
      }
      previous = ring.stage;
    }
    steps_wait<0>();
    if (lane == 0) barrier_arrive(ring.empty + 8 * previous);
    if (sixteen * 16 >= grid.width) continue;
    const ExpertTile at = rows_of(tile);
    const End here = end.of(at.expert, at.begin);
    const int output =
        tile % grid.columns * (grid.width / End::kMatrices) + sixteen * (16 / End::kMatrices);
    if constexpr (End::kMatrices == 2) {
      here.template column<kTokens>(d, lane % 4 * 2, output + lane / 4, at.end - at.begin);
    } else {
#pragma unroll
      for (int i = 0; i < kTokens / 2; ++i) {
        const int t = i / 4 * 8 + lane % 4 * 2 + i % 2;
        if (t < at.end - at.begin) here.one(t, output + i / 2 % 2 * 8 + lane / 4, d[i]);
      }
    }
  }
}

// The width that keeps all multiprocessors busy to the end, when about so many tiles stand below
// each other; a tile costs what it reads.
int width_for(int64_t outputs, int64_t below, int tokens, int blocks) {
  int best = 64;
  int64_t best_cost = 0;
  for (int width = 64; width <= kMaxWidth; width += 32) {
    const int64_t turns = ceil_div(below * ceil_div(outputs, width), blocks),
                  cost = turns * (width + tokens / 2 + 2);
    if (best_cost == 0 || cost <= best_cost) best = width, best_cost = cost;
  }
  return best;
}

const Matrix& weights_of(const MatmulParams& p) {
  return p.w;
}
const Matrix& weights_of(const GatedMatmulParams& p) {
  return p.gate_up;
}

template <int kTokens, typename Params>
void experts(const Params& p, const int32_t* begin, const Execution& on) {
  const auto end = end_of(p);
  using End = decltype(end_of(p));
  const Matrix& w = weights_of(p);
  const int64_t outputs = int64_t{end.padded} * End::kMatrices;
  const int experts = static_cast<int>(w.count / End::kMatrices);
  const int blocks = gpu_of(on).multiprocessors();
  const int64_t below = std::min<int64_t>(p.rows, experts) + p.rows / kTokens;
  ExpertGrid grid{
      .begin = begin, .experts = experts, .width = width_for(outputs, below, kTokens, blocks)};
  grid.groups = ceil_div(grid.width, 64);
  grid.columns = ceil_div(outputs, grid.width);
  grid.slices = ceil_div(w.k, kSlice);
  grid.blocks = static_cast<int>(w.all_rows() * End::kMatrices / kBlockOutputs);
  grid.stage_bytes = (grid.width + kTokens) * 128;
  // The last warpgroup reads 64 rows even when it has fewer: past the end of the last stage, too.
  const int spare = std::max(0, grid.groups * 64 * 128 - grid.stage_bytes);
  const int first_bytes = static_cast<int>(round_up((experts + 1) * 4, 16));
  grid.stages = std::min(32, (kMaxSharedBytes - spare - first_bytes) / (grid.stage_bytes + 16));
  grid.bars_at = grid.stages * grid.stage_bytes + spare;
  grid.first_at = grid.bars_at + grid.stages * 16;
  const ProductMaps maps = expert_maps_of(p, kTokens, grid.width);
  const LaunchShape shape = {
      .blocks = static_cast<int>(std::min<int64_t>(blocks, below * grid.columns)),
      .threads = grid.groups * 128 + 32,
      .shared_bytes = grid.first_at + first_bytes,
      .early = true};
  launch("multiplying experts' matrices", experts_kernel<kTokens, End>, shape, on, maps.x, maps.w,
         grid, end);
}

// Tiles of about as many rows as an expert gets.
template <typename Params>
void choose(const Params& p, int64_t count, const int32_t* begin, const Execution& on) {
  if (p.rows == 0 || count == 0) return;
  const int64_t usual = p.rows / count;
  if (usual <= 4) return experts<8>(p, begin, on);
  if (usual <= 10) return experts<16>(p, begin, on);
  if (usual <= 24) return experts<32>(p, begin, on);
  if (usual <= 56) return experts<64>(p, begin, on);
  experts<128>(p, begin, on);
}

}  // namespace

void hopper_expert_matmul(const ExpertMatmulParams& p, const Execution& on) {
  CHECK(p.each.split_k == 1 && !p.each.accumulate, "what an expert's product can have");
  choose(p.each, p.each.w.count, p.begin, on);
}

void hopper_expert_gated_matmul(const ExpertGatedMatmulParams& p, const Execution& on) {
  CHECK(p.each.curve != Nonlinearity::gelu, "a curve of gated products");
  choose(p.each, p.each.gate_up.count / 2, p.begin, on);
}

}  // namespace invar::cuda
