// Mixture of experts but for its products: kernels/reference/experts.cc on a GPU. Grids depend on
// the number of rows alone, so that a recorded step stays right.
#include "base/check.h"
#include "device/cuda/cuda_stream.h"
#include "kernels/cuda/experts_route.cuh"
#include "kernels/cuda/operations.h"
#include "kernels/cuda/tma.cuh"

namespace invar::cuda {

namespace {

constexpr int kThreads = 256;

// ---- The choice: one warp for a row.

constexpr int kRouteWarps = 2;

template <int kEach>
__global__ __launch_bounds__(kRouteWarps* kWarp) void route_kernel(RouteParams p) {
  __shared__ RouteRoom<kEach> rooms[kRouteWarps];
  const int64_t t = int64_t{blockIdx.x} * kRouteWarps + threadIdx.x / kWarp;
  let_next_kernel_start();
  wait_for_kernels_before();
  if (t >= p.rows) return;
  route_row(p, t, rooms[threadIdx.x / kWarp], p.ids + t * p.how.chosen,
            p.weights + t * p.how.chosen);
}

// ---- Rows sorted by expert: one block for an expert. It counts the pairs of those before it, then
// numbers its own in order.

__global__ __launch_bounds__(kThreads) void sort_rows_kernel(SortRowsParams p) {
  constexpr int kWarps = kThreads / kWarp;
  __shared__ int of_warp[kWarps];
  const int tid = static_cast<int>(threadIdx.x), lane = tid % kWarp, warp = tid / kWarp;
  const int expert = static_cast<int>(blockIdx.x), pairs = static_cast<int>(p.rows) * p.chosen;
  let_next_kernel_start();
  wait_for_kernels_before();
  const auto key = [&](int i) { return expert_place(p.expert_places, p.ids[i], i / p.chosen); };
  int below = 0;
  for (int i = tid; i < pairs; i += kThreads) below += key(i) < expert;
  for (int half = kWarp / 2; half >= 1; half /= 2) below += __shfl_xor_sync(kAllLanes, below, half);
  if (lane == 0) of_warp[warp] = below;
  __syncthreads();
  int place = 0;
  for (int w = 0; w < kWarps; ++w) place += of_warp[w];
  if (tid == 0) p.begin[expert] = place;
  if (tid == 0 && expert == p.experts - 1) p.begin[p.experts] = pairs;
  for (int first = 0; first < pairs; first += kThreads) {
    const int i = first + tid;
    const bool is_mine = i < pairs && key(i) == expert;
    const uint32_t lanes = __ballot_sync(kAllLanes, is_mine);
    __syncthreads();
    if (lane == 0) of_warp[warp] = __popc(lanes);
    __syncthreads();
    int at = place + __popc(lanes & ((uint32_t{1} << lane) - 1));
    for (int w = 0; w < kWarps; ++w) {
      if (w < warp) at += of_warp[w];
      place += of_warp[w];
    }
    if (!is_mine) continue;
    p.place[i] = at;
    p.rows_of[at] = i / p.chosen;
  }
}

__global__ __launch_bounds__(kThreads) void gather_rows_kernel(GatherRowsParams p) {
  const int64_t j = blockIdx.x;
  let_next_kernel_start();
  wait_for_kernels_before();
  if (j < p.begin[0] || j >= p.begin[p.experts]) return;
  const int64_t size = p.x.type == DType::bf16 ? 2 : 4;
  const auto* from = reinterpret_cast<const uint4*>(static_cast<const char*>(p.x.data) +
                                                    p.rows_of[j] * p.x.stride * size);
  auto* to = reinterpret_cast<uint4*>(static_cast<char*>(p.out.data) + j * p.out.stride * size);
  const int count = static_cast<int>(round_up(p.width, kLeafPad) * size / sizeof(uint4));
  for (int i = static_cast<int>(threadIdx.x); i < count; i += kThreads) to[i] = from[i];
}

// ---- The sum: a thread for an element.

__global__ __launch_bounds__(kThreads) void combine_kernel(CombineParams p) {
  const int64_t of_row = (p.width + kThreads - 1) / kThreads, t = blockIdx.x / of_row;
  const int64_t d = blockIdx.x % of_row * kThreads + threadIdx.x;
  let_next_kernel_start();
  wait_for_kernels_before();
  if (d >= p.width) return;
  float sum = 0.0f;
#pragma unroll 8
  for (int i = 0; i < p.chosen; ++i) {
    const int64_t at = p.place[t * p.chosen + i] * p.y.stride + d;
    float y = value_at(p.y.data, p.y.type, at);
    if (p.rounds) y = bf16_to_f32(f32_to_bf16(y));
    sum = __fmaf_rn(p.weights[t * p.chosen + i], y, sum);
  }
  if (p.shared) {
    const float gate = p.gate ? 1.0f / (1.0f + math::exp(-p.gate[t * p.gate_stride])) : 1.0f;
    sum = __fmaf_rn(gate, p.shared[t * p.shared_stride + d], sum);
  }
  float& h = p.hidden[t * p.width + d];
  h = h + sum * p.scale;
}

int blocks_of(int64_t items, int64_t each) {
  return static_cast<int>((items + each - 1) / each);
}

}  // namespace

void route(const RouteParams& p, const Execution& on) {
  CHECK(!p.given, "routes that are given are the CPU's");
  if (p.rows == 0) return;
  by_experts(p.how.experts, [&](auto each) {
    launch("choosing experts", route_kernel<each()>,
           {.blocks = blocks_of(p.rows, kRouteWarps),
            .threads = kRouteWarps * kWarp,
            .shared_bytes = 0,
            .early = true},
           on, p);
  });
}

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

void combine(const CombineParams& p, const Execution& on) {
  CHECK(!p.by_place, "a sum by place is the CPU's");
  if (p.rows == 0) return;
  launch("adding experts' outputs", combine_kernel,
         {.blocks = blocks_of(p.width, kThreads) * static_cast<int>(p.rows),
          .threads = kThreads,
          .shared_bytes = 0,
          .early = true},
         on, p);
}

}  // namespace invar::cuda
