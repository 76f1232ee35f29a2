// Matrix products of order `hopper`: chains of mma.sync m16n8k16 steps. A chain is never cut but
// into the runs that the order names, so every schedule gives the same bits.
#include <algorithm>

#include "base/check.h"
#include "device/cuda/cuda_check.h"
#include "kernels/cuda/cuda_kernels.h"
#include "kernels/cuda/mma.cuh"
#include "kernels/cuda/product.cuh"

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
// With r runs, r warps of a block take one each and the first adds them up.

template <int kTiles, typename End>
__global__ __launch_bounds__(kThreads) void direct_kernel(Product p, End end) {
  constexpr int kMatrices = End::kMatrices, kAhead = 8;  // steps whose weights are loaded at a time
  __shared__ float partial[kTiles * kMatrices * 4][kThreads];
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  const int run = warp % p.runs;
  const int64_t panel = int64_t{blockIdx.x} * (kWarps / p.runs) + warp / p.runs;
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

template <int kTiles, typename Params>
void direct(const Params& params) {
  const Product p = product_of(params);
  const dim3 grid(ceil_divide(p.panels, kWarps / p.runs), ceil_divide(p.rows, 8 * kTiles));
  direct_kernel<kTiles><<<grid, kThreads>>>(p, end_of(params));
  cuda_launched("multiplying matrices");
}

// ---- tiled: for many rows
//
// A block computes kPanelWarps * kPanels panels for 64 * kRowWarps rows. Slices of 32 inner
// elements come through shared memory, kStages in flight; a warp computes kPanels panels for 64
// rows. Runs follow one another, and partial sums wait in registers.

constexpr int kSlice = 32;     // inner elements of a slice
constexpr int kWarpTiles = 8;  // tiles of 8 rows per warp
constexpr int kStages = 4;

__device__ __forceinline__ void copy16(uint32_t to, const void* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}

// Where 16-byte chunks lie in shared memory, so that no two lanes that read together share a bank.
// A panel's slice has 16 rows (pairs) and an activation's slice one row per row, of 4 chunks each.
__device__ __forceinline__ uint32_t panel_chunk(int pair, int chunk) {
  const int slot = pair % 2 * 4 + chunk;
  return (pair / 2 * 8 + (slot ^ (pair / 2 % 2 * 2))) * 16;
}
__device__ __forceinline__ uint32_t row_chunk(int row, int chunk) {
  const int slot = row % 2 * 4 + chunk;
  return (row / 2 * 8 + (slot ^ (row / 2 % 4))) * 16;
}

template <int kPanels, int kRowWarps, bool kHasRuns, typename End>
__global__ __launch_bounds__(kThreads, 1) void tiled_kernel(Product p, End end) {
  constexpr int kPanelWarps = kWarps / kRowWarps, kBlockPanels = kPanelWarps * kPanels;
  constexpr int kBlockRows = kRowWarps * kWarpTiles * 8;
  constexpr int kPanelBytes = kBlockPanels * 1024, kRowBytes = kBlockRows * 64;
  extern __shared__ __align__(128) unsigned char shared[];
  const uint32_t base = static_cast<uint32_t>(__cvta_generic_to_shared(shared));

  const int tid = threadIdx.x, warp = tid / kWarp, lane = tid % kWarp;
  const int64_t all_panels = p.panels * End::kMatrices;
  const int64_t panel0 = int64_t{blockIdx.x} * kBlockPanels, t0 = int64_t{blockIdx.y} * kBlockRows;
  const int slices = static_cast<int>(round_up(p.k, kSlice) / kSlice), run_slices = slices / p.runs;

  const auto fetch = [&](int slice) {
    if (slice < slices) {
      const uint32_t to = base + slice % kStages * (kPanelBytes + kRowBytes);
      for (int c = tid; c < kPanelBytes / 16; c += kThreads) {
        const int64_t panel = panel0 + c / 64;
        const char* from = static_cast<const char*>(p.w) +
                           (panel < all_panels ? panel : all_panels - 1) * p.panel_elements * 2 +
                           slice * 1024;
        copy16(to + c / 64 * 1024 + panel_chunk(c % 64 / 4, c % 4), from + c % 64 * 16);
      }
      for (int c = tid; c < kRowBytes / 16; c += kThreads) {
        const int64_t t = t0 + c / 4;
        const char* from = static_cast<const char*>(p.x.data) +
                           (t < p.rows ? t : p.rows - 1) * p.x.stride * 2 + slice * 64;
        copy16(to + kPanelBytes + row_chunk(c / 4, c % 4), from + c % 4 * 16);
      }
    }
    asm volatile("cp.async.commit_group;" ::: "memory");
  };

  const int panel_in_block = warp % kPanelWarps * kPanels,
            row_in_block = warp / kPanelWarps * (kWarpTiles * 8);
  constexpr int kValues = kPanels * kWarpTiles * 4;
  float d[kValues] = {};
  RunTree<kHasRuns ? kValues : 1> tree;

  for (int i = 0; i < kStages - 1; ++i) fetch(i);
  for (int run = 0, slice = 0; run < p.runs; ++run) {
    for (int i = 0; i < run_slices; ++i, ++slice) {
      asm volatile("cp.async.wait_group %0;" ::"n"(kStages - 2) : "memory");
      __syncthreads();
      fetch(slice + kStages - 1);
      const uint32_t stage = slice % kStages * (kPanelBytes + kRowBytes);

      StepOutputs a[2][kPanels];
#pragma unroll
      for (int s = 0; s < 2; ++s)
#pragma unroll
        for (int j = 0; j < kPanels; ++j) {
          const unsigned char* panel = shared + stage + (panel_in_block + j) * 1024;
          const int pair = s * 8 + lane % 4, chunk = lane / 8, byte = lane / 4 % 2 * 8;
          const uint2 first =
              *reinterpret_cast<const uint2*>(panel + panel_chunk(pair, chunk) + byte);
          const uint2 second =
              *reinterpret_cast<const uint2*>(panel + panel_chunk(pair + 4, chunk) + byte);
          a[s][j] = {{first.x, first.y, second.x, second.y}};
        }
#pragma unroll
      for (int tile = 0; tile < kWarpTiles; ++tile) {
        // Four 8 x 8 matrices: the two halves of both steps of 8 rows.
        uint32_t b[4];
        const int row = row_in_block + tile * 8 + lane % 8;
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                     : "=r"(b[0]), "=r"(b[1]), "=r"(b[2]), "=r"(b[3])
                     : "r"(base + stage + kPanelBytes + row_chunk(row, lane / 8))
                     : "memory");
#pragma unroll
        for (int s = 0; s < 2; ++s)
#pragma unroll
          for (int j = 0; j < kPanels; ++j)
            step(*reinterpret_cast<float(*)[4]>(&d[(tile * kPanels + j) * 4]), a[s][j],
                 {{b[2 * s], b[2 * s + 1]}});
      }
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
  for (int tile = 0; tile < kWarpTiles; ++tile)
#pragma unroll
    for (int j = 0; j < kPanels; j += End::kMatrices) {
      const int64_t panel = panel0 + panel_in_block + j;
      if (panel < all_panels)
        finish(end, panel / End::kMatrices, t0 + row_in_block + tile * 8, p.rows, lane,
               *reinterpret_cast<const float(*)[End::kMatrices][4]>(&d[(tile * kPanels + j) * 4]));
    }
}

template <int kPanels, int kRowWarps, bool kHasRuns, typename Params>
void launch_tiled(const Params& params) {
  const Product p = product_of(params);
  const auto end = end_of(params);
  auto* kernel = tiled_kernel<kPanels, kRowWarps, kHasRuns, decltype(end_of(params))>;
  constexpr int kBlockPanels = kWarps / kRowWarps * kPanels,
                kBlockRows = kRowWarps * kWarpTiles * 8;
  constexpr int kBytes = kStages * (kBlockPanels * 1024 + kBlockRows * 64);
  cuda_check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes),
             "reserving shared memory");
  const dim3 grid(ceil_divide(p.panels * decltype(end)::kMatrices, kBlockPanels),
                  ceil_divide(p.rows, kBlockRows));
  kernel<<<grid, kThreads, kBytes>>>(p, end);
  cuda_launched("multiplying matrices");
}

