// Rows sorted by expert, and what experts read: kernels/reference/experts.cc on a GPU. Grids depend
// on the number of rows alone, so that a recorded step stays right. What gathers rows lets the next
// kernel start only when it need not wait any more: experts' blocks would take the room of what may
// run beside (model/branch.h).
#include <algorithm>

#include "base/check.h"
#include "device/cuda/cuda_stream.h"
#include "kernels/cuda/at_once.h"
#include "kernels/cuda/experts_route.cuh"
#include "kernels/cuda/experts_rows.cuh"
#include "kernels/cuda/operations.h"
#include "kernels/cuda/tma.cuh"

namespace invar::cuda {

namespace {

constexpr int kThreads = 256, kWarps = kThreads / kWarp;

// ---- Rows sorted by expert: one block for an expert. Each of its warps has a stretch of the
// pairs, of which it counts those of the experts before and its own, and then numbers these in
// order.

constexpr int kFour = 4;

// The places of the experts of four pairs, none behind the last one.
__device__ __forceinline__ void four_places(const SortRowsParams& p, int first, int pairs,
                                            int (&places)[kFour]) {
  int ids[kFour] = {};
  if (first + kFour <= pairs && reinterpret_cast<uintptr_t>(p.ids) % sizeof(int4) == 0) {
    const int4 four = *reinterpret_cast<const int4*>(p.ids + first);
    ids[0] = four.x, ids[1] = four.y, ids[2] = four.z, ids[3] = four.w;
  } else {
#pragma unroll
    for (int j = 0; j < kFour; ++j)
      if (first + j < pairs) ids[j] = p.ids[first + j];
  }
#pragma unroll
  for (int j = 0; j < kFour; ++j)
    places[j] =
        first + j < pairs ? expert_place(p.expert_places, ids[j], (first + j) / p.chosen) : INT_MAX;
}

__global__ __launch_bounds__(kThreads) void sort_rows_kernel(SortRowsParams p) {
  constexpr int kStep = kFour * kWarp;
  __shared__ int below_of[kWarps], own_of[kWarps];
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int expert = static_cast<int>(blockIdx.x), pairs = static_cast<int>(p.rows) * p.chosen;
  const int each = (pairs + kWarps * kStep - 1) / (kWarps * kStep) * kStep;
  const int begin = min(warp * each, pairs), end = min(begin + each, pairs);
  let_next_kernel_start();
  wait_for_kernels_before();
  int below = 0, own = 0, places[kFour];
#pragma unroll 4
  for (int i = begin + lane * kFour; i < end; i += kStep) {
    four_places(p, i, pairs, places);
#pragma unroll
    for (const int place : places) below += place < expert, own += place == expert;
  }
  below = __reduce_add_sync(kAllLanes, below);
  own = __reduce_add_sync(kAllLanes, own);
  if (lane == 0) below_of[warp] = below, own_of[warp] = own;
  __syncthreads();
  int first = 0;
  for (int w = 0; w < kWarps; ++w) first += below_of[w];
  if (threadIdx.x == 0) p.begin[expert] = first;
  if (threadIdx.x == 0 && expert == p.experts - 1) p.begin[p.experts] = pairs;
  for (int w = 0; w < warp; ++w) first += own_of[w];

  for (int i = begin + lane * kFour; own > 0 && i - lane * kFour < end; i += kStep) {
    four_places(p, i, pairs, places);
    int count = 0;
#pragma unroll
    for (const int place : places) count += place == expert;
    if (!__any_sync(kAllLanes, count)) continue;
    int at = count;
    for (int step = 1; step < kWarp; step *= 2) {
      const int before = __shfl_up_sync(kAllLanes, at, step);
      if (lane >= step) at += before;
    }
    const int all = __shfl_sync(kAllLanes, at, kWarp - 1);
    at += first - count;
    first += all;
#pragma unroll
    for (int j = 0; j < kFour; ++j) {
      if (places[j] != expert) continue;
      p.place[i + j] = at;
      p.rows_of[at++] = (i + j) / p.chosen;
    }
  }
}

__global__ __launch_bounds__(kThreads) void gather_rows_kernel(GatherRowsParams p) {
  const int64_t j = blockIdx.x;
  wait_for_kernels_before();
  let_next_kernel_start();
  if (j < p.begin[0] || j >= p.begin[p.experts]) return;
  copy_row(p, p.rows_of[j], j);
}

// ---- Both of fewer rows: a block for a pair, and for the beginning of an expert, which counts for
// itself.

__global__ __launch_bounds__(kThreads) void sort_and_gather_kernel(SortAndGatherParams p) {
  __shared__ int pairs_below[kWarps], experts_below[kWarps];
  const SortRowsParams& s = p.sort;
  const int tid = static_cast<int>(threadIdx.x), own = static_cast<int>(blockIdx.x);
  const int pairs = static_cast<int>(s.rows) * s.chosen;
  wait_for_kernels_before();
  let_next_kernel_start();
  const auto expert_of = [&](int i) {
    return expert_place(s.expert_places, s.ids[i], i / s.chosen);
  };
  const int expert = own < pairs ? expert_of(own) : 0;
  int before = 0, of_experts = 0;  // pairs before this one, and of the experts before number `own`
  for (int i = tid; i < pairs; i += kThreads) {
    const int other = expert_of(i);
    before += other < expert || (other == expert && i < own);
    of_experts += other < own;
  }
  before = __reduce_add_sync(kAllLanes, before);
  of_experts = __reduce_add_sync(kAllLanes, of_experts);
  if (tid % kWarp == 0) pairs_below[tid / kWarp] = before, experts_below[tid / kWarp] = of_experts;
  __syncthreads();
  before = of_experts = 0;
  for (int w = 0; w < kWarps; ++w) before += pairs_below[w], of_experts += experts_below[w];
  if (tid == 0 && own <= s.experts) s.begin[own] = of_experts;
  if (own >= pairs) return;
  const int t = own / s.chosen, first = static_cast<int>(p.gather.begin - s.begin);
  if (tid == 0) s.place[own] = before, s.rows_of[before] = t;
  if (first <= expert && expert < first + p.gather.experts) copy_row(p.gather, t, before);
}

}  // namespace

void sort_rows(const SortRowsParams& p, const Execution& on) {
  if (p.rows == 0) return;
  launch("sorting rows by expert", sort_rows_kernel,
         {.blocks = p.experts, .threads = kThreads, .shared_bytes = 0, .early = true}, on, p);
}

void gather_rows(const GatherRowsParams& p, const Execution& on) {
  if (p.most_rows == 0) return;
  launch("gathering rows", gather_rows_kernel,
         {.blocks = static_cast<int>(p.most_rows),
          .threads = kThreads,
          .shared_bytes = 0,
          .early = true},
         on, p);
}

void sort_and_gather(const SortAndGatherParams& p, const Execution& on) {
  const int64_t pairs = p.sort.rows * p.sort.chosen;
  CHECK(pairs <= kMostPairs, "pairs that blocks count for themselves");
  if (pairs == 0) return;
  launch("sorting and gathering rows", sort_and_gather_kernel,
         {.blocks = static_cast<int>(std::max<int64_t>(pairs, p.sort.experts + 1)),
          .threads = kThreads,
          .shared_bytes = 0,
          .early = true},
         on, p);
}

}  // namespace invar::cuda
