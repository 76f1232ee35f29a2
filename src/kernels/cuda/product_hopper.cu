// Matrix products of order `hopper`: chains of mma.sync m16n8k16 steps. A chain is never cut but
// into the runs that the order names, so every schedule gives the same bits.
#include <algorithm>
#include <array>

#include "base/check.h"
#include "device/cuda/cuda_check.h"
#include "device/cuda/cuda_stream.h"
#include "kernels/cuda/cuda_kernels.h"
#include "kernels/cuda/mma.cuh"
#include "kernels/cuda/product.cuh"
#include "kernels/cuda/wgmma.cuh"

namespace invar::cuda {

namespace {

constexpr int kThreads = 256, kWarps = kThreads / kWarp;

// Hands the dots that one lane holds to `end`: dot[m] is of matrix m, outputs 16 * panel + .., rows
// t0 + ...
template <typename End>
__device__ __forceinline__ void finish(const End& end, int64_t panel, int64_t t0, int64_t rows,
                                       int lane, const float (&d)[End::kMatrices][4]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int64_t output = panel * kPanelWidth + lane / 4 * 2 + i / 2,
                  t = t0 + lane % 4 * 2 + i % 2;
    float dot[End::kMatrices];
#pragma unroll
    for (int m = 0; m < End::kMatrices; ++m) dot[m] = d[m][i] + 0.0f;
    if (t < rows) end(t, output, dot);
  }
}

// ---- direct: for few rows
//
// A warp computes one panel (of every matrix) for 8 * kTiles rows, operands straight from memory.
// With r runs, r warps of a block take one each and the first adds them up. kAhead is how many
// steps' weights are on their way at a time.

template <int kTiles, int kAhead, typename End>
__global__ __launch_bounds__(kThreads) void direct_kernel(Product p, End end) {
  constexpr int kMatrices = End::kMatrices;
  __shared__ float partial[kTiles * kMatrices * 4][kThreads];
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  const int run = warp % p.runs;
  const int block_panels = static_cast<int>(blockDim.x) / kWarp / p.runs;
  const int64_t panel = int64_t{blockIdx.x} * block_panels + warp / p.runs;
  const int64_t t0 = int64_t{blockIdx.y} * (8 * kTiles);
  const int steps = static_cast<int>(p.steps_per_run(16)), first = run * steps;

  float d[kTiles][kMatrices][4] = {};
  if (panel < p.panels) {
    const uint32_t* w =
        static_cast<const uint32_t*>(p.w) + panel * kMatrices * (p.panel_elements / 2);
    const uint32_t* x[kTiles];
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
      const int64_t t = t0 + i * 8 + lane / 4;
      x[i] =
          static_cast<const uint32_t*>(p.x.data) + (t < p.rows ? t : p.rows - 1) * (p.x.stride / 2);
    }
    const auto steps_from = [&](int s, int count) {
      StepOutputs a[kAhead][kMatrices];
#pragma unroll
      for (int i = 0; i < kAhead; ++i)
#pragma unroll
        for (int m = 0; m < kMatrices; ++m)
          if (i < count) a[i][m] = load_outputs(w + m * (p.panel_elements / 2), s + i, lane);
#pragma unroll
      for (int i = 0; i < kAhead; ++i)
#pragma unroll
        for (int tile = 0; tile < kTiles; ++tile)
          if (i < count) {
            const StepRows b = load_row(x[tile], s + i, lane);
#pragma unroll
            for (int m = 0; m < kMatrices; ++m) step(d[tile][m], a[i][m], b);
          }
    };
    int s = first;
    for (; s + kAhead <= first + steps; s += kAhead) steps_from(s, kAhead);
    if (s < first + steps) steps_from(s, first + steps - s);
  }

  if (p.runs > 1) {
#pragma unroll
    for (int i = 0; i < kTiles * kMatrices * 4; ++i)
      partial[i][threadIdx.x] = d[i / (kMatrices * 4)][i / 4 % kMatrices][i % 4];
    __syncthreads();
    if (run != 0) return;
#pragma unroll
    for (int i = 0; i < kTiles * kMatrices * 4; ++i) {
      float s[8];
#pragma unroll
      for (int r = 0; r < 8; ++r) s[r] = r < p.runs ? partial[i][threadIdx.x + r * kWarp] : 0.0f;
      float sum = s[0] + s[1];
      if (p.runs > 2) sum = sum + (s[2] + s[3]);
      if (p.runs > 4) sum = sum + ((s[4] + s[5]) + (s[6] + s[7]));
      d[i / (kMatrices * 4)][i / 4 % kMatrices][i % 4] = sum;
    }
  }
  if (panel >= p.panels) return;
#pragma unroll
  for (int i = 0; i < kTiles; ++i) finish(end, panel, t0 + i * 8, p.rows, lane, d[i]);
}

