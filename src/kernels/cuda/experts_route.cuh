// The choice of a row's experts on a GPU, numerics 7: one warp for a row. Element i is lane i %
// 32's, as its i / 32-th.
#pragma once

#include "kernels/cuda/elementwise.cuh"

namespace invar::cuda {

struct RouteRoom {
  float scores[Routing::kMaxExperts], choice[Routing::kMaxExperts], groups[Routing::kMaxExperts];
  float weights[Routing::kMaxChosen];
};

// The largest of values[0 .. count) whose bit is not taken, ties to the lower place; its bit is
// taken. By a warp.
__device__ inline int take_largest(const float* values, int count, uint32_t& taken) {
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
__device__ inline void share_out(float* x, int count) {
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

__device__ inline void leave_groups(const Routing& how, RouteRoom& room) {
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

// The experts of row t, ascending, and their weights, to `ids` and `weights`.
__device__ inline void route_row(const RouteParams& p, int64_t t, RouteRoom& room, int32_t* ids,
                                 float* weights) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
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
    if (is_chosen) ids[at] = j * kWarp + lane;
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
    weights[i] = weight;
  }
}

}  // namespace invar::cuda