// One run: two panels per warp; several: one, since partial sums take registers.
template <int kRowWarps, typename Params>
void tiled(const Params& params) {
  if constexpr (std::is_same_v<Params, MatmulParams>)
    if (params.runs > 1) return launch_tiled<1, kRowWarps, true>(params);
  launch_tiled<2, kRowWarps, false>(params);
}

// ---- The table

bool any_shape(int64_t, int) {
  return true;
}
bool whole_slices(int64_t k, int runs) {
  return runs == 1 || k % (runs * kSlice) == 0;
}

constexpr int64_t kAnyRows = int64_t{1} << 62;
constexpr ProductSchedule kSchedules[] = {
    {"direct8", any_shape, direct<1, MatmulParams>, direct<1, GatedMatmulParams>, 8},
    {"direct16", any_shape, direct<2, MatmulParams>, direct<2, GatedMatmulParams>, 16},
    {"direct32", any_shape, direct<4, MatmulParams>, direct<4, GatedMatmulParams>, 32},
    {"tiled64", whole_slices, tiled<1, MatmulParams>, tiled<1, GatedMatmulParams>, 64},
    {"tiled128", whole_slices, tiled<2, MatmulParams>, tiled<2, GatedMatmulParams>, kAnyRows},
    {"direct32", any_shape, direct<4, MatmulParams>, direct<4, GatedMatmulParams>, kAnyRows},
};

}  // namespace

std::span<const ProductSchedule> hopper_product_schedules() {
  return kSchedules;
}

}  // namespace invar::cuda
