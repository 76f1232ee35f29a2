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
