// The choice of a row's experts on a GPU, numerics 7: one warp for a row. Element i is lane i %
// 32's, as its i / 32-th of up to kEach.
#pragma once

#include <climits>

#include "kernels/cuda/elementwise.cuh"

namespace invar::cuda {

template <int kEach>
struct RouteRoom {
  static constexpr int kMost = kEach * kWarp;
  alignas(16) float scores[kMost];
  float choice[kMost], groups[kMost];
  float weights[Routing::kMaxChosen];
};

// How floats compare, as unsigned numbers above 0: zeros are equal. Not of NaN.
__device__ __forceinline__ uint32_t rank_of(float x) {
  const uint32_t bits = __float_as_uint(x + 0.0f);
  return bits >> 31 ? ~bits : bits | 0x80000000;
}
__device__ __forceinline__ float of_rank(uint32_t rank) {
  return __uint_as_float(rank >> 31 ? rank & 0x7fffffff : ~rank);
}

// The largest of a warp's elements, ties to the lower place; its rank becomes 0: it is taken.
template <int kEach>
__device__ __forceinline__ int take_largest(uint32_t (&ranks)[kEach]) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  uint32_t best = 0;
#pragma unroll
  for (int j = 0; j < kEach; ++j) best = max(best, ranks[j]);
  best = __reduce_max_sync(kAllLanes, best);
  unsigned at = UINT_MAX;
#pragma unroll
  for (int j = kEach - 1; j >= 0; --j)
    if (ranks[j] == best) at = static_cast<unsigned>(j * kWarp + lane);
  at = __reduce_min_sync(kAllLanes, at);
#pragma unroll
  for (int j = 0; j < kEach; ++j)
    if (at == static_cast<unsigned>(j * kWarp + lane)) ranks[j] = 0;
  return static_cast<int>(at);
}

// The ranks of values[0 .. count), 0 behind them.
template <int kEach>
__device__ __forceinline__ void rank_all(const float* values, int count, uint32_t (&ranks)[kEach]) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
#pragma unroll
  for (int j = 0; j < kEach; ++j)
    ranks[j] = j * kWarp + lane < count ? rank_of(values[j * kWarp + lane]) : 0;
}

// routing::share_out over x[0 .. count), by a warp that holds x[i] as x_i; `room` is for as many,
// in whole fours. Zeros behind the last one leave a sum as it is.
template <int kEach>
__device__ inline void share_out(float (&x)[kEach], int count, float* room) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  uint32_t top = 0;
#pragma unroll
  for (int j = 0; j < kEach; ++j)
    if (j * kWarp + lane < count && x[j] == x[j]) top = max(top, rank_of(x[j]));
  top = __reduce_max_sync(kAllLanes, top);
  const float largest = top ? of_rank(top) : -INFINITY;
#pragma unroll
  for (int j = 0; j < kEach; ++j) {
    x[j] = j * kWarp + lane < count ? math::exp(x[j] - largest) : 0.0f;
    if (j * kWarp < count) room[j * kWarp + lane] = x[j];
  }
  __syncwarp();
  float sum = 0.0f;
#pragma unroll 8
  for (int i = 0; i < count; i += 4) {
    const float4 four = *reinterpret_cast<const float4*>(room + i);
    sum = (((sum + four.x) + four.y) + four.z) + four.w;
  }
  __syncwarp();
#pragma unroll
  for (int j = 0; j < kEach; ++j)
    if (j * kWarp + lane < count) x[j] = x[j] / sum;
}

// routing::leave_groups over room.choice.
template <int kEach>
__device__ inline void leave_groups(const Routing& how, RouteRoom<kEach>& room) {
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
  uint32_t ranks[kEach];
  rank_all(room.groups, how.groups, ranks);
  for (int i = 0; i < how.chosen_groups; ++i) take_largest(ranks);
  __syncwarp();
#pragma unroll
  for (int j = 0; j < kEach; ++j)
    if (j * kWarp + lane < how.groups) room.groups[j * kWarp + lane] = ranks[j] ? 0.0f : 1.0f;
  __syncwarp();
  for (int e = lane; e < how.experts; e += kWarp)
    if (room.groups[e / size] == 0.0f) room.choice[e] = -INFINITY;
  __syncwarp();
}

