// The backward of experts: kernels/reference/experts_backward.cc on a GPU.
#include "device/cuda/cuda_stream.h"
#include "kernels/cuda/grid.cuh"
#include "kernels/cuda/tma.cuh"
#include "kernels/cuda/training_operations.h"
#include "numerics/routing.h"

namespace invar::cuda {

namespace {

constexpr int kRouterThreads = 32;

// A warp has a pair.
__global__ __launch_bounds__(kThreads) void pair_gradients_kernel(
    const __grid_constant__ PairGradientsParams p) {
  const int64_t i = warp_of_grid();
  if (i >= p.rows * p.chosen) return;
  const float* d = p.d + i / p.chosen * p.width;
  const float* y = static_cast<const float*>(p.y.data) + p.place[i] * p.y.stride;
  bf16_t* out = static_cast<bf16_t*>(p.out.data) + p.place[i] * p.out.stride;
  float lanes[2] = {};
  for (int64_t n = threadIdx.x % kWarp, half = 0; n < p.width; n += kWarp, half ^= 1) {
    lanes[half] = __fmaf_rn(d[n], bf16_to_f32(f32_to_bf16(y[n])), lanes[half]);
    out[n] = f32_to_bf16(p.weights[i] * d[n]);
  }
  for (int64_t n = p.width + threadIdx.x % kWarp; n < round_up(p.width, kLeafPad); n += kWarp)
    out[n] = bf16_t{0};
  const float sum = halve64(lanes[0], lanes[1]);
  if (threadIdx.x % kWarp == 0) p.d_weights[i] = sum;
}

// A warp has a row.
__global__ __launch_bounds__(kThreads) void shared_gradients_kernel(
    const __grid_constant__ SharedGradientsParams p) {
  const int64_t t = warp_of_grid();
  if (t >= p.rows) return;
  const float gate = routing::logistic(p.z[t * p.z_stride]);
  const float *d = p.d + t * p.width, *y = p.y + t * p.y_stride;
  bf16_t* out = row_of(p.out, t);
  float lanes[2] = {};
  for (int64_t n = threadIdx.x % kWarp, half = 0; n < p.width; n += kWarp, half ^= 1) {
    lanes[half] = __fmaf_rn(d[n], y[n], lanes[half]);
    out[n] = f32_to_bf16(gate * d[n]);
  }
  for (int64_t n = p.width + threadIdx.x % kWarp; n < round_up(p.width, kLeafPad); n += kWarp)
    out[n] = bf16_t{0};
  const float sum = halve64(lanes[0], lanes[1]);
  if (threadIdx.x % kWarp == 0) p.d_gates[t] = sum;
}

__global__ __launch_bounds__(kThreads) void sum_pairs_kernel(
    const __grid_constant__ SumPairsParams p) {
  const int64_t at = thread_of_grid(), t = at / p.width, n = at % p.width;
  if (t >= p.rows) return;
  float sum = 0.0f;
  for (int64_t i = t * p.chosen; i < (t + 1) * p.chosen; ++i)
    sum = sum + p.x[p.place[i] * p.x_stride + n];
  p.out[at] = sum;
}

// Gradients of scores from those of the weights that the chosen ones became.
__device__ void score_gradients(const RouterBackwardParams& p, int64_t t, const float* scores,
                                float* out) {
  const int32_t* ids = p.ids + t * p.how.chosen;
  const float* d = p.d_weights + t * p.how.chosen;
  float total = 0.0f, mean = 0.0f;
  for (int i = 0; i < p.how.chosen; ++i) total = total + scores[ids[i]];
  if (p.how.epsilon != 0) total = total + p.how.epsilon;
  for (int i = 0; i < p.how.chosen && p.how.renormalised; ++i)
    mean = __fmaf_rn(d[i] * p.how.scale, scores[ids[i]] / total, mean);
  for (int i = 0; i < p.how.chosen; ++i) {
    const float g = d[i] * p.how.scale;
    out[ids[i]] = out[ids[i]] + (p.how.renormalised ? (g - mean) / total : g);
  }
}

// Scores from logits, and the gradients of logits from those of scores.
__device__ void scores_of(const Routing& how, float* x) {
  if (how.score == ExpertScore::softmax)
    return routing::share_out(x, how.experts, [](int) { return true; });
  for (int e = 0; e < how.experts; ++e) x[e] = routing::logistic(x[e]);
}
__device__ void through_scores(const Routing& how, const float* scores, float* d) {
  float mean = 0.0f;
  for (int e = 0; e < how.experts; ++e) mean = __fmaf_rn(d[e], scores[e], mean);
  for (int e = 0; e < how.experts; ++e)
    d[e] = how.score == ExpertScore::softmax ? scores[e] * (d[e] - mean)
                                             : d[e] * (scores[e] * (1.0f - scores[e]));
}

// A thread has a row.
__global__ __launch_bounds__(kRouterThreads) void router_backward_kernel(
    const __grid_constant__ RouterBackwardParams p) {
  float scores[Routing::kMaxExperts], d[Routing::kMaxExperts];
  const int64_t t = thread_of_grid();
  const int experts = p.how.experts, columns = experts + (p.d_gates ? 1 : 0);
  if (t >= p.rows) return;
  for (int e = 0; e < experts; ++e) {
    scores[e] = p.logits[t * p.stride + e];
    d[e] = p.balance ? p.balance[t / p.balance_rows * experts + e] : 0.0f;
  }
  scores_of(p.how, scores);
  score_gradients(p, t, scores, d);
  through_scores(p.how, scores, d);
  bf16_t* out = row_of(p.out, t);
  for (int e = 0; e < round_up(columns, kLeafPad); ++e)
    out[e] = e < experts ? f32_to_bf16(d[e]) : bf16_t{0};
  if (!p.d_gates) return;
  const float gate = routing::logistic(p.logits[t * p.stride + experts]);
  out[experts] = f32_to_bf16(p.d_gates[t] * (gate * (1.0f - gate)));
}

__global__ __launch_bounds__(kThreads) void gather_leaves_kernel(
    const __grid_constant__ GatherLeavesParams p) {
  const int64_t padded = round_up(p.width, kLeafPad);
  const int64_t at = thread_of_grid(), j = at / padded, n = at % padded;
  if (j >= p.rows) return;
  const auto* x = static_cast<const bf16_t*>(p.x.data);
  static_cast<bf16_t*>(p.out.data)[j * p.out.stride + n] =
      p.from[j] < 0 ? bf16_t{0} : x[p.from[j] * p.x.stride + n];
}

}  // namespace

void pair_gradients(const PairGradientsParams& p, const Execution& on) {
  if (p.rows == 0) return;
  launch("gradients of experts", pair_gradients_kernel,
         {blocks_of(p.rows * p.chosen * kWarp), kThreads, 0}, on, p);
}
void shared_gradients(const SharedGradientsParams& p, const Execution& on) {
  if (p.rows == 0) return;
  launch("gradients of a shared expert", shared_gradients_kernel,
         {blocks_of(p.rows * kWarp), kThreads, 0}, on, p);
}
void sum_pairs(const SumPairsParams& p, const Execution& on) {
  if (p.rows == 0) return;
  launch("sums of experts", sum_pairs_kernel, {blocks_of(p.rows * p.width), kThreads, 0}, on, p);
}
void router_backward(const RouterBackwardParams& p, const Execution& on) {
  if (p.rows == 0) return;
  launch("a router's backward", router_backward_kernel,
         {blocks_of(p.rows, kRouterThreads), kRouterThreads, 0}, on, p);
}
void gather_leaves(const GatherLeavesParams& p, const Execution& on) {
  if (p.rows == 0) return;
  launch("gathering rows", gather_leaves_kernel,
         {blocks_of(p.rows * round_up(p.width, kLeafPad)), kThreads, 0}, on, p);
}

}  // namespace invar::cuda
