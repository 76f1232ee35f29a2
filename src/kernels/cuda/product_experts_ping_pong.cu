// Products of experts that have many rows each (order `hopper`): as product_ping_pong.cu
// each of two warpgroups owns a whole tile of 128 x 128, so that one writes its results while the
// other multiplies, and blocks work in pairs below each other that share weights. Tiles are those
// of all experts, on one line; their number is found on the device.
#include <algorithm>

#include "kernels/cuda/experts.cuh"
#include "kernels/cuda/operations.h"
#include "kernels/cuda/ping_pong.cuh"

namespace invar::cuda {

namespace {

using namespace ping_pong;

constexpr int kPair = 2;
constexpr int kGroup = 8;  // row tiles below each other before it goes to the right

struct ExpertLine {
  const int32_t* begin;
  int experts, columns, slices, stages;
  int blocks;      // gated: blocks of outputs of an expert's pair
  bool has_lists;  // the product before it has waited for the lists, so that they are there
  int lists_at() const { return stages * (kStageBytes + 16); }
};

// An expert's rows, from that of a tile, and which columns.
struct ExpertPlace {
  ExpertTile rows;
  int column;
};

// Tile `number` of the line: expert by expert, within one kGroup row tiles high.
__device__ __forceinline__ ExpertPlace place_of(const ExpertTiles& lists, int columns, int number) {
  int low = 0, high = lists.experts;  // first[low] * columns <= number < first[high] * columns
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    (lists.first[middle] * columns <= number ? low : high) = middle;
  }
  const int rest = number - lists.first[low] * columns, group = rest / (kGroup * columns),
            inside = rest % (kGroup * columns),
            tall = min(kGroup, lists.first[low + 1] - lists.first[low] - group * kGroup);
  const int row = lists.begin[low] + (group * kGroup + inside % tall) * lists.tile_rows;
  return {{low, row, lists.begin[low + 1]}, inside / tall};
}

using Team = TileTeam<kPair>;

template <int kMatrices>
__device__ __forceinline__ void fetch_tiles(const CUtensorMap& x, const CUtensorMap& w,
                                            const ExpertLine& line, const ExpertTiles& lists,
                                            const Team& team, Ring ring, uint32_t base) {
  constexpr int kShare = kColumns / kPair;  // rows of weights that this block fetches
  wait_for_kernels_before();
  for (int tile = team.number; tile < lists.count() * line.columns; tile += team.count) {
    const auto [rows, column] = place_of(lists, line.columns, tile);
    const int first = column * kColumns + team.rank * kShare;
    for (int slice = 0; slice < line.slices; ++slice, ring.next()) {
      const uint32_t to = base + ring.stage * kStageBytes, full = ring.full_now();
      const uint32_t weights = to + kWeightsAt + team.rank * kShare * 128;
      barrier_wait(ring.empty_now(), ring.parity ^ 1);
      barrier_expect(full, kStageBytes);
      load_box(to, x, slice * kSlice, rows.begin + team.rank * kTileRows, 0, full);
      if constexpr (kMatrices == 1)
        load_box_to_both(weights, w, slice * kSlice, first, rows.expert, full);
      else
        load_box_to_both(weights, w, slice * kSlice, 0, 0,
                         rows.expert * line.blocks + first / (2 * kBlockOutputs), full);
    }
  }
}

template <typename End>
__global__ __launch_bounds__(kThreads,
                             1) void experts_ping_pong_kernel(const __grid_constant__ CUtensorMap x,
                                                              const __grid_constant__ CUtensorMap w,
                                                              const ExpertLine line,
                                                              const End end) {
  extern __shared__ __align__(1024) unsigned char shared[];
  const uint32_t base = shared_address(shared), bars = base + line.stages * kStageBytes;
  const int tid = threadIdx.x, warpgroup = tid / 128;
  const Team team = Team::of_block();
  int32_t* memory = reinterpret_cast<int32_t*>(shared + line.stages * (kStageBytes + 16));
  const ExpertTiles lists{line.experts, kPair * kTileRows, memory, memory + line.experts + 1};
  Ring ring{bars, bars + 8 * line.stages, line.stages};
  set_up(ring, x, w, 4 * kPair);
  Team::meet();
  if (!line.has_lists) wait_for_kernels_before();
  let_next_kernel_start();
  lists.lay_out(line.begin);

  if (warpgroup == 0) {
    fewer_registers<kFetchRegisters>();
    if (tid == 0) fetch_tiles<End::kMatrices>(x, w, line, lists, team, ring, base);
  } else {
    more_registers<kRegisters>();
    const int lane = tid % 32, warp = tid % 128 / 32;
    multiply(team, ring, base, warpgroup - 1, lists.count() * line.columns, line.slices,
             [&](int tile, auto& upper, auto& lower) {
               const auto [rows, column] = place_of(lists, line.columns, tile);
               const End here = end.of(rows.expert, 0);
               const int begin = rows.begin + team.rank * kTileRows,
                         last = min(rows.end, begin + kTileRows);
               const int64_t t = begin + warp * 16 + lane / 4;
               const int first = column * (kColumns / End::kMatrices) + lane % 4 * 2;
               here.template tile<kColumns>(upper, t, first, begin, last);
               here.template tile<kColumns>(lower, t + 64, first, begin, last);
             });
  }
  Team::meet();
}

const Matrix& weights_of(const MatmulParams& p) {
  return p.w;
}
const Matrix& weights_of(const GatedMatmulParams& p) {
  return p.gate_up;
}

template <typename End, typename Params>
void run(const Params& p, const int32_t* begin, bool has_lists, const End& end,
         const Execution& on) {
  const Matrix& w = weights_of(p);
  ExpertLine line{.begin = begin,
                  .experts = static_cast<int>(w.count / End::kMatrices),
                  .columns = ceil_div(int64_t{end.padded} * End::kMatrices, kColumns),
                  .slices = ceil_div(w.k, kSlice),
                  .stages = 0,
                  .blocks = static_cast<int>(w.all_rows() * End::kMatrices / kBlockOutputs),
                  .has_lists = has_lists};
  const int list_bytes = static_cast<int>(round_up((line.experts + 1) * 8, 16));
  line.stages = std::min(7, (kMaxSharedBytes - list_bytes) / (kStageBytes + 16));
  // An expert has a tile of its own for the rest of its rows, but no row has two.
  const int64_t below = std::min<int64_t>(
      p.rows, std::min<int64_t>(p.rows, line.experts) + p.rows / (kPair * kTileRows));
  const ProductMaps maps = expert_maps_of(p, kTileRows, kColumns / kPair);
  const int64_t pairs =
      std::min<int64_t>(gpu_of(on).multiprocessors() / kPair, below * line.columns);
  launch("multiplying experts' matrices", experts_ping_pong_kernel<End>,
         {.blocks = static_cast<int>(pairs) * kPair,
          .threads = kThreads,
          .shared_bytes = line.lists_at() + list_bytes,
          .cluster = kPair,
          .early = true},
         on, maps.x, maps.w, line, end);
}

}  // namespace

void hopper_experts_of_many_rows(const ExpertMatmulParams& p, const Execution& on) {
  run(p.each, p.begin, !p.is_first_reader, end_of(p.each), on);
}
void hopper_gated_experts_of_many_rows(const ExpertGatedMatmulParams& p, const Execution& on) {
  run(p.each, p.begin, /*has_lists=*/false, end_of(p.each), on);  // it comes first
}

}  // namespace invar::cuda
