// Products of up to 8 rows with few outputs (order `hopper`): a router's. What they take is the
// chain of one output, so a warp has 16 of them alone, by the tensor cores' instruction of the
// least latency. Their operands lie in shared memory.
#pragma once

#include "kernels/cuda/mma.cuh"
#include "kernels/cuda/product_hopper.cuh"

namespace invar::cuda::thin {

constexpr int kOutputs = 16, kRows = 8;
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
  for (int i = static_cast<int>(threadIdx.x); i < count * chunks;
       i += static_cast<int>(blockDim.x)) {
    const int row = i / chunks, at = i % chunks * kChunk;
    copy_early(shared_address(to + row * to_stride + at), from + row * stride + at);
  }
}
// `count` rows of weights from `first` on, as far as there are so many.
__device__ __forceinline__ void copy_weights(bf16_t* to, const Matrix& w, int first, int count) {
  const int k = static_cast<int>(w.row_elements()), left = static_cast<int>(w.all_rows()) - first;
  copy_rows(to, k + kWeightPad, static_cast<const bf16_t*>(w.data) + int64_t{first} * k, k,
            left < count ? left : count, k);
}

// The dots of a warp's 16 outputs with up to `rows` rows: d[j] is that of output 2 * (lane / 4) + j
// / 2 and row lane % 4 * 2 + j % 2. Those that do not exist are of whatever lies there: they meet
// nothing that does.
__device__ __forceinline__ void dots(const bf16_t* weights, const bf16_t* x, int rows, int k,
                                     float (&d)[4]) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp, i = lane / 4, word = lane % 4 * 2;
  const auto pairs = [&](const bf16_t* row, int s) {
    return *reinterpret_cast<const uint2*>(reinterpret_cast<const uint32_t*>(row) + s * 8 + word);
  };
  const bf16_t *even = weights + 2 * i * (k + kWeightPad), *odd = even + (k + kWeightPad),
               *row = x + min(i, rows - 1) * (k + kRowPad);
  for (float& value : d) value = 0.0f;
#pragma unroll 16
  for (int s = 0; s < k / 16; ++s) {
    const uint2 a = pairs(even, s), b = pairs(odd, s), c = pairs(row, s);
    step(d, {{a.x, b.x, a.y, b.y}}, {{c.x, c.y}});
  }
}

}  // namespace invar::cuda::thin
