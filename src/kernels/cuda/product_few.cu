// Products of up to 64 rows (order `hopper`): bound by reading the weights. These are the 64-row
// side of the tensor-core instruction, the activation's rows its columns; every block streams the
// weights of its outputs through a ring as large as its shared memory, and begins to do so before
// the kernels before it are done.
#include <algorithm>

#include "base/check.h"
#include "kernels/cuda/fp8_kind.cuh"
#include "kernels/cuda/int8.h"
#include "kernels/cuda/product_schedules.h"

namespace invar::cuda {

namespace {

constexpr int kMaxWidth = 192;

// A block takes `width` rows of weights at a time: outputs, or half as many pairs. `groups`
// warpgroups take 64 of them each.
struct FewGrid {
  int rows, width, groups, tiles, slices;
  int stages, stage_bytes, bars_at;
  uint64_t policy;  // of the weights in the L2 cache
};

// What a lane needs of the weights of a tile that begins with row `first`, besides what TMA brings.
template <int kMatrices, typename Kind>
__device__ __forceinline__ auto scales_of(const Kind& kind, int first, int group) {
  const int lane = static_cast<int>(threadIdx.x) % 32,
            warp = static_cast<int>(threadIdx.x) % 128 / 32;
  if constexpr (Kind::kPromotes)
    return kind.template weight_scales_of<kMatrices>(first, group * 64 + warp * 16 + lane / 4, 0);
  else
    return 0;
}

template <int kTokens, typename Kind, typename End>
__global__ __launch_bounds__(kMaxWidth / 64 * 128 + 32,
                             1) void few_kernel(const __grid_constant__ CUtensorMap x,
                                                const __grid_constant__ CUtensorMap w,
                                                const FewGrid grid, const Kind kind,
                                                const End end) {
  extern __shared__ __align__(1024) unsigned char shared[];
  const uint32_t base = shared_address(shared), bars = base + grid.bars_at;
  const int tid = threadIdx.x, group = tid / 128, lane = tid % 32;
  Ring ring{bars, bars + 8 * grid.stages, grid.stages};
  set_up(ring, x, w, 4 * grid.groups);
  let_next_kernel_start();

  if (group == grid.groups) {  // one warp
    if (lane != 0) return;
    const int tiles =
        (grid.tiles - static_cast<int>(blockIdx.x) + static_cast<int>(gridDim.x) - 1) /
        static_cast<int>(gridDim.x);
    const int all = tiles * grid.slices, at_once = all < grid.stages ? all : grid.stages;
    const auto fetch_weights = [&](int i, int stage) {
      const int tile = blockIdx.x + i / grid.slices * gridDim.x;
      barrier_expect(ring.full + 8 * stage,
                     (grid.width + (Kind::kMakesRows ? 0 : grid.rows)) * 128);
      load_weights_once<End::kMatrices>(base + stage * grid.stage_bytes, w, i % grid.slices,
                                        tile * grid.width, 0, ring.full + 8 * stage, grid.policy);
    };
    const auto fetch_rows = [&](int i, int stage) {
      if constexpr (!Kind::kMakesRows)
        load_box(base + stage * grid.stage_bytes + grid.width * 128, x, i % grid.slices * kSlice, 0,
                 0, ring.full + 8 * stage);
    };
    for (int i = 0; i < at_once; ++i) fetch_weights(i, i);
    if constexpr (!Kind::kMakesRows) wait_for_kernels_before();
    for (int i = 0; i < at_once; ++i) fetch_rows(i, i);
    ring.skip(at_once);
    for (int i = at_once; i < all; ++i, ring.next()) {
      barrier_wait(ring.empty_now(), ring.parity ^ 1);
      fetch_weights(i, ring.stage);
      fetch_rows(i, ring.stage);
    }
    return;
  }

  const int warp = tid % 128 / 32;
  [[maybe_unused]] auto scales = scales_of<End::kMatrices>(kind, blockIdx.x * grid.width, group);
  if constexpr (Kind::kMakes) {
    if constexpr (Kind::kPromotes) {
      kind.template expect<End::kMatrices>(blockIdx.x * grid.width, grid.width, tid);
      wait_for_kernels_before();
    }
    kind.make(shared, grid.groups * 4, grid.rows, 0, 1);
    stores_are_seen();
    named_sync(1, grid.groups * 128);
  }
  for (int tile = blockIdx.x; tile < grid.tiles; tile += gridDim.x) {
    float d[kTokens / 2];
    const int sixteen = group * 4 + warp;  // which 16 rows of weights this warp has
    const int first = tile * (grid.width / End::kMatrices) + sixteen * (16 / End::kMatrices);
    if constexpr (Kind::kPromotes) {
      kind.sum_run(d, ring, scales, 0, [&](int stage) {
        const uint32_t at = base + stage * grid.stage_bytes;
        return Operands{describe_rows(at + group * 64 * 128), describe_rows(at + grid.width * 128)};
      });
      const int next = tile + static_cast<int>(gridDim.x);
      if (next < grid.tiles) scales = scales_of<End::kMatrices>(kind, next * grid.width, group);
    } else {
      typename Kind::Sum sum[kTokens / 2];
      int previous = -1;
      for (int slice = 0; slice < grid.slices; ++slice, ring.next()) {
        barrier_wait(ring.full_now(), ring.parity);
        const uint32_t stage = base + ring.stage * grid.stage_bytes;
        uint32_t rows_at = stage + grid.width * 128;
        if constexpr (Kind::kMakesRows) rows_at = base + kind.line_at(0, slice);
        const uint64_t a = describe_rows(stage + group * 64 * 128), b = describe_rows(rows_at);
        steps_begin();
#pragma unroll
        for (int i = 0; i < kSlice / 16; ++i)
          Kind::template step<kTokens>(sum, a + 2 * i, b + 2 * i, (slice | i) != 0);
        steps_commit();
        if (previous >= 0) {
          steps_wait<1>();
          if (lane == 0) barrier_arrive(ring.empty + 8 * previous);
        }
        previous = ring.stage;
      }
      steps_wait<0>();
      if (lane == 0) barrier_arrive(ring.empty + 8 * previous);
      kind.template finish<kTokens, End::kMatrices>(sum, first + lane / 4, 0, 0, grid.rows, d);
    }
    wait_for_kernels_before();
    if (sixteen * 16 >= grid.width) continue;
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

// The width that keeps all multiprocessors busy to the end.
int width_for(int64_t outputs, int blocks) {
  int best = 16;
  int64_t best_cost = 0;
  for (int width = 16; width <= kMaxWidth; width += 16) {
    const int64_t turns = ceil_div(ceil_div(outputs, width), blocks), cost = turns * (width + 2);
    if (best_cost == 0 || cost <= best_cost) best = width, best_cost = cost;
  }
  return best;
}

template <typename... Norm>
int staged_bytes(const Norm&... norm) {
  return (0 + ... + (norm.x ? norm_bytes(norm.width) + norm.width * 2 : 0));
}

// `norm`: what its only row is made of, or nothing.
template <int kTokens, typename Kind, typename Params, typename... Norm>
void few(const Params& p, const Matrix& w, const Execution& on, const Norm&... norm) {
  const auto end = end_of(p);
  using End = decltype(end_of(p));
  const int64_t outputs = int64_t{end.padded} * End::kMatrices;
  const int blocks = gpu_of(on).multiprocessors();
  FewGrid grid{.rows = static_cast<int>(p.rows), .width = width_for(outputs, blocks)};
  grid.groups = ceil_div(grid.width, 64);
  // Weights leave the L2 cache first, unless the results would then fill it.
  constexpr int64_t kManyResults = 24 << 20;
  grid.policy = p.rows * outputs * 4 > kManyResults ? kEvictNormal : kEvictFirst;
  grid.tiles = ceil_div(outputs, grid.width);
  grid.slices = ceil_div(w.row_elements(), Kind::kLine);
  grid.stage_bytes = (grid.width + (Kind::kMakesRows ? 0 : kTokens)) * 128;
  CHECK((... && norms_row(norm.width, grid.groups * 128)), "a norm of too few threads");
  Kind kind(p, w, norm...);
  int made = 0;
  if constexpr (Kind::kMakes) made = round_up(Kind::bytes(w.k, 1, 1) + staged_bytes(norm...), 1024);
  // The last warpgroup reads 64 rows even when it has fewer: past the end of the last stage, too.
  const int spare = std::max(0, grid.groups * 64 * 128 - grid.stage_bytes);
  grid.stages = std::min(32, (kMaxSharedBytes - spare - made - 1024) / (grid.stage_bytes + 16));
  const int made_at = round_up(grid.stages * grid.stage_bytes + spare, 1024);
  if constexpr (Kind::kMakes) kind.place(made_at, 1);
  grid.bars_at = made_at + made;
  const ProductMaps maps = Kind::maps(p, grid.rows, grid.width);
  const LaunchShape shape = {.blocks = std::min(grid.tiles, blocks),
                             .threads = grid.groups * 128 + 32,
                             .shared_bytes = grid.bars_at + grid.stages * 16,
                             .early = true};
  launch("multiplying matrices", few_kernel<kTokens, Kind, End>, shape, on, maps.x, maps.w, grid,
         kind, end);
}

}  // namespace

template <int kTokens>
void few_matmul(const MatmulParams& p, const Execution& on) {
  few<kTokens, Bf16Kind>(p, p.w, on);
}
template <int kTokens>
void few_gated(const GatedMatmulParams& p, const Execution& on) {
  few<kTokens, Bf16Kind>(p, p.gate_up, on);
}
template void few_matmul<8>(const MatmulParams&, const Execution&);
template void few_matmul<16>(const MatmulParams&, const Execution&);
template void few_matmul<32>(const MatmulParams&, const Execution&);
template void few_matmul<64>(const MatmulParams&, const Execution&);
template void few_gated<8>(const GatedMatmulParams&, const Execution&);
template void few_gated<16>(const GatedMatmulParams&, const Execution&);
template void few_gated<32>(const GatedMatmulParams&, const Execution&);
template void few_gated<64>(const GatedMatmulParams&, const Execution&);

namespace {

// The threads that multiply.
int workers_for(int64_t outputs, const Execution& on) {
  return ceil_div(width_for(outputs, gpu_of(on).multiprocessors()), 64) * 128;
}

}  // namespace

bool few_norms(const Matrix& w, const Execution& on) {
  return w.layout == WeightLayout::rows && norms_row(w.k, workers_for(outputs_of(w), on)) &&
         (w.type == DType::bf16 ||
          ((w.type == DType::i8 || w.type == DType::e4m3_row) && makes_integers(w, 1, 1)));
}
void few_normed_matmul(const MatmulParams& p, const RowNorm& norm, const Execution& on) {
  p.w.type == DType::i8         ? few<8, MadeInt8Kind>(p, p.w, on, norm)
  : p.w.type == DType::e4m3_row ? few<8, MadeFp8RowKind>(p, p.w, on, norm)
                                : few<8, NormedBf16Kind>(p, p.w, on, norm);
}
void few_normed_gated(const GatedMatmulParams& p, const RowNorm& norm, const Execution& on) {
  p.gate_up.type == DType::i8         ? few<8, MadeInt8Kind>(p, p.gate_up, on, norm)
  : p.gate_up.type == DType::e4m3_row ? few<8, MadeFp8RowKind>(p, p.gate_up, on, norm)
                                      : few<8, NormedBf16Kind>(p, p.gate_up, on, norm);
}

bool makes_integers(const Matrix& w, int64_t rows, int split_k) {
  constexpr int kMost = 64 << 10;  // of shared memory; the rest is the weights'
  // Every block makes them again, and that costs more with each row: measured with 1, 2, 4 and 8
  // rows, of which 8 lose (docs/reports/steps-on-a-gpu.md).
  constexpr int64_t kMostRows = 4;
  static_assert(kMostRows <= MadeInt8Kind::kRows);
  return w.layout == WeightLayout::rows && rows <= kMostRows &&
         MadeInt8Kind::bytes(w.k, split_k, std::min(split_k, 4)) <= kMost;
}

namespace {

template <typename Numbers, typename Params>
void few_bytes(const Params& p, const Matrix& w, const Execution& on) {
  using Kind = ByteKind<Numbers>;
  if (p.x.type == DType::bf16) return few<8, MadeByteKind<Numbers>>(p, w, on);
  p.rows <= 8    ? few<8, Kind>(p, w, on)
  : p.rows <= 16 ? few<16, Kind>(p, w, on)
  : p.rows <= 32 ? few<32, Kind>(p, w, on)
                 : few<64, Kind>(p, w, on);
}

}  // namespace

void few_int8_matmul(const MatmulParams& p, const Execution& on) {
  p.split_k > 1 ? few_int8_in_runs(p, on) : few_bytes<Integers>(p, p.w, on);
}
void few_int8_gated(const GatedMatmulParams& p, const Execution& on) {
  few_bytes<Integers>(p, p.gate_up, on);
}
void few_fp8_row_matmul(const MatmulParams& p, const Execution& on) {
  p.split_k > 1 ? few_fp8_row_in_runs(p, on) : few_bytes<E4m3Numbers>(p, p.w, on);
}
void few_fp8_row_gated(const GatedMatmulParams& p, const Execution& on) {
  few_bytes<E4m3Numbers>(p, p.gate_up, on);
}

void few_fp8_matmul(const MatmulParams& p, const Execution& on) {
  if (p.split_k > 1) return few_fp8_in_runs(p, on);
  p.rows <= 8    ? few<8, Fp8FewKind<8>>(p, p.w, on)
  : p.rows <= 16 ? few<16, Fp8FewKind<16>>(p, p.w, on)
  : p.rows <= 32 ? few<32, Fp8FewKind<32>>(p, p.w, on)
                 : few<64, Fp8FewKind<64>>(p, p.w, on);
}
void few_fp8_gated(const GatedMatmulParams& p, const Execution& on) {
  p.rows <= 8    ? few<8, Fp8FewKind<8>>(p, p.gate_up, on)
  : p.rows <= 16 ? few<16, Fp8FewKind<16>>(p, p.gate_up, on)
  : p.rows <= 32 ? few<32, Fp8FewKind<32>>(p, p.gate_up, on)
                 : few<64, Fp8FewKind<64>>(p, p.gate_up, on);
}

}  // namespace invar::cuda
