// Matrix products of order `portable` on CUDA cores: even and odd chains of fma, leaf by leaf.
#include <array>

#include "device/cuda/cuda_check.h"
#include "device/cuda/cuda_stream.h"
#include "kernels/cuda/cuda_kernels.h"
#include "kernels/cuda/experts.cuh"
#include "kernels/cuda/operations.h"
#include "kernels/cuda/portable_pairs.cuh"
#include "kernels/cuda/portable_tiles.h"
#include "kernels/cuda/product.cuh"

namespace invar::cuda {

namespace {

constexpr int kLeaf = 32;

// ---- leaves: for few rows
//
// Leaves are chains from +0 of their own, so they can be computed at the same time; only their sum
// is a chain. A block computes one panel for kRows rows: half a warp takes every 16th leaf, and the
// leaves meet in shared memory.

constexpr int kLeafThreads = 256, kTeams = kLeafThreads / 16;

template <typename T, int kRows, typename End>
__global__ __launch_bounds__(kLeafThreads) void leaves_kernel(Product p, End end) {
  constexpr int kMatrices = End::kMatrices;
  extern __shared__ float leaves[];  // [leaf][row][matrix][16]
  const int team = threadIdx.x / 16, output = threadIdx.x % 16;
  const int64_t t0 = int64_t{blockIdx.y} * kRows;
  const T* w = static_cast<const T*>(p.w) + blockIdx.x * kMatrices * p.panel_elements;
  const int run_leaves = static_cast<int>(p.steps_per_run(kLeaf)),
            all_leaves = run_leaves * p.split_k;

  for (int leaf = team; leaf < all_leaves; leaf += kTeams) {
    float even[kRows][kMatrices] = {}, odd[kRows][kMatrices] = {};
#pragma unroll
    for (int j = 0; j < kLeaf / 2; ++j) {
      const int64_t pair = int64_t{leaf} * (kLeaf / 2) + j;
      float2 weight[kMatrices];
#pragma unroll
      for (int m = 0; m < kMatrices; ++m)
        weight[m] = weight_pair(w + m * p.panel_elements, pair, output);
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        const int64_t t = t0 + r < p.rows ? t0 + r : p.rows - 1;
        const float2 x = row_pair(static_cast<const T*>(p.x.data) + t * p.x.stride, pair);
#pragma unroll
        for (int m = 0; m < kMatrices; ++m) {
          even[r][m] = __fmaf_rn(x.x, weight[m].x, even[r][m]);
          odd[r][m] = __fmaf_rn(x.y, weight[m].y, odd[r][m]);
        }
      }
    }
#pragma unroll
    for (int r = 0; r < kRows; ++r)
#pragma unroll
      for (int m = 0; m < kMatrices; ++m)
        leaves[((leaf * kRows + r) * kMatrices + m) * 16 + output] = even[r][m] + odd[r][m];
  }
  __syncthreads();
  const int row = team;
  if (row >= kRows || t0 + row >= p.rows) return;
  float dot[kMatrices];
#pragma unroll
  for (int m = 0; m < kMatrices; ++m) {
    RunTree<1> tree;
    float sum[1];
    for (int run = 0; run < p.split_k; ++run) {
      sum[0] = 0.0f;
      for (int i = 0; i < run_leaves; ++i)
        sum[0] =
            sum[0] + leaves[(((run * run_leaves + i) * kRows + row) * kMatrices + m) * 16 + output];
      tree.add(run, sum);
    }
    dot[m] = sum[0] + 0.0f;
  }
  end(t0 + row, int64_t{blockIdx.x} * 16 + output, dot);
}

constexpr int kMaxLeafBytes = 200 << 10;

template <int kRows>
bool leaves_fit(const ProductShape& s) {
  return round_up(s.k, kLeaf) / kLeaf * kRows * 2 * 16 * 4 <= kMaxLeafBytes;  // as a gated pair
}

template <typename T, int kRows, typename Params>
void launch_leaves(const Params& params, const Execution& on) {
  const Product p = product_of(params);
  const auto end = end_of(params);
  constexpr int kMatrices = decltype(end_of(params))::kMatrices;
  auto* kernel = leaves_kernel<T, kRows, decltype(end_of(params))>;
  const int bytes =
      static_cast<int>(p.steps_per_run(kLeaf)) * p.split_k * kRows * kMatrices * 16 * 4;
  cuda_check(
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kMaxLeafBytes),
      "reserving shared memory");
  kernel<<<dim3(static_cast<unsigned>(p.panels), ceil_divide(p.rows, kRows)), kLeafThreads, bytes,
           stream_of(on)>>>(p, end);
  cuda_launched("multiplying matrices");
}