// kBlockWarps is how many warps a block has, unless there are more runs.
template <int kTiles, int kAhead, int kBlockWarps, typename Params>
void direct(const Params& params, const Execution& on) {
  const Product p = product_of(params);
  const int warps = std::max(kBlockWarps, p.runs);
  const dim3 grid(ceil_divide(p.panels, warps / p.runs), ceil_divide(p.rows, 8 * kTiles));
  direct_kernel<kTiles, kAhead><<<grid, warps * kWarp, 0, stream_of(on)>>>(p, end_of(params));
  cuda_launched("multiplying matrices");
}

// ---- wide: for many rows
//
// Two warpgroups, each 64 outputs (four panels) times kRows rows with wgmma. Outputs go from shared
// memory, where they lie as packed, through registers; the tensor cores read rows in place. Slices
// of 64 inner elements, kDepth in flight; runs follow one another, and
// partial sums wait in registers.

constexpr int kHalf = 32;  // inner elements that lie together in a panel
constexpr int kWideSlice = 64, kWideSteps = kWideSlice / 16, kWidePanels = kWarps;

template <int kRows>
constexpr int kWideStageBytes = kWidePanels * 2048 + kRows * 128;
template <int kRows>
constexpr int kWideDepth = kRows == 256 ? 4 : 5;

// Copies 16 bytes, or zeros.
__device__ __forceinline__ void copy16(uint32_t to, const void* from, bool copies = true) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from),
               "r"(copies ? 16 : 0)
               : "memory");
}

// Where the 16-byte chunks of a half slice of a panel lie in shared memory, 16 rows (pairs) of
// four, so that no two lanes that read together share a bank.
__device__ __forceinline__ uint32_t panel_chunk(int pair, int chunk) {
  const int slot = pair % 2 * 4 + chunk;
  return (pair / 2 * 8 + (slot ^ (pair / 2 % 2 * 2))) * 16;
}

// This lane's outputs of a slice of two halves. Without a pair of matrices a warp has one panel and
// its rows i and i + 8 are outputs 2i and 2i + 1; with one, two warps share a gate panel and an up
// panel, and their rows i and i + 8 are gate and up of the same output.
template <int kMatrices>
__device__ __forceinline__ void load_wide(const unsigned char* panels, int warp, int lane,
                                          uint32_t (&a)[kWideSteps][4]) {
#pragma unroll
  for (int s = 0; s < kWideSteps; ++s) {
    const int pair = s % 2 * 8 + lane % 4;
    if constexpr (kMatrices == 1) {
      const unsigned char* at = panels + warp * 2048 + s / 2 * 1024 + lane / 4 % 2 * 8;
      const uint2 first = *reinterpret_cast<const uint2*>(at + panel_chunk(pair, lane / 8));
      const uint2 second = *reinterpret_cast<const uint2*>(at + panel_chunk(pair + 4, lane / 8));
      a[s][0] = first.x;
      a[s][1] = first.y;
      a[s][2] = second.x;
      a[s][3] = second.y;
    } else {
      const int output = warp % 2 * 8 + lane / 4;
      const unsigned char* at = panels + warp / 2 * 4096 + s / 2 * 1024 + output % 4 * 4;
#pragma unroll
      for (int i = 0; i < 4; ++i)
        a[s][i] = *reinterpret_cast<const uint32_t*>(at + i % 2 * 2048 +
                                                     panel_chunk(pair + i / 2 * 4, output / 4));
    }
  }
}

