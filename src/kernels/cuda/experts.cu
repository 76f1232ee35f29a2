// Mixture of experts but for its products: kernels/reference/experts.cc on a GPU. Grids depend on
// the number of rows alone, so that a recorded step stays right.
#include "device/cuda/cuda_check.h"
#include "device/cuda/cuda_stream.h"
#include "kernels/cuda/experts.cuh"
#include "kernels/cuda/operations.h"

namespace invar::cuda {

namespace {

constexpr int kThreads = 256;

// ---- The choice: one warp for a row. Element i is lane i % 32's, as its i / 32-th.

constexpr int kRouteWarps = 2;

struct RouteRoom {
  float scores[Routing::kMaxExperts], choice[Routing::kMaxExperts], groups[Routing::kMaxExperts];
  float weights[Routing::kMaxChosen];
};

// The largest of values[0 .. count) whose bit is not taken, ties to the lower place; its bit is
// taken. By a warp.
__device__ int take_largest(const float* values, int count, uint32_t& taken) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  int at = -1;
  float best = 0.0f;
  for (int i = lane, j = 0; i < count; i += kWarp, ++j)
    if (!(taken >> j & 1) && (at < 0 || values[i] > best)) at = i, best = values[i];
  for (int half = kWarp / 2; half >= 1; half /= 2) {
    const float other = __shfl_xor_sync(kAllLanes, best, half);
    const int there = __shfl_xor_sync(kAllLanes, at, half);
    if (there >= 0 && (at < 0 || other > best || (other == best && there < at)))
      at = there, best = other;
  }
  if (at % kWarp == lane) taken |= uint32_t{1} << (at / kWarp);
  return at;
}

// routing::share_out over x[0 .. count), by a warp.
__device__ void share_out(float* x, int count) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  float max = -INFINITY;
  for (int i = lane; i < count; i += kWarp)
    if (x[i] > max) max = x[i];
  for (int half = kWarp / 2; half >= 1; half /= 2) {
    const float other = __shfl_xor_sync(kAllLanes, max, half);
    if (other > max) max = other;
  }
  for (int i = lane; i < count; i += kWarp) x[i] = math::exp(x[i] - max);
  __syncwarp();
  float sum = 0.0f;
#pragma unroll 8
  for (int i = 0; i < count; ++i) sum = sum + x[i];
  __syncwarp();
  for (int i = lane; i < count; i += kWarp) x[i] = x[i] / sum;
  __syncwarp();
}

__device__ void leave_groups(const Routing& how, RouteRoom& room) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp, size = how.experts / how.groups;
  for (int g = lane; g < how.groups; g += kWarp) {
    const float* of = room.choice + g * size;
    int first = 0, second = -1;
    for (int i = 1; i < size; ++i)
      if (of[i] > of[first]) first = i;
    for (int i = 0; how.pair_score && i < size; ++i)
      if (i != first && (second < 0 || of[i] > of[second])) second = i;
    room.groups[g] = second < 0 ? of[first] : of[first] + of[second];
  }
  __syncwarp();
  uint32_t kept = 0;
  for (int i = 0; i < how.chosen_groups; ++i) take_largest(room.groups, how.groups, kept);
  __syncwarp();
  for (int g = lane, j = 0; g < how.groups; g += kWarp, ++j)
    room.groups[g] = kept >> j & 1 ? 1.0f : 0.0f;
  __syncwarp();
  for (int e = lane; e < how.experts; e += kWarp)
    if (room.groups[e / size] == 0.0f) room.choice[e] = -INFINITY;
  __syncwarp();
}

