// Training's sums over rows and over whole tensors, and the layouts that its products read:
// kernels/reference/backward.cc on a GPU.
#include "device/cuda/cuda_stream.h"
#include "kernels/cuda/cuda_kernels.h"
#include "kernels/cuda/grid.cuh"
#include "kernels/cuda/tma.cuh"
#include "kernels/cuda/training_operations.h"

namespace invar::cuda {

namespace {

constexpr int kLeaf = 32;

// One leaf of order portable: at(j) gives both factors of row j.
template <typename At>
__device__ float leaf_of(const At& at) {
  float even = 0.0f, odd = 0.0f;
#pragma unroll 4
  for (int j = 0; j < kLeaf; j += 2) {
    const float2 a = at(j), b = at(j + 1);
    even = __fmaf_rn(a.x, a.y, even);
    odd = __fmaf_rn(b.x, b.y, odd);
  }
  return even + odd;
}

// A chain over `count` leaves, from acc on, for each of the block's columns: threads compute many
// leaves of a column at once, and the first one adds them in order.
constexpr int kChainThreads = 1024, kColumns = 16, kLeavesAtOnce = kChainThreads / kColumns;

template <typename Leaf>
__device__ float chain(float acc, int64_t count, bool is_column, const Leaf& leaf) {
  __shared__ float leaves[kLeavesAtOnce][kColumns];
  const int own = threadIdx.x / kColumns, column = threadIdx.x % kColumns;
  for (int64_t first = 0; first < count; first += kLeavesAtOnce) {
    if (is_column && first + own < count) leaves[own][column] = leaf(first + own);
    __syncthreads();
    const int there = static_cast<int>(min(int64_t{kLeavesAtOnce}, count - first));
    for (int i = 0; own == 0 && i < there; ++i) acc = acc + leaves[i][column];
    __syncthreads();
  }
  return acc + 0.0f;
}

__device__ int64_t column_of_block() {
  return static_cast<int64_t>(blockIdx.x) * kColumns + threadIdx.x % kColumns;
}
__device__ bool has_sum() {
  return threadIdx.x < kColumns;
}

__global__ __launch_bounds__(kChainThreads) void bias_gradient_kernel(
    const __grid_constant__ BiasGradientParams p) {
  const int64_t i = column_of_block();
  const bool is_column = i < p.columns.count;
  const int64_t column = is_column ? p.columns.at(i) : 0;
  const bf16_t* dy = static_cast<const bf16_t*>(p.dy.data) + column;
  const float sum =
      chain(is_column ? p.gradient[i] : 0.0f, p.rows / kLeaf, is_column, [&](int64_t leaf) {
        return leaf_of([&](int j) {
          return float2{1.0f, bf16_to_f32(dy[(leaf * kLeaf + j) * p.dy.stride])};
        });
      });
  if (is_column && has_sum()) p.gradient[i] = sum;
}

__global__ __launch_bounds__(kChainThreads) void norm_gradient_kernel(
    const __grid_constant__ NormGradientParams p) {
  const int64_t i = column_of_block();
  const bool is_column = i < p.width;
  const float sum =
      chain(is_column ? p.gradient[i] : 0.0f, p.rows / kLeaf * p.heads, is_column, [&](int64_t at) {
        const int64_t first = at / p.heads * kLeaf, h = at % p.heads, column = h * p.width + i;
        return leaf_of([&](int j) {
          const int64_t t = first + j;
          return float2{p.dy[t * p.dy_stride + column],
                        p.x[t * p.x_stride + column] * p.rs[t * p.rs_stride + h]};
        });
      });
  if (is_column && has_sum()) p.gradient[i] = sum;
}

__global__ __launch_bounds__(kChainThreads) void layer_norm_gradient_kernel(
    const __grid_constant__ LayerNormGradientParams layer) {
  const NormGradientParams& p = layer.norm;
  const int64_t i = column_of_block();
  const bool is_column = i < p.width;
  const float weight =
      chain(is_column ? p.gradient[i] : 0.0f, p.rows / kLeaf, is_column, [&](int64_t leaf) {
        return leaf_of([&](int j) {
          const int64_t t = leaf * kLeaf + j;
          return float2{p.dy[t * p.dy_stride + i],
                        (p.x[t * p.x_stride + i] - layer.mean[t]) * p.rs[t]};
        });
      });
  const float bias = chain(is_column ? layer.bias_gradient[i] : 0.0f, p.rows / kLeaf, is_column,
                           [&](int64_t leaf) {
                             return leaf_of([&](int j) {
                               return float2{1.0f, p.dy[(leaf * kLeaf + j) * p.dy_stride + i]};
                             });
                           });
  if (!is_column || !has_sum()) return;
  p.gradient[i] = weight;
  layer.bias_gradient[i] = bias;
}

// ---- Sums of squares: a block has a tensor. Two warps have the 64 lanes, the others bring the
// next piece meanwhile.

constexpr int kPiece = 8192, kSquareThreads = 1024, kLanes = 64;

__device__ void bring(float* to, const float* from, int64_t count) {
  const int loaders = kSquareThreads - kLanes;
  for (int64_t i = threadIdx.x - kLanes; i < count; i += loaders) to[i] = from[i];
}

__global__ __launch_bounds__(kSquareThreads) void squares_kernel(
    const __grid_constant__ SquaresParams p) {
  extern __shared__ float pieces[];  // [2][kPiece]
  __shared__ float lanes[kLanes];
  const float* x = p.tensors[blockIdx.x];
  const int64_t count = p.counts[blockIdx.x];
  const auto size = [&](int64_t first) { return min(int64_t{kPiece}, count - first); };
  const bool is_lane = threadIdx.x < kLanes;
  if (!is_lane) bring(pieces, x, size(0));
  __syncthreads();
  float lane = 0.0f;
  int half = 0;
  for (int64_t first = 0; first < count; first += kPiece, half ^= 1) {
    if (is_lane) {
      const float* piece = pieces + half * kPiece;
      const int end = static_cast<int>(size(first));
#pragma unroll 8
      for (int i = threadIdx.x; i < end; i += kLanes) lane = __fmaf_rn(piece[i], piece[i], lane);
    } else if (first + kPiece < count) {
      bring(pieces + (half ^ 1) * kPiece, x + first + kPiece, size(first + kPiece));
    }
    __syncthreads();
  }
  if (is_lane) lanes[threadIdx.x] = lane;
  __syncthreads();
  if (threadIdx.x >= kWarp) return;
  const float sum = halve64(lanes[threadIdx.x], lanes[threadIdx.x + kWarp]);
  if (threadIdx.x == 0) p.sums[blockIdx.x] = sum;
}

// ---- Layouts

// A block has 32 columns of 32 rows.
__global__ __launch_bounds__(kThreads) void transpose_kernel(
    const __grid_constant__ TransposeParams p) {
  __shared__ bf16_t tile[kWarp][kWarp + 2];
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const int64_t t0 = static_cast<int64_t>(blockIdx.x) * kWarp;
  const int64_t i0 = static_cast<int64_t>(blockIdx.y) * kWarp, column = i0 + lane;
  const auto* x = static_cast<const bf16_t*>(p.x.data);
  const int64_t at = column < p.columns.count ? p.columns.at(column) : -1;
  for (int row = warp; row < kWarp; row += kWarps) {
    const int64_t t = t0 + row;
    tile[row][lane] = t < p.rows && at >= 0 ? x[t * p.x.stride + at] : bf16_t{0};
  }
  __syncthreads();
  auto* out = static_cast<bf16_t*>(p.out.data);
  for (int row = warp; row < kWarp; row += kWarps)  // pad columns are zeros of the tile
    if (i0 + row < p.columns.count) out[(i0 + row) * p.out.stride + t0 + lane] = tile[lane][row];
}

// A thread has a column of two rows, which are neighbours in the packed matrix, too.
__global__ __launch_bounds__(kThreads) void pack_columns_kernel(
    const __grid_constant__ PackColumnsParams p) {
  const int64_t at = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const int64_t n = at % p.width, t = at / p.width * 2;
  if (t >= p.rows) return;
  for (int64_t row = t; row < t + 2 && row < p.rows; ++row)
    p.out[packed_index_bf16(n, p.inner.at(row), p.inner_size)] = p.x[row * p.x_stride + n];
}

// A thread has two columns of a row, which are neighbours in the matrix, too.
__global__ __launch_bounds__(kThreads) void pack_outputs_kernel(
    const __grid_constant__ PackOutputsParams p) {
  const int64_t pairs = (p.to.k + 1) / 2;
  const int64_t at = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const int64_t row = at / pairs, k = at % pairs * 2;
  if (row >= p.rows) return;
  auto* out = static_cast<bf16_t*>(const_cast<void*>(p.to.data));
  const bool is_pair = p.number >= 0;
  int64_t to;
  if (p.to.layout == WeightLayout::rows)
    to = ((is_pair ? p.number * p.to.all_rows() : p.first) + row) * p.to.row_elements() + k;
  else
    to = packed_index_bf16(is_pair ? paired_column(row, p.number) : p.first + row, k, p.to.k);
  out[to] = p.x[row * p.to.k + k];
  if (k + 1 < p.to.k) out[to + 1] = p.x[row * p.to.k + k + 1];
}

__global__ __launch_bounds__(kThreads) void widen_kernel(const __grid_constant__ WidenParams p) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i < p.count) p.out[i] = bf16_to_f32(p.x[i]);
}

