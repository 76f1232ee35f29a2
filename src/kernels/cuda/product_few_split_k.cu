// Products of up to 64 rows in several split-K parts (order `hopper`), as product_few.cu: every
// warpgroup of a block takes one part of the same outputs; with 8 parts a cluster of two blocks
// takes four each. Then they are added up as a binary tree (numerics 2).
#include <algorithm>

#include "kernels/cuda/fp8_kind.cuh"
#include "kernels/cuda/int8.h"
#include "kernels/cuda/product_schedules.h"

namespace invar::cuda {

namespace {

constexpr int kMaxWidth = 64;

struct FewRunsGrid {
  int rows, width, slices;  // slices of a run
  int stages, stage_bytes, received_at, bars_at;
};

__device__ __forceinline__ float4 add(float4 a, float4 b) {
  return {a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w};
}

template <int kTokens, int kSplitK, int kBlocks, typename Kind>
__global__ __launch_bounds__(kSplitK * 128 + 32,
                             1) void few_split_k_kernel(const __grid_constant__ CUtensorMap x,
                                                        const __grid_constant__ CUtensorMap w,
                                                        const FewRunsGrid grid, const Kind kind,
                                                        const PlainEnd end) {
  constexpr int kWorkers = kSplitK * 128;
  extern __shared__ __align__(1024) unsigned char shared[];
  const uint32_t base = shared_address(shared), bars = base + grid.bars_at;
  const int tid = threadIdx.x, run = tid / 128, lane = tid % 32, warp = tid % 128 / 32;
  const int rank = kBlocks > 1 ? static_cast<int>(cluster_rank()) : 0;
  const int first_output = static_cast<int>(blockIdx.x) / kBlocks * grid.width;
  Ring ring{bars, bars + 8 * grid.stages, grid.stages};
  set_up(ring, x, w, 4 * kSplitK);
  let_next_kernel_start();
  if constexpr (kBlocks > 1) cluster_arrive();  // that this block runs; awaited before the exchange

  // A thread adds up 4 outputs of a row; block r of a pair ends with half r of the outputs. What
  // they are added to is read while the weights come.
  constexpr int kMost = (kTokens * kMaxWidth / 4 + kWorkers - 1) / kWorkers;
  const int fours = grid.width / 4;
  const auto is_mine = [&](int t, int four) {
    return run < kSplitK && t < grid.rows && (kBlocks == 1 || four / (fours / 2) == rank);
  };
  float4 before[kMost];

  float d[kTokens / 2];
  if (run == kSplitK) {  // one warp
    if (lane == 0) {
      const auto fetch_weights = [&](int slice, int stage) {
        const uint32_t full = ring.full + 8 * stage;
        barrier_expect(full, kSplitK * (grid.width + (Kind::kMakesRows ? 0 : grid.rows)) * 128);
        load_box_once(base + stage * grid.stage_bytes, w, slice * kSlice, first_output,
                      rank * kSplitK, full);
      };
      const auto fetch_rows = [&](int slice, int stage) {
        for (int r = 0; !Kind::kMakesRows && r < kSplitK; ++r)
          load_box(base + stage * grid.stage_bytes + (kSplitK * grid.width + r * kTokens) * 128, x,
                   slice * kSlice, 0, rank * kSplitK + r, ring.full + 8 * stage);
      };
      const int at_once = grid.slices < grid.stages ? grid.slices : grid.stages;
      for (int i = 0; i < at_once; ++i) fetch_weights(i, i);
      if constexpr (!Kind::kMakesRows) wait_for_kernels_before();
      for (int i = 0; i < at_once; ++i) fetch_rows(i, i);
      ring.skip(at_once);
      for (int i = at_once; i < grid.slices; ++i, ring.next()) {
        barrier_wait(ring.empty_now(), ring.parity ^ 1);
        fetch_weights(i, ring.stage);
        fetch_rows(i, ring.stage);
      }
    }
    __syncwarp();
  } else {
    [[maybe_unused]] const auto scales = [&] {
      if constexpr (Kind::kPromotes)
        return kind.template weight_scales_of<1>(first_output, warp * 16 + lane / 4,
                                                 rank * kSplitK + run);
      else
        return 0;
    }();
    wait_for_kernels_before();
#pragma unroll
    for (int n = 0; n < kMost; ++n) {
      const int i = n * kWorkers + tid, t = i / fours, four = i % fours;
      if (is_mine(t, four)) before[n] = end.before(t, first_output + four * 4);
    }
    if constexpr (Kind::kMakes) {
      kind.make(shared, kSplitK * 4, grid.rows, rank * kSplitK, kSplitK);
      stores_are_seen();
      named_sync(1, kWorkers);
    }
    if constexpr (Kind::kPromotes) {
      kind.sum_run(d, ring, scales, run, [&](int stage) {
        const uint32_t at = base + stage * grid.stage_bytes;
        return Operands{describe_rows(at + run * grid.width * 128),
                        describe_rows(at + kSplitK * grid.width * 128 + run * kTokens * 128)};
      });
    } else {
      typename Kind::Sum sum[kTokens / 2];
      int previous = -1;
      for (int slice = 0; slice < grid.slices; ++slice, ring.next()) {
        barrier_wait(ring.full_now(), ring.parity);
        const uint32_t stage = base + ring.stage * grid.stage_bytes;
        uint32_t rows_at = stage + kSplitK * grid.width * 128 + run * kTokens * 128;
        if constexpr (Kind::kMakesRows) rows_at = base + kind.line_at(run, slice);
        const uint64_t a = describe_rows(stage + run * grid.width * 128),
                       b = describe_rows(rows_at);
        steps_begin();
#pragma unroll
        for (int i = 0; i < kSlice / 16; ++i)
          Kind::template step<kTokens>(sum, a + 2 * i, b + 2 * i, (slice | i) != 0);
        steps_commit();
        // Of a ring of three or four stages no step may hold one while it waits for the next.
        if constexpr (kTokens >= 32) {
          steps_wait<0>();
          if (lane == 0) barrier_arrive(ring.empty_now());
          continue;
        }
        if (previous >= 0) {
          steps_wait<1>();
          if (lane == 0) barrier_arrive(ring.empty + 8 * previous);
        }
        previous = ring.stage;
      }
      steps_wait<0>();
      kind.template finish<kTokens, 1>(sum, first_output + warp * 16 + lane / 4,
                                       rank * kSplitK + run, run, grid.rows, d);
    }
  }

  // The ring has been read and becomes [run][row of x][width + 4].
  float* sums = reinterpret_cast<float*>(shared);
  const int pitch = grid.width + 4;
  if (run < kSplitK) {
    named_sync(1, kWorkers);
#pragma unroll
    for (int i = 0; i < kTokens / 2; ++i) {
      const int t = i / 4 * 8 + lane % 4 * 2 + i % 2, output = warp * 16 + i / 2 % 2 * 8 + lane / 4;
      if (output < grid.width && t < grid.rows) sums[(run * kTokens + t) * pitch + output] = d[i];
    }
    named_sync(1, kWorkers);
  }
  __syncwarp();
  if constexpr (kBlocks > 1) cluster_wait();
  float4 mine[kMost];
#pragma unroll
  for (int n = 0; n < kMost; ++n) {
    const int i = n * kWorkers + tid, t = i / fours, four = i % fours;
    if (run == kSplitK || t >= grid.rows) continue;
    float4 s[kSplitK];
#pragma unroll
    for (int r = 0; r < kSplitK; ++r)
      s[r] = *reinterpret_cast<const float4*>(sums + (r * kTokens + t) * pitch + four * 4);
#pragma unroll
    for (int apart = 1; apart < kSplitK; apart *= 2)
#pragma unroll
      for (int r = 0; r < kSplitK; r += 2 * apart) s[r] = add(s[r], s[r + apart]);
    mine[n] = s[0];
    if constexpr (kBlocks > 1)
      if (four / (fours / 2) != rank)
        store_in_cluster(address_in(1 - rank, base + grid.received_at + i * 16), s[0]);
  }
  if constexpr (kBlocks > 1) {
    __syncwarp();
    cluster_arrive();
    cluster_wait();
  }
#pragma unroll
  for (int n = 0; n < kMost; ++n) {
    const int i = n * kWorkers + tid, t = i / fours, four = i % fours;
    if (!is_mine(t, four)) continue;
    float4 dot = mine[n];
    if constexpr (kBlocks > 1)
      dot = add(dot, *reinterpret_cast<const float4*>(shared + grid.received_at + i * 16));
    end.four(t, first_output + four * 4, dot, before[n]);
  }
}

template <int kTokens, int kSplitK, int kBlocks, typename Kind>
void few_split_k(const MatmulParams& p, const Execution& on) {
  const PlainEnd end = end_of(p);
  FewRunsGrid grid{.rows = static_cast<int>(p.rows)};
  grid.width = std::clamp(
      ceil_div(ceil_div(end.n * kBlocks, gpu_of(on).multiprocessors()), 16) * 16, 16, kMaxWidth);
  grid.slices = ceil_div(p.w.k / p.split_k, Kind::kLine);
  grid.stage_bytes = kSplitK * (grid.width + (Kind::kMakesRows ? 0 : kTokens)) * 128;
  Kind kind(p, p.w);
  int made = 0;
  if constexpr (Kind::kMakes) made = round_up(Kind::bytes(p.w.k, p.split_k, kSplitK), 1024);
  // A warpgroup reads 64 rows of weights even when it has fewer: past the last stage's end, too.
  const int spare = std::max(0, ((kSplitK - 1) * grid.width + kMaxWidth) * 128 - grid.stage_bytes);
  const int received = kBlocks > 1 ? kTokens * grid.width * 4 : 0;
  grid.stages =
      std::min(16, (kMaxSharedBytes - spare - received - made - 1024) / (grid.stage_bytes + 16));
  const int sums = kSplitK * kTokens * (grid.width + 4) * 4;
  const int made_at = round_up(std::max(grid.stages * grid.stage_bytes + spare, sums), 1024);
  if constexpr (Kind::kMakes) kind.place(made_at, kSplitK);
  grid.received_at = made_at + made;
  grid.bars_at = grid.received_at + received;
  const ProductMaps maps = Kind::maps_in_parts(p, grid.rows, grid.width, kSplitK);
  const LaunchShape shape = {.blocks = ceil_div(end.n, grid.width) * kBlocks,
                             .threads = kSplitK * 128 + 32,
                             .shared_bytes = grid.bars_at + grid.stages * 16,
                             .cluster = kBlocks,
                             .early = true};
  launch("multiplying matrices", few_split_k_kernel<kTokens, kSplitK, kBlocks, Kind>, shape, on,
         maps.x, maps.w, grid, kind, end);
}

template <int kTokens, typename Kind>
void few_in_parts(const MatmulParams& p, const Execution& on) {
  if (p.split_k == 8)
    few_split_k<kTokens, 4, 2, Kind>(p, on);
  else if (p.split_k == 4)
    few_split_k<kTokens, 4, 1, Kind>(p, on);
  else
    few_split_k<kTokens, 2, 1, Kind>(p, on);
}

}  // namespace

template <int kTokens>
void few_split_k_matmul(const MatmulParams& p, const Execution& on) {
  few_in_parts<kTokens, Bf16Kind>(p, on);
}
template void few_split_k_matmul<8>(const MatmulParams&, const Execution&);
template void few_split_k_matmul<16>(const MatmulParams&, const Execution&);
template void few_split_k_matmul<32>(const MatmulParams&, const Execution&);
template void few_split_k_matmul<64>(const MatmulParams&, const Execution&);

namespace {

template <typename Numbers>
void few_bytes_in_runs(const MatmulParams& p, const Execution& on) {
  using Kind = ByteKind<Numbers>;
  if (p.x.type == DType::bf16) return few_in_parts<8, MadeByteKind<Numbers>>(p, on);
  p.rows <= 8    ? few_in_parts<8, Kind>(p, on)
  : p.rows <= 16 ? few_in_parts<16, Kind>(p, on)
  : p.rows <= 32 ? few_in_parts<32, Kind>(p, on)
                 : few_in_parts<64, Kind>(p, on);
}

}  // namespace

void few_int8_in_runs(const MatmulParams& p, const Execution& on) {
  few_bytes_in_runs<Integers>(p, on);
}
void few_fp8_row_in_runs(const MatmulParams& p, const Execution& on) {
  few_bytes_in_runs<E4m3Numbers>(p, on);
}

void few_fp8_in_runs(const MatmulParams& p, const Execution& on) {
  p.rows <= 8    ? few_in_parts<8, Fp8FewKind<8>>(p, on)
  : p.rows <= 16 ? few_in_parts<16, Fp8FewKind<16>>(p, on)
  : p.rows <= 32 ? few_in_parts<32, Fp8FewKind<32>>(p, on)
                 : few_in_parts<64, Fp8FewKind<64>>(p, on);
}

}  // namespace invar::cuda
