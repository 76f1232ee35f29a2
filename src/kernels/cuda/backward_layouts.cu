// The layouts that training's products read: kernels/reference/backward.cc on a GPU.
#include "device/cuda/cuda_stream.h"
#include "kernels/cuda/cuda_kernels.h"
#include "kernels/cuda/grid.cuh"
#include "kernels/cuda/tma.cuh"
#include "kernels/cuda/training_operations.h"

namespace invar::cuda {

namespace {

// ---- The columns of x as rows, by tiles of 64 rows and 64 columns

constexpr int kTile = 64, kPairs = kTile / 2;

// Rows t0 .. and columns n0 .. of x [rows][width] become rows of out: row t is element to(t) of row
// n. Pairs of neighbouring columns, at(n) and at(n + 1), stand side by side and begin at even
// places, as do pairs of rows in `to`. Elements of rows from `rows` to `end` become zeros.
template <typename At, typename To>
__device__ void transpose_tile(const bf16_t* x, int64_t x_stride, int64_t rows, int64_t width,
                               int64_t end, const At& at, bf16_t* out, int64_t out_stride,
                               const To& to) {
  __shared__ uint32_t tile[kTile][kPairs + 1];  // of a column the pairs of rows
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const int64_t t0 = int64_t{blockIdx.x} * kTile, n0 = int64_t{blockIdx.y} * kTile;
  const int64_t n = n0 + 2 * lane, column = n < width ? at(n) : 0;
  for (int pair = warp; pair < kPairs; pair += kWarps) {
    const int64_t t = t0 + 2 * pair;
    const auto word = [&](int64_t row) {
      return row < rows && n < width
                 ? *reinterpret_cast<const uint32_t*>(x + row * x_stride + column)
                 : 0u;
    };
    const uint32_t a = word(t), b = word(t + 1);
    tile[2 * lane][pair] = __byte_perm(a, b, 0x5410);
    tile[2 * lane + 1][pair] = __byte_perm(a, b, 0x7632);
  }
  __syncthreads();
  const int64_t t = t0 + 2 * lane;
  if (t >= end) return;
  for (int row = warp; row < kTile && n0 + row < width; row += kWarps) {
    bf16_t* place = out + (n0 + row) * out_stride + to(t);
    if (t + 1 < end)
      *reinterpret_cast<uint32_t*>(place) = tile[row][lane];
    else
      *place = static_cast<bf16_t>(tile[row][lane]);
  }
}

__global__ __launch_bounds__(kThreads) void transpose_kernel(
    const __grid_constant__ TransposeParams p) {
  transpose_tile(
      static_cast<const bf16_t*>(p.x.data), p.x.stride, p.rows, p.columns.count,
      min(round_up(p.rows, kLeafPad), p.out.stride), [&](int64_t i) { return p.columns.at(i); },
      static_cast<bf16_t*>(p.out.data), p.out.stride, [](int64_t t) { return t; });
}

// Into a matrix of rows.
__global__ __launch_bounds__(kThreads) void pack_rows_kernel(
    const __grid_constant__ PackColumnsParams p) {
  transpose_tile(
      p.x, p.x_stride, p.rows, p.width, p.rows, [](int64_t n) { return n; }, p.out,
      round_up(p.inner_size, kLeafPad), [&](int64_t t) { return p.inner.at(t); });
}

// A thread has an element: columns that do not stand in pairs.
__global__ __launch_bounds__(kThreads) void transpose_elements_kernel(
    const __grid_constant__ TransposeParams p) {
  const int64_t at = thread_of_grid(), end = min(round_up(p.rows, kLeafPad), p.out.stride);
  const int64_t i = at / end, t = at % end;
  if (i >= p.columns.count) return;
  static_cast<bf16_t*>(p.out.data)[i * p.out.stride + t] =
      t < p.rows ? static_cast<const bf16_t*>(p.x.data)[t * p.x.stride + p.columns.at(i)]
                 : bf16_t{0};
}
__global__ __launch_bounds__(kThreads) void pack_elements_kernel(
    const __grid_constant__ PackColumnsParams p) {
  const int64_t at = thread_of_grid(), n = at % p.width, t = at / p.width;
  if (t < p.rows)
    p.out[n * round_up(p.inner_size, kLeafPad) + p.inner.at(t)] = p.x[t * p.x_stride + n];
}

bool is_even(const void* x, int64_t stride, const Columns& columns) {
  return reinterpret_cast<uintptr_t>(x) % 4 == 0 && stride % 2 == 0 && columns.at(0) % 2 == 0;
}

dim3 tiles_of(int64_t rows, int64_t columns) {
  return {static_cast<unsigned>(blocks_of(rows, kTile)),
          static_cast<unsigned>(blocks_of(columns, kTile))};
}

// ---- Packed panels

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
void transpose(const TransposeParams& p, const Execution& on) {
  if (p.columns.count == 0 || p.rows == 0) return;
  if (is_even(p.x.data, p.x.stride, p.columns))
    transpose_kernel<<<tiles_of(round_up(p.rows, kLeafPad), p.columns.count), kThreads, 0,
                       stream_of(on)>>>(p);
  else
    transpose_elements_kernel<<<blocks_of(p.columns.count * round_up(p.rows, kLeafPad)), kThreads,
                                0, stream_of(on)>>>(p);
  cuda_launched("transposing gradients");
}
void pack_columns(const PackColumnsParams& p, const Execution& on) {
  if (p.rows == 0 || p.width == 0) return;
  if (p.layout != WeightLayout::rows)
    return launch("packing columns", pack_columns_kernel,
                  {blocks_of((p.rows + 1) / 2 * p.width), kThreads, 0}, on, p);
  if (is_even(p.x, p.x_stride, p.inner) && p.width % 2 == 0)
    pack_rows_kernel<<<tiles_of(p.rows, p.width), kThreads, 0, stream_of(on)>>>(p);
  else
    pack_elements_kernel<<<blocks_of(p.rows * p.width), kThreads, 0, stream_of(on)>>>(p);
  cuda_launched("packing columns");
}

}  // namespace invar::cuda
