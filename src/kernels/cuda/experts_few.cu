// The choice of few rows' experts, their order and the rows that the experts read, in one kernel:
// with so few pairs every block computes the choice for itself, and brings one row to its place.
#include "device/cuda/cuda_stream.h"
#include "kernels/cuda/experts_few.cuh"
#include "kernels/cuda/operations.h"
#include "kernels/cuda/tma.cuh"

namespace invar::cuda {

namespace {

constexpr int kThreads = 512, kWarps = kThreads / kWarp;

template <int kEach>
using Shared = FewChoices<kEach, kWarps>;

template <int kEach>
__global__ __launch_bounds__(kThreads) void choose_kernel(const ChooseExpertsParams p) {
  extern __shared__ __align__(16) unsigned char memory[];
  Shared<kEach>& shared = *reinterpret_cast<Shared<kEach>*>(memory);
  const int tid = static_cast<int>(threadIdx.x), place = static_cast<int>(blockIdx.x);
  const int pairs = static_cast<int>(p.sort.rows) * p.sort.chosen;
  let_next_kernel_start();
  wait_for_kernels_before();
  choose_few(p.route, p.sort, shared, place == 0);
  const GatherRowsParams& g = p.gather;
  const int first = static_cast<int>(g.begin - p.sort.begin);
  if (place < below(shared.places, pairs, first) ||
      place >= below(shared.places, pairs, first + g.experts))
    return;
  const int64_t size = g.x.type == DType::bf16 ? 2 : 4;
  const auto* from = reinterpret_cast<const uint4*>(static_cast<const char*>(g.x.data) +
                                                    shared.rows_of[place] * g.x.stride * size);
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
