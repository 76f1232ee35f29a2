// Operations around products with low-rank adapters: biases, and the curves of gated pairs.
#include "base/check.h"
#include "kernels/adapters.h"
#include "kernels/cuda/grid.cuh"
#include "kernels/cuda/operations.h"
#include "kernels/cuda/tma.cuh"

namespace invar::cuda {

namespace {

__global__ __launch_bounds__(kThreads) void add_bias_kernel(
    const __grid_constant__ AddBiasParams p) {
  const int64_t i = thread_of_grid(), t = i / p.width, n = i % p.width;
  let_next_kernel_start();
  wait_for_kernels_before();
  if (t >= p.rows) return;
  float* x =
      p.x + t * p.x_stride + p.output + n / kPanelWidth * kPanelWidth * p.step + n % kPanelWidth;
  *x = *x + p.bias[n];
}

// Outputs of up stand behind those of gate, or panel by panel between them.
template <WeightLayout layout>
__global__ __launch_bounds__(kThreads) void gate_pairs_kernel(
    const __grid_constant__ GatePairsParams p) {
  const int64_t padded = round_up(p.width, kLeafPad);
  const int64_t i = thread_of_grid(), t = i / padded, f = i % padded;
  let_next_kernel_start();
  wait_for_kernels_before();
  if (t >= p.rows) return;
  float value = 0.0f;
  if (f < p.width) {
    const float* dots = p.dots + t * p.dots_stride;
    const int64_t panel = f / kPanelWidth * 2 * kPanelWidth + f % kPanelWidth;
    value = layout == WeightLayout::rows
                ? gated(p.curve, dots[f], dots[Matrix{.n = p.width}.all_rows() + f])
                : gated(p.curve, dots[panel], dots[panel + kPanelWidth]);
  }
  store(p.out, t * p.out.stride + f, value);
}

}  // namespace

void add_bias(const AddBiasParams& p, const Execution& on) {
  if (p.rows == 0) return;
  launch("adding a bias", add_bias_kernel,
         {.blocks = blocks_of(p.rows * p.width),
          .threads = kThreads,
          .shared_bytes = 0,
          .early = true},
         on, p);
}

template <Order order>
void gate_pairs(const GatePairsParams& p, const Execution& on) {
  constexpr WeightLayout kLayout =
      order == Order::hopper ? WeightLayout::rows : WeightLayout::panels;
  CHECK(p.curve != Nonlinearity::gelu, "a curve of gated products");
  if (p.rows == 0) return;
  launch("gating", gate_pairs_kernel<kLayout>,
         {.blocks = blocks_of(p.rows * round_up(p.width, kLeafPad)),
          .threads = kThreads,
          .shared_bytes = 0,
          .early = true},
         on, p);
}

template void gate_pairs<Order::portable>(const GatePairsParams&, const Execution&);
template void gate_pairs<Order::hopper>(const GatePairsParams&, const Execution&);

}  // namespace invar::cuda
