// Matrix products of order `portable` of many rows on CUDA cores: a block has a tile of rows and 64
// outputs, whose operands come through shared memory; a thread has the chains of some rows and of
// one output of each of four panels.
#include "device/cuda/cuda_check.h"
#include "device/cuda/cuda_stream.h"
#include "kernels/cuda/portable_tiles.h"
#include "kernels/cuda/product.cuh"
#include "kernels/cuda/training_operations.h"

namespace invar::cuda {

namespace {

constexpr int kThreads = 256, kPanels = 4, kLeafWords = 16;  // a word: an even and an odd element
constexpr int kStageLeaves = 2, kStageWords = kStageLeaves * kLeafWords;
constexpr int kRowStride = kStageWords + 4;  // rows that a warp reads stand in different banks
constexpr int kPanelWords = kStageLeaves * 256;

__device__ float low(uint32_t pair) {
  return __uint_as_float(pair << 16);
}
__device__ float high(uint32_t pair) {
  return __uint_as_float(pair & 0xffff0000);
}
// 16 bytes into shared memory, beside what the thread does.
__device__ void copy_async(uint32_t* to, const void* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(
                   static_cast<uint32_t>(__cvta_generic_to_shared(to))),
               "l"(from)
               : "memory");
}

template <int kRows>  // of a thread
struct Stage {
  static constexpr int kTileRows = 16 * kRows;
  uint32_t x[kTileRows * kRowStride];
  uint32_t w[kPanels * kPanelWords];
};

// Leaves [leaf, leaf + count) of the tile.
template <int kRows, int kMatrices>
__device__ void bring(Stage<kRows>& to, const Product& p, int64_t t0, int64_t panel0, int leaf,
                      int count) {
  const auto* x = static_cast<const bf16_t*>(p.x.data);
  const auto* w = static_cast<const bf16_t*>(p.w);
  constexpr int kChunks = kStageWords / 4;
  for (int i = threadIdx.x; i < Stage<kRows>::kTileRows * kChunks; i += kThreads) {
    const int row = i / kChunks, chunk = i % kChunks;
    if (chunk >= count * 4) continue;
    const int64_t t = t0 + row < p.rows ? t0 + row : p.rows - 1;
    copy_async(to.x + row * kRowStride + chunk * 4, x + t * p.x.stride + leaf * 32 + chunk * 8);
  }
  const int64_t last = p.panels * kMatrices - 1;
  for (int i = threadIdx.x; i < kPanels * kPanelWords / 4; i += kThreads) {
    const int panel = i / (kPanelWords / 4), chunk = i % (kPanelWords / 4);
    if (chunk >= count * 64) continue;
    const int64_t from = panel0 * kMatrices + panel;
    copy_async(to.w + panel * kPanelWords + chunk * 4,
               w + (from < last ? from : last) * p.panel_elements + leaf * 512 + chunk * 8);
  }
}

// sum = sum + (even + odd), of one leaf.
template <int kRows>
__device__ void add_leaf(const Stage<kRows>& at, int leaf, float (&sum)[kRows * kPanels]) {
  const int lane = threadIdx.x % 16, first = threadIdx.x / 16;
  float even[kRows * kPanels] = {}, odd[kRows * kPanels] = {};
#pragma unroll
  for (int word = leaf * kLeafWords; word < (leaf + 1) * kLeafWords; word += 2) {
    uint2 x[kRows];
#pragma unroll
    for (int r = 0; r < kRows; ++r)
      x[r] = *reinterpret_cast<const uint2*>(at.x + (first + 16 * r) * kRowStride + word);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      uint32_t w[kPanels];
#pragma unroll
      for (int n = 0; n < kPanels; ++n) w[n] = at.w[n * kPanelWords + (word + half) * 16 + lane];
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        const uint32_t pair = half ? x[r].y : x[r].x;
#pragma unroll
        for (int n = 0; n < kPanels; ++n) {
          even[r * kPanels + n] = __fmaf_rn(low(pair), low(w[n]), even[r * kPanels + n]);
          odd[r * kPanels + n] = __fmaf_rn(high(pair), high(w[n]), odd[r * kPanels + n]);
        }
      }
    }
  }
#pragma unroll
  for (int i = 0; i < kRows * kPanels; ++i) sum[i] = sum[i] + (even[i] + odd[i]);
}

// Chains begin with +0, or with what is there.
struct FromZero {
  __device__ float operator()(int64_t, int64_t) const { return 0.0f; }
};
struct FromOutputs {
  const float* y;
  int64_t stride, n, rows;
  __device__ float operator()(int64_t t, int64_t output) const {
    return t < rows && output < n ? y[t * stride + output] : 0.0f;
  }
};

