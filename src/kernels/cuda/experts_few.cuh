// The choice of few rows' experts and their order, by one block that does it all.
#pragma once

#include "kernels/cuda/experts_route.cuh"

namespace invar::cuda {

// In shared memory.
template <int kEach, int kWarps>
struct FewChoices {
  RouteRoom<kEach> rooms[kWarps];
  int32_t ids[kFewPairs], places[kFewPairs];
  float weights[kFewPairs];
  int32_t rows_of[kFewPairs];  // the row that stands at each place
};

// How many pairs' experts lie before that place.
__device__ __forceinline__ int below(const int32_t* places, int pairs, int place) {
  int count = 0;
  for (int i = 0; i < pairs; ++i) count += places[i] < place;
  return count;
}

// By all threads of a block of kWarps warps; one block of a grid writes what is chosen.
template <int kEach, int kWarps>
__device__ __forceinline__ void choose_few(const RouteParams& route, const SortRowsParams& sort,
                                           FewChoices<kEach, kWarps>& shared, bool writes) {
  static_assert(kWarps * kWarp >= kFewPairs);
  const int tid = static_cast<int>(threadIdx.x);
  const int chosen = sort.chosen, pairs = static_cast<int>(sort.rows) * chosen;
  for (int t = tid / kWarp; t < sort.rows; t += kWarps)
    route_row(route, t, shared.rooms[tid / kWarp], shared.ids + t * chosen,
              shared.weights + t * chosen);
  __syncthreads();
  if (tid < pairs)
    shared.places[tid] = expert_place(sort.expert_places, shared.ids[tid], tid / chosen);
  __syncthreads();
  if (tid < pairs) {
    const int lies_at = shared.places[tid];
    int at = below(shared.places, pairs, lies_at);
    for (int i = 0; i < tid; ++i) at += shared.places[i] == lies_at;
    shared.rows_of[at] = tid / chosen;
    if (writes) {
      route.ids[tid] = shared.ids[tid];
      route.weights[tid] = shared.weights[tid];
      sort.place[tid] = at;
      sort.rows_of[at] = tid / chosen;
    }
  }
  if (writes)
    for (int e = tid; e <= sort.experts; e += kWarps * kWarp)
      sort.begin[e] = below(shared.places, pairs, e);
  __syncthreads();
}

}  // namespace invar::cuda
