// Products of integers: sums are exact, so that a warp may share out a run as it likes. Few rows
// are dp4a, a warp an output; many rows of the layout of rows are mma.sync m16n8k32.
#include "kernels/cuda/int8.h"

#include "base/check.h"
#include "device/cuda/cuda_check.h"
#include "device/cuda/cuda_stream.h"
#include "kernels/cuda/product.cuh"

namespace invar::cuda {

namespace {

constexpr int kThreads = 256, kWarps = kThreads / kWarp;

// ---- quantise: a warp a run

__global__ __launch_bounds__(kThreads) void quantise_kernel(QuantiseParams p) {
  const int64_t i = int64_t{blockIdx.x} * kWarps + threadIdx.x / kWarp;
  if (i >= p.rows * p.split_k) return;
  const int lane = threadIdx.x % kWarp;
  const int64_t t = i / p.split_k, length = p.width / p.split_k, first = i % p.split_k * length;
  const int64_t padded = round_up(length, kLeafPad);
  const bf16_t* x = static_cast<const bf16_t*>(p.x.data) + t * p.x.stride + first;
  int8_t* q = static_cast<int8_t*>(p.out.data) + t * p.out.stride + first;
  int largest = 0;
  for (int64_t k = lane; k < length; k += kWarp) largest = max(largest, x[k] & 0x7fff);
  largest = __reduce_max_sync(kAllLanes, largest);
  const bool is_finite = largest < 0x7f80;
  float scale = __fdiv_rn(bf16_to_f32(static_cast<bf16_t>(largest)), 127.0f);
  if (scale == 0.0f) scale = 1.0f;
  const float inverse = 1.0f / scale;
  int sum = 0;
  for (int64_t k = lane; k < padded; k += kWarp) {
    const int value = is_finite && k < length ? __float2int_rn(bf16_to_f32(x[k]) * inverse) : 0;
    q[k] = static_cast<int8_t>(value);
    sum += value;
  }
  sum = __reduce_add_sync(kAllLanes, sum);
  if (lane == 0)
    p.out.scales[i] = {is_finite ? scale : __uint_as_float(0x7fffffff), is_finite ? sum : 0};
}

// ---- weights of either layout, as integers with a sign

struct Int8Weights {
  const char* data;
  int64_t unit_bytes, scales_at, all_rows;
  bool panels;

  // Where an output of matrix m of the stack begins.
  __device__ const char* output(int64_t n, int m, int matrices) const {
    if (!panels) return data + (m * all_rows + n) * unit_bytes;
    return data + (n / 16 * matrices + m) * unit_bytes + n % 16 * 4;
  }
  __device__ float scale(int64_t n, int m, int matrices) const {
    const char* at = panels ? data + (n / 16 * matrices + m) * unit_bytes + scales_at + n % 16 * 4
                            : output(n, m, matrices) + scales_at;
    return *reinterpret_cast<const float*>(at);
  }
  // Columns 16 i .. 16 i + 15.
  __device__ int4 sixteen(const char* output, int64_t i) const {
    if (!panels) return __ldg(reinterpret_cast<const int4*>(output) + i);
    const int* four = reinterpret_cast<const int*>(output) + i * 64;
    constexpr int kSign = static_cast<int>(0x80808080);
    return {__ldg(four) ^ kSign, __ldg(four + 16) ^ kSign, __ldg(four + 32) ^ kSign,
            __ldg(four + 48) ^ kSign};
  }
};

Int8Weights weights_of(const Matrix& w) {
  return {static_cast<const char*>(w.data), w.unit_bytes(), w.scales_at(), w.all_rows(),
          w.layout == WeightLayout::panels};
}

// ---- few rows

constexpr int kFewRows = 8;

__device__ __forceinline__ int dot16(int4 a, int4 b, int sum) {
  return __dp4a(a.w, b.w, __dp4a(a.z, b.z, __dp4a(a.y, b.y, __dp4a(a.x, b.x, sum))));
}

template <typename End, int kRows>
__global__ __launch_bounds__(kThreads) void few_kernel(Product p, Int8Weights w, int64_t outputs,
                                                       End end) {
  constexpr int kMatrices = End::kMatrices;
  const int64_t n = int64_t{blockIdx.x} * kWarps + threadIdx.x / kWarp;
  const int64_t t0 = int64_t{blockIdx.y} * kRows;
  if (n >= outputs) return;
  const int lane = threadIdx.x % kWarp;
  const int64_t run = round_up(p.k / p.split_k, kLeafPad) / 16;
  const int4* x[kRows];
#pragma unroll
  for (int r = 0; r < kRows; ++r)
    x[r] = reinterpret_cast<const int4*>(static_cast<const int8_t*>(p.x.data) +
                                         min(t0 + r, p.rows - 1) * p.x.stride);
  const char* weight[kMatrices];
#pragma unroll
  for (int m = 0; m < kMatrices; ++m) weight[m] = w.output(min(n, p.n - 1), m, kMatrices);
  RunTree<kRows * kMatrices> tree;
  float dots[kRows * kMatrices];
  for (int i = 0; i < p.split_k; ++i) {
    int sum[kRows][kMatrices] = {};
    for (int64_t c = i * run + lane; c < (i + 1) * run; c += kWarp) {
      int4 fours[kMatrices];
#pragma unroll
      for (int m = 0; m < kMatrices; ++m) fours[m] = w.sixteen(weight[m], c);
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        const int4 row = __ldg(x[r] + c);
#pragma unroll
        for (int m = 0; m < kMatrices; ++m) sum[r][m] = dot16(fours[m], row, sum[r][m]);
      }
    }
#pragma unroll
    for (int r = 0; r < kRows; ++r)
#pragma unroll
      for (int m = 0; m < kMatrices; ++m) {
        const int all = __reduce_add_sync(kAllLanes, sum[r][m]);
        const RunScale scale = p.x.scales[min(t0 + r, p.rows - 1) * p.split_k + i];
        dots[r * kMatrices + m] =
            __int2float_rn(all) * (scale.scale * w.scale(min(n, p.n - 1), m, kMatrices));
      }
    tree.add(i, dots);
  }
  if (lane != 0) return;
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    if (t0 + r >= p.rows) break;
    float dot[kMatrices];
#pragma unroll
    for (int m = 0; m < kMatrices; ++m) dot[m] = dots[r * kMatrices + m] + 0.0f;
    end(t0 + r, n, dot);
  }
}

