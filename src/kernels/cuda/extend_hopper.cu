// Products of order `hopper` whose chains go on from what is there: tiles of 128 rows and 64
// outputs, on tensor cores. Products that begin with zeros have better ones (product_hopper.cu).
#include "base/check.h"
#include "device/cuda/cuda_check.h"
#include "device/cuda/cuda_stream.h"
#include "kernels/cuda/elementwise.cuh"
#include "kernels/cuda/mma.cuh"
#include "kernels/cuda/product.cuh"
#include "kernels/cuda/training_operations.h"

namespace invar::cuda {

namespace {

constexpr int kThreads = 256, kRows = 128, kOutputs = 64, kSlice = 64;  // elements of K at a time
constexpr int kStride = kSlice / 2 + 4;  // words; the rows that a warp reads are in different banks

// 16 bytes into shared memory, beside what the thread does; zeros where there is nothing.
__device__ void copy_async(uint32_t* to, const bf16_t* from, bool is_there) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(
                   static_cast<uint32_t>(__cvta_generic_to_shared(to))),
               "l"(from), "r"(is_there ? 16 : 0)
               : "memory");
}

struct Stage {
  uint32_t x[kRows * kStride], w[kOutputs * kStride];
};

// Columns [k0, k0 + kSlice) of both; `k` is whole leaves, beyond which there are none.
__device__ void bring(Stage& to, const MatmulParams& p, int64_t t0, int64_t n0, int64_t k0,
                      int64_t k) {
  const auto* x = static_cast<const bf16_t*>(p.x.data);
  const auto* w = static_cast<const bf16_t*>(p.w.data);
  const int64_t w_stride = p.w.row_elements();
  constexpr int kChunks = kSlice / 8;
  for (int i = threadIdx.x; i < (kRows + kOutputs) * kChunks; i += kThreads) {
    const bool is_x = i < kRows * kChunks;
    const int row = (is_x ? i : i - kRows * kChunks) / kChunks, chunk = i % kChunks;
    const int64_t at = k0 + chunk * 8;
    const int64_t line = is_x ? t0 + row : n0 + row;
    const bool is_there = at < k && line < (is_x ? p.rows : p.w.n);
    const bf16_t* from = is_x ? x + line * p.x.stride + at : w + line * w_stride + at;
    copy_async((is_x ? to.x : to.w) + row * kStride + chunk * 4, is_there ? from : x, is_there);
  }
}

// A warp has 32 rows and 32 outputs: 2 x 4 instructions of 16 outputs and 8 rows.
__global__ __launch_bounds__(kThreads) void extend_kernel(const __grid_constant__ MatmulParams p) {
  extern __shared__ __align__(16) char shared[];
  auto* stages = reinterpret_cast<Stage*>(shared);
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp, i = lane / 4, j = lane % 4;
  const int64_t t0 = int64_t{blockIdx.x} * kRows, n0 = int64_t{blockIdx.y} * kOutputs;
  const int row0 = warp / 2 * 32, output0 = warp % 2 * 32;
  const int64_t k = round_up(p.w.k, kLeafPad);
  // Value v of instruction (a, b): output 16 a + 2 i + v / 2, row 8 b + 2 j + v % 2.
  const auto each = [&](const auto& use) {
#pragma unroll
    for (int at = 0; at < 32; ++at) {
      const int a = at / 16, b = at / 4 % 4, v = at % 4;
      const int64_t n = n0 + output0 + 16 * a + 2 * i + v / 2;
      const int64_t t = t0 + row0 + 8 * b + 2 * j + v % 2;
      if (n < p.w.n && t < p.rows) use(at, p.y[t * p.y_stride + n]);
    }
  };
  float d[8][4] = {};
  each([&](int at, float& y) { d[at / 4][at % 4] = y; });
  bring(stages[0], p, t0, n0, 0, k);
  asm volatile("cp.async.commit_group;" ::: "memory");
  for (int64_t k0 = 0, stage = 0; k0 < k; k0 += kSlice, stage ^= 1) {
    if (k0 + kSlice < k) bring(stages[stage ^ 1], p, t0, n0, k0 + kSlice, k);
    asm volatile("cp.async.commit_group;" ::: "memory");
    asm volatile("cp.async.wait_group 1;" ::: "memory");
    __syncthreads();
    const Stage& at = stages[stage];
    const int steps = static_cast<int>(min(int64_t{kSlice}, p.w.k - k0) + 15) / 16;
    for (int s = 0; s < steps; ++s) {
      StepOutputs outputs[2];
      for (int a = 0; a < 2; ++a) {
        const uint32_t* first = at.w + (output0 + 16 * a + 2 * i) * kStride;
        const StepRows even = load_row(first, s, lane), odd = load_row(first + kStride, s, lane);
        outputs[a] = {{even.b[0], odd.b[0], even.b[1], odd.b[1]}};
      }
#pragma unroll
      for (int b = 0; b < 4; ++b) {
        const StepRows rows = load_row(at.x + (row0 + 8 * b + i) * kStride, s, lane);
        step(d[b], outputs[0], rows);
        step(d[4 + b], outputs[1], rows);
      }
    }
    __syncthreads();
  }
  each([&](int at, float& y) { y = d[at / 4][at % 4] + 0.0f; });
}

}  // namespace

template <>
void extend_matmul<Order::hopper>(const MatmulParams& p, const Execution& on) {
  CHECK(p.w.layout == WeightLayout::rows && p.w.type == DType::bf16 && p.split_k == 1 && !p.bias,
        "a product that goes on");
  if (p.rows == 0) return;
  constexpr int kBytes = 2 * static_cast<int>(sizeof(Stage));
  const cudaStream_t stream = stream_of(on);
  gpu_of(on).allow_shared(reinterpret_cast<const void*>(extend_kernel), kBytes);
  const dim3 grid(ceil_divide(p.rows, kRows), ceil_divide(p.w.n, kOutputs));
  extend_kernel<<<grid, kThreads, kBytes, stream>>>(p);
  cuda_launched("multiplying matrices");
}

}  // namespace invar::cuda