__global__ __launch_bounds__(kRouteWarps* kWarp) void route_kernel(RouteParams p) {
  __shared__ RouteRoom rooms[kRouteWarps];
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int64_t t = int64_t{blockIdx.x} * kRouteWarps + threadIdx.x / kWarp;
  if (t >= p.rows) return;
  RouteRoom& room = rooms[threadIdx.x / kWarp];
  const Routing& how = p.how;
  for (int e = lane; e < how.experts; e += kWarp) {
    const float logit = p.logits[t * p.stride + e];
    room.scores[e] = how.score == ExpertScore::sigmoid ? 1.0f / (1.0f + math::exp(-logit)) : logit;
  }
  __syncwarp();
  if (how.score == ExpertScore::softmax) share_out(room.scores, how.experts);
  for (int e = lane; e < how.experts; e += kWarp) {
    const float c = p.bias ? room.scores[e] + p.bias[e] : room.scores[e];
    room.choice[e] = c != c ? -INFINITY : c;
  }
  __syncwarp();
  if (how.groups > 1) leave_groups(how, room);
  uint32_t taken = 0;
  for (int i = 0; i < how.chosen; ++i) take_largest(room.choice, how.experts, taken);
  for (int j = 0, before = 0; j * kWarp < how.experts; ++j) {
    const bool is_chosen = taken >> j & 1;
    const uint32_t lanes = __ballot_sync(kAllLanes, is_chosen);
    const int at = before + __popc(lanes & ((uint32_t{1} << lane) - 1));
    if (is_chosen) p.ids[t * how.chosen + at] = j * kWarp + lane;
    if (is_chosen) room.weights[at] = room.scores[j * kWarp + lane];
    before += __popc(lanes);
  }
  __syncwarp();
  if (how.score == ExpertScore::softmax_of_chosen) share_out(room.weights, how.chosen);
  float sum = 0.0f;
  for (int i = 0; i < how.chosen; ++i) sum = sum + room.weights[i];
  if (how.epsilon != 0) sum = sum + how.epsilon;
  for (int i = lane; i < how.chosen; i += kWarp) {
    float weight = room.weights[i];
    if (how.renormalised) weight = weight / sum;
    if (how.scale != 1) weight = weight * how.scale;
    p.weights[t * how.chosen + i] = weight;
  }
}

// ---- Rows sorted by expert: one block for an expert. It counts the pairs of those before it, then
// numbers its own in order.

__global__ __launch_bounds__(kThreads) void sort_rows_kernel(SortRowsParams p) {
  constexpr int kWarps = kThreads / kWarp;
  __shared__ int of_warp[kWarps];
  const int tid = static_cast<int>(threadIdx.x), lane = tid % kWarp, warp = tid / kWarp;
  const int expert = static_cast<int>(blockIdx.x), pairs = static_cast<int>(p.rows) * p.chosen;
  int below = 0;
  for (int i = tid; i < pairs; i += kThreads) below += p.ids[i] < expert;
  for (int half = kWarp / 2; half >= 1; half /= 2) below += __shfl_xor_sync(kAllLanes, below, half);
  if (lane == 0) of_warp[warp] = below;
  __syncthreads();
  int place = 0;
  for (int w = 0; w < kWarps; ++w) place += of_warp[w];
  if (tid == 0) p.begin[expert] = place;
  if (tid == 0 && expert == p.experts - 1) p.begin[p.experts] = pairs;
  for (int first = 0; first < pairs; first += kThreads) {
    const int i = first + tid;
    const bool is_mine = i < pairs && p.ids[i] == expert;
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
  const int64_t t = blockIdx.y, d = int64_t{blockIdx.x} * kThreads + threadIdx.x;
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

unsigned blocks_of(int64_t items, int64_t each) {
  return static_cast<unsigned>((items + each - 1) / each);
}

}  // namespace

void route(const RouteParams& p, const Execution& on) {
  if (p.rows == 0) return;
  route_kernel<<<blocks_of(p.rows, kRouteWarps), kRouteWarps * kWarp, 0, stream_of(on)>>>(p);
  cuda_launched("choosing experts");
}

void sort_rows(const SortRowsParams& p, const Execution& on) {
  if (p.rows == 0) return;
  sort_rows_kernel<<<static_cast<unsigned>(p.experts), kThreads, 0, stream_of(on)>>>(p);
  cuda_launched("sorting rows by expert");
}

void gather_rows(const GatherRowsParams& p, const Execution& on) {
  if (p.most_rows == 0) return;
  gather_rows_kernel<<<static_cast<unsigned>(p.most_rows), kThreads, 0, stream_of(on)>>>(p);
  cuda_launched("gathering rows");
}

void combine(const CombineParams& p, const Execution& on) {
  if (p.rows == 0) return;
  const dim3 grid(blocks_of(p.width, kThreads), static_cast<unsigned>(p.rows));
  combine_kernel<<<grid, kThreads, 0, stream_of(on)>>>(p);
  cuda_launched("adding experts' outputs");
}

}  // namespace invar::cuda