// ---- many rows: a block computes 128 rows by 64 dots, a warp 32 by 32

constexpr int kTileRows = 128, kTileDots = 64, kTileBytes = 64, kStride = kTileBytes + 16;

struct ManyTiles {
  int8_t x[2][kTileRows][kStride], w[2][kTileDots][kStride];
};

__device__ __forceinline__ void copy16(void* to, const void* from) {
  const unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(to));
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(address), "l"(from) : "memory");
}

__device__ __forceinline__ void multiply(int (&d)[4], const unsigned (&a)[4],
                                         const unsigned (&b)[2]) {
  asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// Dot j of a block is output j of the only matrix, or of a pair: blocks of 8 outputs take turns.
template <int kMatrices>
__device__ __forceinline__ int64_t output_of(int64_t dot) {
  return kMatrices == 1 ? dot : dot / 16 * 8 + dot % 8;
}
template <int kMatrices>
__device__ __forceinline__ int matrix_of(int64_t dot) {
  return kMatrices == 1 ? 0 : static_cast<int>(dot / 8 % 2);
}

template <typename End>
__global__ __launch_bounds__(kThreads) void many_kernel(Product p, Int8Weights w, End end) {
  constexpr int kMatrices = End::kMatrices;
  __shared__ ManyTiles tiles;
  const int thread = threadIdx.x, lane = thread % kWarp, warp = thread / kWarp;
  const int64_t t0 = int64_t{blockIdx.x} * kTileRows, d0 = int64_t{blockIdx.y} * kTileDots;
  const int64_t run = round_up(p.k / p.split_k, kLeafPad);
  const int steps = static_cast<int>((run + kTileBytes - 1) / kTileBytes);
  const auto load = [&](int buffer, int64_t column, int64_t run_end) {
    for (int i = thread; i < (kTileRows + kTileDots) * 4; i += kThreads) {
      const int row = i / 4, part = i % 4 * 16;
      const bool is_x = row < kTileRows;
      int8_t* to = is_x ? &tiles.x[buffer][row][part] : &tiles.w[buffer][row - kTileRows][part];
      const int64_t dot = d0 + row - kTileRows, n = output_of<kMatrices>(dot);
      const char* from =
          is_x ? static_cast<const char*>(p.x.data) + min(t0 + row, p.rows - 1) * p.x.stride
               : w.output(min(n, p.n - 1), matrix_of<kMatrices>(dot), kMatrices);
      if (column + part < run_end)
        copy16(to, from + column + part);
      else
        *reinterpret_cast<int4*>(to) = {0, 0, 0, 0};
    }
    asm volatile("cp.async.commit_group;" ::: "memory");
  };
  const int row0 = warp / 2 * 32, dot0 = warp % 2 * 32, g = lane / 4, j = lane % 4;
  RunTree<32> tree;
  float dots[32];
  int64_t step = 0;
  load(0, 0, run);
  for (int r = 0; r < p.split_k; ++r) {
    int sum[2][4][4] = {};
    for (int s = 0; s < steps; ++s, ++step) {
      const bool is_last = s + 1 == steps;
      if (!is_last)
        load((step + 1) & 1, r * run + (s + 1) * kTileBytes, (r + 1) * run);
      else if (r + 1 < p.split_k)
        load((step + 1) & 1, (r + 1) * run, (r + 2) * run);
      if (is_last && r + 1 == p.split_k)
        asm volatile("cp.async.wait_group 0;" ::: "memory");
      else
        asm volatile("cp.async.wait_group 1;" ::: "memory");
      __syncthreads();
      const int buffer = step & 1;
#pragma unroll
      for (int k = 0; k < kTileBytes; k += 32) {
        unsigned a[2][4], b[4][2];
        const auto word = [&](const int8_t* row, int at) {
          return *reinterpret_cast<const unsigned*>(row + k + at * 4);
        };
#pragma unroll
        for (int m = 0; m < 2; ++m) {
          const int8_t *low = tiles.x[buffer][row0 + m * 16 + g],
                       *high = tiles.x[buffer][row0 + m * 16 + g + 8];
          a[m][0] = word(low, j), a[m][1] = word(high, j);
          a[m][2] = word(low, j + 4), a[m][3] = word(high, j + 4);
        }
#pragma unroll
        for (int q = 0; q < 4; ++q) {
          const int8_t* row = tiles.w[buffer][dot0 + q * 8 + g];
          b[q][0] = word(row, j), b[q][1] = word(row, j + 4);
        }
#pragma unroll
        for (int m = 0; m < 2; ++m)
#pragma unroll
          for (int q = 0; q < 4; ++q) multiply(sum[m][q], a[m], b[q]);
      }
      __syncthreads();
    }
    // Values 4 (4 m + q) + i of a lane: rows g + 8 (i / 2), dots 2 j + i % 2 of the block of 8.
#pragma unroll
    for (int v = 0; v < 32; ++v) {
      const int m = v / 16, q = v / 4 % 4, i = v % 4;
      const int64_t t = min(t0 + row0 + m * 16 + g + i / 2 * 8, p.rows - 1);
      const int64_t dot = d0 + dot0 + q * 8 + 2 * j + i % 2;
      const int64_t n = min(output_of<kMatrices>(dot), p.n - 1);
      const float scale = p.x.scales[t * p.split_k + r].scale;
      dots[v] =
          __int2float_rn(sum[m][q][i]) * (scale * w.scale(n, matrix_of<kMatrices>(dot), kMatrices));
    }
    tree.add(r, dots);
  }
  constexpr int kNext = kMatrices == 1 ? 1 : 2;  // gate's blocks of 8, and up's beside them
#pragma unroll
  for (int m = 0; m < 2; ++m)
#pragma unroll
    for (int q = 0; q < 4; q += kNext)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int64_t t = t0 + row0 + m * 16 + g + i / 2 * 8;
        const int64_t n = output_of<kMatrices>(d0 + dot0 + q * 8 + 2 * j + i % 2);
        float dot[kMatrices];
#pragma unroll
        for (int k = 0; k < kMatrices; ++k) dot[k] = dots[4 * (4 * m + q + k) + i] + 0.0f;
        if (t < p.rows && n < round_up(p.n, kPanelWidth)) end(t, n, dot);
      }
}

