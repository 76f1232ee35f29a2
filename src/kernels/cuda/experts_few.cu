// The choice of few rows' experts, their order and the rows that the experts read, in one kernel:
// with so few pairs every block computes the choice for itself, and brings one row to its place.
#include "device/cuda/cuda_stream.h"
#include "kernels/cuda/experts_route.cuh"
#include "kernels/cuda/operations.h"
#include "kernels/cuda/tma.cuh"

namespace invar::cuda {

namespace {

constexpr int kThreads = 512, kWarps = kThreads / kWarp;
static_assert(kThreads >= kFewPairs);

template <int kEach>
struct Shared {
  RouteRoom<kEach> rooms[kWarps];
  int32_t ids[kFewPairs], places[kFewPairs];
  float weights[kFewPairs];
  int from;  // the row that stands at this block's place
};

// How many pairs' experts lie before that place.
__device__ __forceinline__ int below(const int32_t* places, int pairs, int place) {
  int count = 0;
  for (int i = 0; i < pairs; ++i) count += places[i] < place;
  return count;
}

template <int kEach>
__global__ __launch_bounds__(kThreads) void choose_kernel(const ChooseExpertsParams p) {
  extern __shared__ __align__(16) unsigned char memory[];
  Shared<kEach>& shared = *reinterpret_cast<Shared<kEach>*>(memory);
  const int tid = static_cast<int>(threadIdx.x), place = static_cast<int>(blockIdx.x);
  const int chosen = p.sort.chosen, pairs = static_cast<int>(p.sort.rows) * chosen;
  let_next_kernel_start();
  wait_for_kernels_before();
  for (int t = tid / kWarp; t < p.sort.rows; t += kWarps)
    route_row(p.route, t, shared.rooms[tid / kWarp], shared.ids + t * chosen,
              shared.weights + t * chosen);
  __syncthreads();
  if (tid < pairs)
    shared.places[tid] = expert_place(p.sort.expert_places, shared.ids[tid], tid / chosen);
  __syncthreads();
  if (tid < pairs) {
    const int lies_at = shared.places[tid];
    int at = below(shared.places, pairs, lies_at);
    for (int i = 0; i < tid; ++i) at += shared.places[i] == lies_at;
    if (at == place) shared.from = tid / chosen;
    if (place == 0) {
      p.route.ids[tid] = shared.ids[tid];
      p.route.weights[tid] = shared.weights[tid];
      p.sort.place[tid] = at;
      p.sort.rows_of[at] = tid / chosen;
    }
  }
  if (place == 0)
    for (int e = tid; e <= p.sort.experts; e += kThreads)
      p.sort.begin[e] = below(shared.places, pairs, e);
  __syncthreads();
  const GatherRowsParams& g = p.gather;
  const int first = static_cast<int>(g.begin - p.sort.begin);
  if (place < below(shared.places, pairs, first) ||
      place >= below(shared.places, pairs, first + g.experts))
    return;
  const int64_t size = g.x.type == DType::bf16 ? 2 : 4;
  const auto* from = reinterpret_cast<const uint4*>(static_cast<const char*>(g.x.data) +
                                                    shared.from * g.x.stride * size);
  auto* to = reinterpret_cast<uint4*>(static_cast<char*>(g.out.data) + place * g.out.stride * size);
  const int count = static_cast<int>(round_up(g.width, kLeafPad) * size / sizeof(uint4));
  for (int i = tid; i < count; i += kThreads) to[i] = from[i];
}

}  // namespace

void choose_experts(const ChooseExpertsParams& p, const Execution& on) {
  if (p.sort.rows == 0) return;
  by_experts(p.route.how.experts, [&](auto each) {
    launch("choosing experts", choose_kernel<each()>,
           {.blocks = static_cast<int>(p.sort.rows) * p.sort.chosen,
            .threads = kThreads,
            .shared_bytes = static_cast<int>(sizeof(Shared<each()>)),
            .early = true},
           on, p);
  });
}

}  // namespace invar::cuda