template <int kRows, bool kHasRuns, typename End>
__global__ __launch_bounds__(kThreads, 1) void wide_kernel(Product p, End end) {
  constexpr int kDepth = kWideDepth<kRows>, kStageBytes = kWideStageBytes<kRows>,
                kRowsAt = kWidePanels * 2048;
  constexpr int kMatrices = End::kMatrices;
  extern __shared__ __align__(1024) unsigned char shared[];
  const uint32_t base = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
  const int tid = threadIdx.x, warp = tid / kWarp, lane = tid % kWarp;
  const int64_t all_panels = p.panels * kMatrices;
  const int64_t panel0 = int64_t{blockIdx.y} * kWidePanels, t0 = int64_t{blockIdx.x} * kRows;
  const int slices = static_cast<int>(round_up(p.k, kWideSlice) / kWideSlice),
            run_slices = slices / p.runs;
  const int halves =
      static_cast<int>(round_up(p.k, kHalf) / kHalf);  // that memory holds; the rest is zeros

  // What this thread copies of every slice: 16 bytes of kOutputCopies places of panels and of
  // kRowCopies places of rows. Both advance by a slice at a time.
  constexpr int kOutputCopies = kWidePanels * 128 / kThreads, kRowCopies = kRows * 8 / kThreads;
  const char* outputs_from[kOutputCopies];
  const char* rows_from[kRowCopies];
#pragma unroll
  for (int i = 0; i < kOutputCopies; ++i) {
    const int c = i * kThreads + tid;
    const int64_t panel = panel0 + c / 128;
    outputs_from[i] = static_cast<const char*>(p.w) + c % 128 * 16 +
                      (panel < all_panels ? panel : all_panels - 1) * p.panel_elements * 2;
  }
#pragma unroll
  for (int i = 0; i < kRowCopies; ++i) {
    const int c = i * kThreads + tid;
    const int64_t t = t0 + c / 8;
    rows_from[i] = static_cast<const char*>(p.x.data) + c % 8 * 16 +
                   (t < p.rows ? t : p.rows - 1) * p.x.stride * 2;
  }
  const auto fetch = [&](int slice) {
    if (slice < slices) {
      const uint32_t to = base + slice % kDepth * kStageBytes;
#pragma unroll
      for (int i = 0; i < kOutputCopies; ++i) {
        const int c = i * kThreads + tid;
        copy16(to + c / 64 * 1024 + panel_chunk(c % 64 / 4, c % 4), outputs_from[i] + slice * 2048,
               slice * 2 + c % 128 / 64 < halves);
      }
#pragma unroll
      for (int i = 0; i < kRowCopies; ++i) {
        const int row = (i * kThreads + tid) / 8, chunk = tid % 8;
        copy16(to + kRowsAt + row * 128 + (chunk ^ row % 8) * 16, rows_from[i] + slice * 128,
               slice * 2 + chunk / 4 < halves);
      }
    }
    asm volatile("cp.async.commit_group;" ::: "memory");
  };

  constexpr int kValues = kRows / 2;
  float d[kValues] = {};
  RunTree<kHasRuns ? kValues : 1> tree;
  for (int i = 0; i < kDepth - 1; ++i) fetch(i);
  for (int run = 0, slice = 0; run < p.runs; ++run) {
    for (int i = 0; i < run_slices; ++i, ++slice) {
      asm volatile("cp.async.wait_group %0;" ::"n"(kDepth - 2) : "memory");
      asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
      __syncthreads();
      const int stage = slice % kDepth * kStageBytes;
      uint32_t a[kWideSteps][4];
      load_wide<kMatrices>(shared + stage, warp, lane, a);
      const uint64_t rows = describe_rows(base + stage + kRowsAt);
      warpgroup_begin();
#pragma unroll
      for (int s = 0; s < kWideSteps; ++s) warpgroup_step<kRows>(d, a[s], rows + 2 * s);
      warpgroup_commit();
      fetch(slice + kDepth - 1);  // into the stage that every warp was done with at the barrier
      warpgroup_wait();
    }
    if constexpr (kHasRuns) {
      tree.add(run, d);
      if (run + 1 < p.runs)
#pragma unroll
        for (int i = 0; i < kValues; ++i) d[i] = 0.0f;
    }
  }
  asm volatile("cp.async.wait_group 0;" ::: "memory");

#pragma unroll
  for (int i = 0; i < kValues; ++i) {
    const int64_t t = t0 + i / 4 * 8 + lane % 4 * 2 + i % 2;
    if (t >= p.rows) continue;
    if constexpr (kMatrices == 1) {
      const int64_t panel = panel0 + warp;
      const float dot[1] = {d[i] + 0.0f};
      if (panel < all_panels) end(t, panel * kPanelWidth + lane / 4 * 2 + i / 2 % 2, dot);
    } else if (i / 2 % 2 == 0) {
      const int64_t panel = panel0 / 2 + warp / 2;
      const float dots[2] = {d[i] + 0.0f, d[i + 2] + 0.0f};
      if (panel < p.panels) end(t, panel * kPanelWidth + warp % 2 * 8 + lane / 4, dots);
    }
  }
}

