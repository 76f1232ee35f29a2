// Products of many experts, each with some of the rows, or of heads, each with a part of all rows
// (order `hopper`): one kernel whose blocks stay and take tiles of all of them in turn. As in
// product_few.cu the weights are the 64-row side of the tensor-core instruction, rows of x its
// columns. How many tiles there are is found on the device, so that the grid is the same for any
// choice of experts.
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
  const int32_t* begin;  // or null: heads, which have all rows
  int rows = 0;          // of a head
  int experts = 0;
  int width = 0, groups = 0;    // rows of weights of a tile
  int columns = 0, slices = 0;  // tiles beside each other
  int blocks = 0;               // gated: blocks of outputs of an expert's pair
  int stages = 0, stage_bytes = 0, bars_at = 0, lists_at = 0;
  bool is_once = false;  // few weights are read by two tiles: they leave the L2 cache first
  // Whether the kernel before it that is not done yet has waited for the lists: then their weights
  // are read before it is done.
  bool has_lists = false;
};

template <int kMatrices>
__device__ __forceinline__ void load_experts_weights(uint32_t to, const CUtensorMap& w, int slice,
                                                     const ExpertGrid& grid, int expert, int column,
                                                     uint32_t barrier) {
  const int first = column * grid.width;
  if (grid.is_once) {
    if constexpr (kMatrices == 1)
      load_box_once(to, w, slice * kSlice, first, expert, barrier);
    else
      load_box_once(to, w, slice * kSlice, 0, 0, expert * grid.blocks + first / (2 * kBlockOutputs),
                    barrier);
    return;
  }
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
  int32_t* lists = reinterpret_cast<int32_t*>(shared + grid.lists_at);
  const ExpertTiles rows{grid.experts, kTokens, lists, lists + grid.experts + 1};
  Ring ring{bars, bars + 8 * grid.stages, grid.stages};
  set_up(ring, x, w, 4 * grid.groups);
  // What comes next may start once the lists of rows are there, and so need not wait to read them.
  if (!grid.has_lists) wait_for_kernels_before();
  let_next_kernel_start();
  if (grid.begin) rows.lay_out(grid.begin);
  const int of_head = (grid.rows + kTokens - 1) / kTokens;
  const int tiles = (grid.begin ? rows.count() : grid.experts * of_head) * grid.columns;
  const auto rows_of = [&](int tile) {
    const int place = tile / grid.columns;
    if (grid.begin) return rows.tile(place);
    const int row = place % of_head * kTokens;
    return ExpertTile{place / of_head, row, min(row + kTokens, grid.rows)};
  };

  if (group == grid.groups) {  // one warp
    if (lane != 0) return;
    const auto fetch_weights = [&](int tile, int expert, int slice, int stage) {
      const uint32_t full = ring.full + 8 * stage;
      barrier_expect(full, (grid.width + kTokens) * 128);
      load_experts_weights<End::kMatrices>(base + stage * grid.stage_bytes, w, slice, grid, expert,
                                           tile % grid.columns, full);
    };
    int tile = blockIdx.x;
    const int early = tile < tiles ? min(grid.slices, grid.stages) : 0;
    const int first_expert = early ? rows_of(tile).expert : 0;
    for (int i = 0; i < early; ++i) fetch_weights(tile, first_expert, i, i);
    wait_for_kernels_before();
    for (int number = 0; tile < tiles; tile += gridDim.x) {
      const ExpertTile at = rows_of(tile);
      for (int slice = 0; slice < grid.slices; ++slice, ++number, ring.next()) {
        if (number >= early) {
          barrier_wait(ring.empty_now(), ring.parity ^ 1);
          fetch_weights(tile, at.expert, slice, ring.stage);
        }
        load_box(base + ring.stage * grid.stage_bytes + grid.width * 128, x, slice * kSlice,
                 at.begin, grid.begin ? 0 : at.expert, ring.full_now());
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
    wait_for_kernels_before();
    if (sixteen * 16 >= grid.width) continue;
    const ExpertTile at = rows_of(tile);
    const auto here = end.of(at.expert, at.begin);
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

// Launches the kernel for at most `below` tiles below each other; of the grid its lists and rows
// are set. `maps_of` gets the rows of x and of weights of a tile.
template <int kTokens, typename MapsOf, typename End>
void launch_tiles(const Matrix& w, ExpertGrid grid, int64_t below, const End& end, MapsOf maps_of,
                  const Execution& on) {
  const int64_t outputs = int64_t{end.padded} * End::kMatrices;
  const int blocks = gpu_of(on).multiprocessors();
  grid.experts = static_cast<int>(w.count / End::kMatrices);
  grid.width = width_for(outputs, below, kTokens, blocks);
  grid.groups = ceil_div(grid.width, 64);
  grid.columns = ceil_div(outputs, grid.width);
  grid.slices = ceil_div(w.k, kSlice);
  grid.blocks = static_cast<int>(w.all_rows() * End::kMatrices / kBlockOutputs);
  grid.stage_bytes = (grid.width + kTokens) * 128;
  // The last warpgroup reads 64 rows even when it has fewer: past the end of the last stage, too.
  const int spare = std::max(0, grid.groups * 64 * 128 - grid.stage_bytes);
  const int list_bytes = static_cast<int>(round_up((grid.experts + 1) * 8, 16));
  grid.stages = std::min(32, (kMaxSharedBytes - spare - list_bytes) / (grid.stage_bytes + 16));
  grid.bars_at = grid.stages * grid.stage_bytes + spare;
  grid.lists_at = grid.bars_at + grid.stages * 16;
  const ProductMaps maps = maps_of(kTokens, grid.width);
  const LaunchShape shape = {
      .blocks = static_cast<int>(std::min<int64_t>(blocks, below * grid.columns)),
      .threads = grid.groups * 128 + 32,
      .shared_bytes = grid.lists_at + list_bytes,
      .early = true};
  launch("multiplying experts' matrices", experts_kernel<kTokens, End>, shape, on, maps.x, maps.w,
         grid, end);
}

template <int kTokens, typename Params>
void experts(const Params& p, const int32_t* begin, bool has_lists, const Execution& on) {
  const auto end = end_of(p);
  const Matrix& w = weights_of(p);
  const int64_t experts = w.count / decltype(end_of(p))::kMatrices;
  // An expert has a tile of its own for the rest of its rows, but no row has two.
  const int64_t below = std::min(p.rows, std::min(p.rows, experts) + p.rows / kTokens);
  // Of few rows, which hardly ever are more than a tile's of one expert.
  const bool is_once = kTokens == 8 && p.rows <= 8 * kTokens;
  launch_tiles<kTokens>(
      w, {.begin = begin, .is_once = is_once, .has_lists = has_lists}, below, end,
      [&](int x_rows, int w_rows) { return expert_maps_of(p, x_rows, w_rows); }, on);
}

// Of heads: outputs of one stand beside those of the one before it.
struct HeadsEnd : PlainEnd {
  __device__ PlainEnd of(int head, int64_t row) const {
    PlainEnd end = *this;
    end.y += row * stride + int64_t{head} * n;
    return end;
  }
};

template <int kTokens>
void heads(const HeadsMatmulParams& p, const Execution& on) {
  const MatmulParams& each = p.each;
  const int64_t below = each.w.count * ceil_div(each.rows, kTokens);
  launch_tiles<kTokens>(
      each.w, {.begin = nullptr, .rows = static_cast<int>(each.rows), .has_lists = true}, below,
      HeadsEnd{end_of(each)},
      [&](int x_rows, int w_rows) { return heads_maps_of(p, x_rows, w_rows); }, on);
}

// Tiles of about as many rows as an expert gets.
template <typename Params>
void choose(const Params& p, int64_t count, const int32_t* begin, bool has_lists,
            const Execution& on) {
  if (p.rows == 0 || count == 0) return;
  const int64_t usual = p.rows / count;
  if (usual <= 4) return experts<8>(p, begin, has_lists, on);
  if (usual <= 10) return experts<16>(p, begin, has_lists, on);
  if (usual <= 24) return experts<32>(p, begin, has_lists, on);
  if (usual <= 56) return experts<64>(p, begin, has_lists, on);
  experts<128>(p, begin, has_lists, on);
}

// Of so many rows an expert, tiles of 128 x 128 are full: 1.4 x as fast on an H200.
bool has_many_rows(int64_t rows, int64_t experts) {
  constexpr int64_t kManyRows = 192;
  return experts > 0 && rows >= kManyRows * experts;
}

}  // namespace

void hopper_expert_matmul(const ExpertMatmulParams& p, const Execution& on) {
  CHECK(p.each.split_k == 1 && !p.each.accumulate, "what an expert's product can have");
  if (has_many_rows(p.each.rows, p.each.w.count)) return hopper_experts_of_many_rows(p, on);
  choose(p.each, p.each.w.count, p.begin, !p.is_first_reader, on);
}

void hopper_expert_gated_matmul(const ExpertGatedMatmulParams& p, const Execution& on) {
  CHECK(p.each.curve != Nonlinearity::gelu, "a curve of gated products");
  const int64_t experts = p.each.gate_up.count / 2;
  if (has_many_rows(p.each.rows, experts)) return hopper_gated_experts_of_many_rows(p, on);
  choose(p.each, experts, p.begin, /*has_lists=*/false, on);  // it comes first
}

void hopper_heads_matmul(const HeadsMatmulParams& p, const Execution& on) {
  CHECK(p.each.split_k == 1 && !p.each.accumulate && !p.each.bias,
        "what a head's product can have");
  const int64_t rows = p.each.rows;
  if (rows == 0) return;
  if (rows <= 8) return heads<8>(p, on);
  if (rows <= 16) return heads<16>(p, on);
  if (rows <= 32) return heads<32>(p, on);
  if (rows <= 64) return heads<64>(p, on);
  heads<128>(p, on);
}

}  // namespace invar::cuda
