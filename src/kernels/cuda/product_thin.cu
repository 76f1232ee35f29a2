// Products of few rows with few outputs (product_thin.cuh), whose weights are in shared memory
// before the kernels before them are done.
#include "kernels/cuda/product_schedules.h"
#include "kernels/cuda/product_thin.cuh"

namespace invar::cuda {

namespace {

using namespace thin;

constexpr int kThreads = 256;

__global__ __launch_bounds__(kThreads) void thin_kernel(const MatmulParams p, const PlainEnd end) {
  extern __shared__ __align__(16) unsigned char shared[];
  const int k = static_cast<int>(p.w.row_elements()), lane = static_cast<int>(threadIdx.x);
  const int first = static_cast<int>(blockIdx.x) * kOutputs, rows = static_cast<int>(p.rows);
  bf16_t* weights = reinterpret_cast<bf16_t*>(shared);
  bf16_t* x = weights + kOutputs * (k + kWeightPad);
  let_next_kernel_start();
  copy_weights(weights, p.w, first, kOutputs);
  wait_for_kernels_before();
  copy_rows(x, k + kRowPad, static_cast<const bf16_t*>(p.x.data), p.x.stride, rows, k);
  wait_for_copies();
  __syncthreads();
  if (lane >= kWarp) return;
  float d[4];
  dots(weights, x, rows, k, d);
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    const int t = lane % 4 * 2 + j % 2;
    if (t < rows) end.one(t, first + lane / 4 * 2 + j / 2, d[j]);
  }
}

}  // namespace

bool thin_can(const ProductShape& s) {
  return s.rows <= kRows && s.split_k == 1 && s.matrices == 1 && s.n <= 512 && s.k <= 4096;
}

void thin_matmul(const MatmulParams& p, const Execution& on) {
  const int k = static_cast<int>(p.w.row_elements());
  const int bytes =
      (kOutputs * (k + kWeightPad) + kRows * (k + kRowPad)) * static_cast<int>(sizeof(bf16_t));
  launch("multiplying matrices", thin_kernel,
         {.blocks = ceil_div(p.w.n, kOutputs),
          .threads = kThreads,
          .shared_bytes = bytes,
          .early = true},
         on, p, end_of(p));
}

}  // namespace invar::cuda