template <int kRows, typename Params>
void wide(const Params& params, const Execution& on) {
  const Product p = product_of(params);
  const auto end = end_of(params);
  using End = decltype(end_of(params));
  constexpr int kBytes = kWideDepth<kRows> * kWideStageBytes<kRows>;
  const cudaStream_t stream = stream_of(on);
  const auto launch = [&](auto* kernel) {
    cuda_check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes),
               "reserving shared memory");
    const dim3 grid(ceil_divide(p.rows, kRows),
                    ceil_divide(p.panels * End::kMatrices, kWidePanels));
    kernel<<<grid, kThreads, kBytes, stream>>>(p, end);
    cuda_launched("multiplying matrices");
  };
  if (p.runs > 1) {
    if constexpr (kRows == 64 && End::kMatrices == 1) launch(wide_kernel<kRows, true, End>);
    return;
  }
  launch(wide_kernel<kRows, false, End>);
}

// ---- The table

bool any_shape(int64_t, int) {
  return true;
}
bool one_run(int64_t, int runs) {
  return runs == 1;
}
bool whole_slices(int64_t k, int runs) {
  return runs == 1 || k % (runs * kWideSlice) == 0;
}

template <int kTiles, int kAhead, int kBlockWarps>
constexpr ProductSchedule direct_schedule(const char* name, ProductSchedule::Rows max_rows) {
  return {name, any_shape, direct<kTiles, kAhead, kBlockWarps, MatmulParams>,
          direct<kTiles, kAhead, kBlockWarps, GatedMatmulParams>, max_rows};
}
template <int kRows>
constexpr ProductSchedule wide_schedule(const char* name, bool (*can)(int64_t, int),
                                        ProductSchedule::Rows max_rows) {
  return {name, can, wide<kRows, MatmulParams>, wide<kRows, GatedMatmulParams>, max_rows};
}

// direct: rows of a tile, steps ahead, warps of a block. wide: rows of a tile. The limits are where
// the times cross on an H200 (docs/benchmarks.md). A build without all schedules has one of each
// family.
template <bool kAll>
constexpr auto schedules() {
  constexpr int64_t kAnyRows = ProductSchedule::kAnyRows;
  constexpr ProductSchedule::Rows kAny = {.plain = kAnyRows, .gated = kAnyRows, .runs = kAnyRows};
  if constexpr (kAll)
    return std::to_array<ProductSchedule>({
        direct_schedule<1, 32, 2>("direct 8/32/2", {.plain = 8, .gated = 0, .runs = 0}),
        direct_schedule<2, 16, 2>("direct 16/16/2", {.plain = 16, .gated = 16, .runs = 16}),
        direct_schedule<4, 8, 8>("direct 32/8/8", {.plain = 0, .gated = 32, .runs = 32}),
        wide_schedule<64>("wide 64", whole_slices, {.plain = 64, .gated = 64, .runs = kAnyRows}),
        wide_schedule<128>("wide 128", one_run, {.plain = 1024, .gated = kAnyRows, .runs = 0}),
        wide_schedule<256>("wide 256", one_run, {.plain = kAnyRows, .gated = 0, .runs = 0}),
        direct_schedule<4, 8, 8>("direct 32/8/8, any shape", kAny),
    });
  else
    return std::to_array<ProductSchedule>({
        direct_schedule<4, 8, 8>("direct 32/8/8", {.plain = 32, .gated = 32, .runs = 32}),
        wide_schedule<64>("wide 64", whole_slices, kAny),
        direct_schedule<4, 8, 8>("direct 32/8/8, any shape", kAny),
    });
}
constexpr auto kSchedules = schedules<INVAR_ALL_SCHEDULES>();

}  // namespace

std::span<const ProductSchedule> hopper_product_schedules() {
  return kSchedules;
}

}  // namespace invar::cuda