// The same into rows: a block has 32 columns of 32 rows.
__global__ __launch_bounds__(kThreads) void pack_rows_kernel(
    const __grid_constant__ PackColumnsParams p) {
  __shared__ bf16_t tile[kWarp][kWarp + 2];
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const int64_t t0 = static_cast<int64_t>(blockIdx.x) * kWarp;
  const int64_t n0 = static_cast<int64_t>(blockIdx.y) * kWarp;
  for (int row = warp; row < kWarp; row += kWarps)
    if (t0 + row < p.rows && n0 + lane < p.width)
      tile[row][lane] = p.x[(t0 + row) * p.x_stride + n0 + lane];
  __syncthreads();
  const int64_t stride = round_up(p.inner_size, kLeafPad), t = t0 + lane;
  if (t >= p.rows) return;
  const int64_t at = p.inner.at(t);
  for (int row = warp; row < kWarp; row += kWarps)
    if (n0 + row < p.width) p.out[(n0 + row) * stride + at] = tile[lane][row];
}

}  // namespace

void pack_outputs(const PackOutputsParams& p, const Execution& on) {
  if (p.rows == 0) return;
  launch("packing weights", pack_outputs_kernel,
         {blocks_of(p.rows * ((p.to.k + 1) / 2)), kThreads, 0}, on, p);
}
void widen(const WidenParams& p, const Execution& on) {
  if (p.count == 0) return;
  launch("widening weights", widen_kernel, {blocks_of(p.count), kThreads, 0}, on, p);
}
void bias_gradient(const BiasGradientParams& p, const Execution& on) {
  if (p.columns.count == 0) return;
  launch("a bias's gradient", bias_gradient_kernel,
         {blocks_of(p.columns.count, kColumns), kChainThreads, 0}, on, p);
}
void norm_gradient(const NormGradientParams& p, const Execution& on) {
  launch("a norm's gradient", norm_gradient_kernel,
         {blocks_of(p.width, kColumns), kChainThreads, 0}, on, p);
}
void layer_norm_gradient(const LayerNormGradientParams& p, const Execution& on) {
  launch("a norm's gradient", layer_norm_gradient_kernel,
         {blocks_of(p.norm.width, kColumns), kChainThreads, 0}, on, p);
}
void squares(const SquaresParams& p, const Execution& on) {
  if (p.count == 0) return;
  launch("squares of gradients", squares_kernel,
         {static_cast<int>(p.count), kSquareThreads, 2 * kPiece * int{sizeof(float)}}, on, p);
}
void transpose(const TransposeParams& p, const Execution& on) {
  if (p.columns.count == 0 || p.rows == 0) return;
  const dim3 grid(static_cast<unsigned>(blocks_of(p.rows, kWarp)),
                  static_cast<unsigned>(blocks_of(p.columns.count, kWarp)));
  transpose_kernel<<<grid, kThreads, 0, stream_of(on)>>>(p);
  cuda_launched("transposing gradients");
}
void pack_columns(const PackColumnsParams& p, const Execution& on) {
  if (p.rows == 0 || p.width == 0) return;
  if (p.layout == WeightLayout::rows) {
    const dim3 grid(static_cast<unsigned>(blocks_of(p.rows, kWarp)),
                    static_cast<unsigned>(blocks_of(p.width, kWarp)));
    pack_rows_kernel<<<grid, kThreads, 0, stream_of(on)>>>(p);
    return cuda_launched("packing columns");
  }
  launch("packing columns", pack_columns_kernel,
         {blocks_of((p.rows + 1) / 2 * p.width), kThreads, 0}, on, p);
}

}  // namespace invar::cuda