template <int kRows, bool kHasRuns, typename Begin, typename End>
__global__ __launch_bounds__(kThreads) void tiles_kernel(Product p, Begin begin, End end) {
  extern __shared__ __align__(16) char shared[];
  auto* stages = reinterpret_cast<Stage<kRows>*>(shared);
  constexpr int kMatrices = End::kMatrices, kOutputs = kPanels / kMatrices;
  const int lane = threadIdx.x % 16, first = threadIdx.x / 16;
  const int64_t t0 = int64_t{blockIdx.x} * Stage<kRows>::kTileRows;
  const int64_t panel0 = int64_t{blockIdx.y} * kOutputs;
  const int run_leaves = static_cast<int>(p.steps_per_run(32));
  const int leaves = run_leaves * p.split_k;
  float sum[kRows * kPanels];
#pragma unroll
  for (int i = 0; i < kRows * kPanels; ++i)
    sum[i] = begin(t0 + first + 16 * (i / kPanels), (panel0 + i % kPanels) * 16 + lane);
  RunTree<kHasRuns ? kRows * kPanels : 1> tree;

  const auto count = [&](int leaf) { return min(kStageLeaves, leaves - leaf); };
  bring<kRows, kMatrices>(stages[0], p, t0, panel0, 0, count(0));
  asm volatile("cp.async.commit_group;" ::: "memory");
  int left = run_leaves, run = 0;
  for (int leaf = 0, stage = 0; leaf < leaves; leaf += kStageLeaves, stage ^= 1) {
    if (leaf + kStageLeaves < leaves)
      bring<kRows, kMatrices>(stages[stage ^ 1], p, t0, panel0, leaf + kStageLeaves,
                              count(leaf + kStageLeaves));
    asm volatile("cp.async.commit_group;" ::: "memory");
    asm volatile("cp.async.wait_group 1;" ::: "memory");
    __syncthreads();
    for (int i = 0; i < count(leaf); ++i) {
      add_leaf(stages[stage], i, sum);
      if constexpr (kHasRuns)
        if (--left == 0) {
          tree.add(run, sum);
          if (++run < p.split_k) {
#pragma unroll
            for (int s = 0; s < kRows * kPanels; ++s) sum[s] = 0.0f;
            left = run_leaves;
          }
        }
    }
    __syncthreads();
  }
#pragma unroll
  for (int r = 0; r < kRows; ++r)
#pragma unroll
    for (int n = 0; n < kOutputs; ++n) {
      const int64_t t = t0 + first + 16 * r;
      float dot[kMatrices];
#pragma unroll
      for (int m = 0; m < kMatrices; ++m) dot[m] = sum[r * kPanels + n * kMatrices + m] + 0.0f;
      if (t < p.rows && panel0 + n < p.panels) end(t, (panel0 + n) * 16 + lane, dot);
    }
}

template <int kRows, bool kHasRuns, typename Begin, typename End>
void launch_tiles(const Product& p, const Begin& begin, const End& end, const Execution& on) {
  auto* kernel = tiles_kernel<kRows, kHasRuns, Begin, End>;
  constexpr int kBytes = 2 * static_cast<int>(sizeof(Stage<kRows>));
  const cudaStream_t stream = stream_of(on);
  gpu_of(on).allow_shared(reinterpret_cast<const void*>(kernel), kBytes);
  const dim3 grid(ceil_divide(p.rows, Stage<kRows>::kTileRows),
                  ceil_divide(p.panels, kPanels / End::kMatrices));
  kernel<<<grid, kThreads, kBytes, stream>>>(p, begin, end);
  cuda_launched("multiplying matrices");
}

}  // namespace

void portable_tiles(const MatmulParams& p, const Execution& on) {
  if (p.split_k > 1) return launch_tiles<4, true>(product_of(p), FromZero{}, end_of(p), on);
  launch_tiles<8, false>(product_of(p), FromZero{}, end_of(p), on);
}

void portable_tiles(const GatedMatmulParams& p, const Execution& on) {
  launch_tiles<8, false>(product_of(p), FromZero{}, end_of(p), on);
}

template <>
void extend_matmul<Order::portable>(const MatmulParams& p, const Execution& on) {
  if (p.rows == 0) return;
  launch_tiles<8, false>(product_of(p), FromOutputs{p.y, p.y_stride, p.w.n, p.rows}, end_of(p), on);
}

}  // namespace invar::cuda