template <int kRows, typename Params>
void leaves(const Params& params, const Execution& on) {
  if (params.x.type == DType::bf16)
    launch_leaves<bf16_t, kRows>(params, on);
  else
    launch_leaves<float, kRows>(params, on);
}

// ---- lanes: for many rows
//
// A lane is an output and keeps the chains of kRows rows; the rows' elements come through shared
// memory as f32.

constexpr int kLaneThreads = 128, kBlockElements = 256;

template <typename T, int kRows, typename End>
__device__ __forceinline__ void lanes_from(const Product& p, const End& end, int64_t t0) {
  constexpr int kMatrices = End::kMatrices;
  __shared__ float2 x[kRows][kBlockElements / 2];
  const int output = threadIdx.x % 16;
  const int64_t panel = int64_t{blockIdx.x} * (kLaneThreads / 16) + threadIdx.x / 16;
  const T* w = static_cast<const T*>(p.w) +
               (panel < p.panels ? panel : p.panels - 1) * kMatrices * p.panel_elements;
  const int run_leaves = static_cast<int>(p.steps_per_run(kLeaf)),
            all_leaves = run_leaves * p.split_k;

  float sum[kRows * kMatrices] = {};
  RunTree<kRows * kMatrices> tree;
  int leaves_left = run_leaves, run = 0;
  for (int leaf = 0; leaf < all_leaves; ++leaf) {
    constexpr int kBlockLeaves = kBlockElements / kLeaf;
    if (leaf % kBlockLeaves == 0) {
      __syncthreads();
      for (int i = threadIdx.x; i < kRows * kBlockElements / 2; i += kLaneThreads) {
        const int r = i / (kBlockElements / 2), j = i % (kBlockElements / 2);
        const int64_t t = t0 + r < p.rows ? t0 + r : p.rows - 1,
                      pair = int64_t{leaf} * (kLeaf / 2) + j;
        if (pair < int64_t{all_leaves} * (kLeaf / 2))
          x[r][j] = row_pair(static_cast<const T*>(p.x.data) + t * p.x.stride, pair);
      }
      __syncthreads();
    }
    float even[kRows * kMatrices] = {}, odd[kRows * kMatrices] = {};
#pragma unroll
    for (int j = 0; j < kLeaf / 2; ++j) {
      float2 weight[kMatrices];
#pragma unroll
      for (int m = 0; m < kMatrices; ++m)
        weight[m] = weight_pair(w + m * p.panel_elements, int64_t{leaf} * (kLeaf / 2) + j, output);
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        const float2 xs = x[r][leaf % kBlockLeaves * (kLeaf / 2) + j];
#pragma unroll
        for (int m = 0; m < kMatrices; ++m) {
          even[r * kMatrices + m] = __fmaf_rn(xs.x, weight[m].x, even[r * kMatrices + m]);
          odd[r * kMatrices + m] = __fmaf_rn(xs.y, weight[m].y, odd[r * kMatrices + m]);
        }
      }
    }
#pragma unroll
    for (int i = 0; i < kRows * kMatrices; ++i) sum[i] = sum[i] + (even[i] + odd[i]);
    if (--leaves_left == 0) {
      tree.add(run, sum);
      if (++run < p.split_k) {
#pragma unroll
        for (int i = 0; i < kRows * kMatrices; ++i) sum[i] = 0.0f;
        leaves_left = run_leaves;
      }
    }
  }
  if (panel >= p.panels) return;
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    float dot[kMatrices];
#pragma unroll
    for (int m = 0; m < kMatrices; ++m) dot[m] = sum[r * kMatrices + m] + 0.0f;
    if (t0 + r < p.rows) end(t0 + r, panel * 16 + output, dot);
  }
}

template <typename T, int kRows, typename End>
__global__ __launch_bounds__(kLaneThreads) void lanes_kernel(Product p, End end) {
  lanes_from<T, kRows>(p, end, int64_t{blockIdx.y} * kRows);
}

