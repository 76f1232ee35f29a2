// Products of up to 8 rows with few outputs (order `hopper`): a router's. What they take is the
// chain of one output, so a warp has 16 of them alone, by the tensor cores' instruction of the
// least latency. Its weights are in shared memory before the kernels before it are done.
#include "kernels/cuda/mma.cuh"
#include "kernels/cuda/product_hopper.cuh"
#include "kernels/cuda/product_schedules.h"

namespace invar::cuda {

namespace {

constexpr int kThreads = 256, kOutputs = 16, kRows = 8;
constexpr int kChunk = 8;  // elements that a thread copies at once
// Elements behind each row: then what half a warp reads at once lies in different banks.
constexpr int kWeightPad = 8, kRowPad = 16;

__device__ __forceinline__ void copy_early(uint32_t to, const void* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}
__device__ __forceinline__ void wait_for_copies() {
  asm volatile("cp.async.wait_all;" ::: "memory");
}

// Rows of `k` elements, the first `count` of which exist.
__device__ __forceinline__ void copy_rows(bf16_t* to, int to_stride, const bf16_t* from,
                                          int64_t stride, int count, int k) {
  const int chunks = k / kChunk;
  for (int i = static_cast<int>(threadIdx.x); i < count * chunks; i += kThreads) {
    const int row = i / chunks, at = i % chunks * kChunk;
    copy_early(shared_address(to + row * to_stride + at), from + row * stride + at);
  }
}

__global__ __launch_bounds__(kThreads) void thin_kernel(const MatmulParams p, const PlainEnd end) {
  extern __shared__ __align__(16) unsigned char shared[];
  const int k = static_cast<int>(p.w.row_elements()), lane = static_cast<int>(threadIdx.x);
  const int first = static_cast<int>(blockIdx.x) * kOutputs, rows = static_cast<int>(p.rows);
  const int left = static_cast<int>(p.w.all_rows()) - first;
  bf16_t* weights = reinterpret_cast<bf16_t*>(shared);
  bf16_t* x = weights + kOutputs * (k + kWeightPad);
  let_next_kernel_start();
  copy_rows(weights, k + kWeightPad, static_cast<const bf16_t*>(p.w.data) + int64_t{first} * k, k,
            left < kOutputs ? left : kOutputs, k);
  wait_for_kernels_before();
  copy_rows(x, k + kRowPad, static_cast<const bf16_t*>(p.x.data), p.x.stride, rows, k);
  wait_for_copies();
  __syncthreads();
  if (lane >= kWarp) return;
  // mma.cuh: this lane's outputs and row, and its words of a step. Those that do not exist are
  // whatever lies there: they meet nothing that does.
  const int i = lane / 4, word = lane % 4 * 2;
  const auto pairs = [&](const bf16_t* row, int s) {
    return *reinterpret_cast<const uint2*>(reinterpret_cast<const uint32_t*>(row) + s * 8 + word);
  };
  const bf16_t *even = weights + 2 * i * (k + kWeightPad), *odd = even + (k + kWeightPad),
               *row = x + i * (k + kRowPad);
  float d[4] = {};
#pragma unroll 16
  for (int s = 0; s < k / 16; ++s) {
    const uint2 a = pairs(even, s), b = pairs(odd, s), c = pairs(row, s);
    step(d, {{a.x, b.x, a.y, b.y}}, {{c.x, c.y}});
  }
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    const int t = word + j % 2;
    if (t < rows) end.one(t, first + 2 * i + j / 2, d[j]);
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