template <typename Params>
void run(const Params& params, const Matrix& matrix, const Execution& on) {
  const Product p = product_of(params);
  if (p.rows == 0) return;
  const auto end = end_of(params);
  using End = decltype(end_of(params));
  const Int8Weights w = weights_of(matrix);
  const int64_t outputs = round_up(p.n, kPanelWidth);
  if (p.rows > 2 * kFewRows && !w.panels) {
    const dim3 grid(ceil_divide(p.rows, kTileRows),
                    ceil_divide(outputs * End::kMatrices, kTileDots));
    many_kernel<<<grid, kThreads, 0, stream_of(on)>>>(p, w, end);
  } else if (p.rows == 1) {
    few_kernel<End, 1>
        <<<dim3(ceil_divide(outputs, kWarps), 1), kThreads, 0, stream_of(on)>>>(p, w, outputs, end);
  } else {
    few_kernel<End, kFewRows><<<dim3(ceil_divide(outputs, kWarps), ceil_divide(p.rows, kFewRows)),
                                kThreads, 0, stream_of(on)>>>(p, w, outputs, end);
  }
  cuda_launched("a product of integers");
}

}  // namespace

void quantise(const QuantiseParams& p, const Execution& on) {
  if (p.rows == 0) return;
  quantise_kernel<<<ceil_divide(p.rows * p.split_k, kWarps), kThreads, 0, stream_of(on)>>>(p);
  cuda_launched("quantise");
}

void int8_matmul(const MatmulParams& p, const Execution& on) {
  CHECK(p.x.type == DType::i8 && p.w.type == DType::i8, "a product of integers");
  run(p, p.w, on);
}

void int8_gated_matmul(const GatedMatmulParams& p, const Execution& on) {
  CHECK(p.x.type == DType::i8 && p.gate_up.type == DType::i8, "a product of integers");
  run(p, p.gate_up, on);
}

}  // namespace invar::cuda