// What row t's experts are chosen by.
template <int kEach>
__device__ __forceinline__ void choice_ranks(const RouteParams& p, const float (&scores)[kEach],
                                             RouteRoom<kEach>& room, uint32_t (&ranks)[kEach]) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp, experts = p.how.experts;
#pragma unroll
  for (int j = 0; j < kEach; ++j) {
    const int e = j * kWarp + lane;
    ranks[j] = 0;
    if (e >= experts) continue;
    float c = p.bias ? scores[j] + p.bias[e] : scores[j];
    if (c != c) c = -INFINITY;
    ranks[j] = rank_of(c);
    if (p.how.groups > 1) room.choice[e] = c;
  }
  if (p.how.groups == 1) return;
  __syncwarp();
  leave_groups(p.how, room);
  rank_all(room.choice, experts, ranks);
}

// The weights of the chosen `ids`, in room.weights, to `weights`.
template <int kEach>
__device__ __forceinline__ void weigh(const RouteParams& p, RouteRoom<kEach>& room,
                                      const int32_t* ids, float* weights) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const Routing& how = p.how;
  if (how.score == ExpertScore::softmax_of_chosen) {
    float x[Routing::kMaxChosen / kWarp] = {room.weights[lane], room.weights[lane + kWarp]};
    __syncwarp();
    share_out(x, how.chosen, room.weights);
    room.weights[lane] = x[0], room.weights[lane + kWarp] = x[1];
    __syncwarp();
  }
  float sum = 0.0f;
#pragma unroll 8
  for (int i = 0; i < how.chosen; ++i) sum = sum + room.weights[i];
  if (how.epsilon != 0) sum = sum + how.epsilon;
  for (int i = lane; i < how.chosen; i += kWarp) {
    float weight = room.weights[i];
    if (how.renormalised) weight = weight / sum;
    if (how.scale != 1) weight = weight * how.scale;
    if (p.scales) weight = weight * p.scales[ids[i]];
    weights[i] = weight;
  }
}

// The experts of row t, ascending, and their weights, to `ids` and `weights`.
template <int kEach>
__device__ inline void route_row(const RouteParams& p, int64_t t, RouteRoom<kEach>& room,
                                 int32_t* ids, float* weights) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const Routing& how = p.how;
  float scores[kEach];
#pragma unroll
  for (int j = 0; j < kEach; ++j)
    scores[j] = j * kWarp + lane < how.experts ? p.logits[t * p.stride + j * kWarp + lane] : 0.0f;
  if (how.score == ExpertScore::softmax) share_out(scores, how.experts, room.scores);
  if (how.score == ExpertScore::sigmoid) {
#pragma unroll
    for (int j = 0; j < kEach; ++j) scores[j] = 1.0f / (1.0f + math::exp(-scores[j]));
  }
  uint32_t ranks[kEach];
  choice_ranks(p, scores, room, ranks);
  for (int i = 0; i < how.chosen; ++i) take_largest(ranks);
  int before = 0;
#pragma unroll
  for (int j = 0; j < kEach; ++j) {
    const bool is_chosen = j * kWarp + lane < how.experts && ranks[j] == 0;
    const uint32_t lanes = __ballot_sync(kAllLanes, is_chosen);
    const int at = before + __popc(lanes & ((uint32_t{1} << lane) - 1));
    if (is_chosen) ids[at] = j * kWarp + lane;
    if (is_chosen) room.weights[at] = scores[j];
    before += __popc(lanes);
  }
  __syncwarp();
  weigh(p, room, ids, weights);
}

// `use` gets, as a constant, how many elements a lane has of so many experts.
template <typename Use>
void by_experts(int32_t experts, Use use) {
  if (experts <= 4 * kWarp) return use(std::integral_constant<int, 4>());
  if (experts <= 8 * kWarp) return use(std::integral_constant<int, 8>());
  use(std::integral_constant<int, Routing::kMaxExperts / kWarp>());
}

}  // namespace invar::cuda