template <int kRows, typename Params>
void lanes(const Params& params, const Execution& on) {
  const Product p = product_of(params);
  const dim3 grid(ceil_divide(p.panels, kLaneThreads / 16), ceil_divide(p.rows, kRows));
  if (p.x.type == DType::bf16)
    lanes_kernel<bf16_t, kRows><<<grid, kLaneThreads, 0, stream_of(on)>>>(p, end_of(params));
  else
    lanes_kernel<float, kRows><<<grid, kLaneThreads, 0, stream_of(on)>>>(p, end_of(params));
  cuda_launched("multiplying matrices");
}

// ---- lanes of experts: a tile is rows of one of them

template <typename T, int kRows, typename End>
__global__ __launch_bounds__(kLaneThreads) void expert_lanes_kernel(Product p, End end,
                                                                    const int32_t* begin,
                                                                    int experts) {
  __shared__ int32_t begins[Routing::kMaxExperts + 1], first[Routing::kMaxExperts + 1];
  const ExpertTiles tiles{experts, kRows, begins, first};
  tiles.lay_out(begin);
  if (static_cast<int>(blockIdx.y) >= tiles.count()) return;
  const ExpertTile at = tiles.tile(static_cast<int>(blockIdx.y));
  p.w = static_cast<const T*>(p.w) + at.expert * End::kMatrices * p.panels * p.panel_elements;
  p.rows = at.end;
  lanes_from<T, kRows>(p, end.of(at.expert), at.begin);
}

template <typename Params>
void expert_lanes(const Params& params, int64_t experts, const int32_t* begin,
                  const Execution& on) {
  constexpr int kRows = 8;
  if (params.rows == 0 || experts == 0) return;
  const Product p = product_of(params);
  const auto end = end_of(params);
  using End = decltype(end_of(params));
  const int64_t tiles = params.rows / kRows + (params.rows < experts ? params.rows : experts);
  const dim3 grid(ceil_divide(p.panels, kLaneThreads / 16), static_cast<unsigned>(tiles));
  auto* kernel = p.x.type == DType::bf16 ? expert_lanes_kernel<bf16_t, kRows, End>
                                         : expert_lanes_kernel<float, kRows, End>;
  kernel<<<grid, kLaneThreads, 0, stream_of(on)>>>(p, end, begin, static_cast<int>(experts));
  cuda_launched("multiplying experts' matrices");
}

// ---- The table

template <typename Params>
void tiles(const Params& params, const Execution& on) {
  if (params.x.type == DType::bf16) return portable_tiles(params, on);
  lanes<8>(params, on);
}

bool any_shape(const ProductShape&) {
  return true;
}

// Few rows to leaves, one row to those of one row.
template <int kRows>
double leaves_cost(const ProductShape& s) {
  return s.rows <= (kRows == 1 ? 1 : 16) ? 0.1 * kRows : 2.0;
}
double lanes_cost(const ProductShape&) {
  return 1.0;
}
bool has_tiles(const ProductShape& s) {
  return s.rows > 32;
}
double tiles_cost(const ProductShape&) {
  return 0.5;
}

// The numbers are rows of a tile.
constexpr auto kSchedules = std::to_array<ProductSchedule>({
    {"leaves 1", leaves_fit<1>, leaves<1, MatmulParams>, leaves<1, GatedMatmulParams>,
     leaves_cost<1>},
    {"leaves 4", leaves_fit<4>, leaves<4, MatmulParams>, leaves<4, GatedMatmulParams>,
     leaves_cost<4>},
    {"lanes 8", any_shape, lanes<8, MatmulParams>, lanes<8, GatedMatmulParams>, lanes_cost},
    {"tiles", has_tiles, tiles<MatmulParams>, tiles<GatedMatmulParams>, tiles_cost},
});

}  // namespace

void portable_expert_matmul(const ExpertMatmulParams& p, const Execution& on) {
  expert_lanes(p.each, p.each.w.count, p.begin, on);
}

void portable_expert_gated_matmul(const ExpertGatedMatmulParams& p, const Execution& on) {
  expert_lanes(p.each, p.each.gate_up.count / 2, p.begin, on);
}

std::span<const ProductSchedule> portable_product_schedules() {
  return kSchedules;
}

}  // namespace invar::cuda
