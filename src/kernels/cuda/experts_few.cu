// The choice of few rows' experts, their order and the rows that the experts read, in one kernel:
// with so few pairs every block computes the choice for itself, and brings one row to its place.
#include "device/cuda/cuda_stream.h"
#include "kernels/cuda/experts_few.cuh"
#include "kernels/cuda/experts_rows.cuh"
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
  const int place = static_cast<int>(blockIdx.x);
  const int pairs = static_cast<int>(p.sort.rows) * p.sort.chosen;
  wait_for_kernels_before();
  let_next_kernel_start();  // not before, as in experts_rows.cu
  choose_few(p.route, p.sort, shared, place == 0);
  const GatherRowsParams& g = p.gather;
  const int first = static_cast<int>(g.begin - p.sort.begin);
  if (place < below(shared.places, pairs, first) ||
      place >= below(shared.places, pairs, first + g.experts))
    return;
  copy_row(g, shared.rows_of[place], place);
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
