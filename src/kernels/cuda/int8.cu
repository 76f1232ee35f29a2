// Products of integers: sums are exact, so that a warp may share out a run as it likes. Weights in
// rows are the tensor cores': product_few.cu's, product_few_split_k.cu's and int8_tiles.cu's. Those
// in panels are dp4a, a warp an output.
#include "kernels/cuda/int8.h"

#include "base/check.h"
#include "device/cuda/cuda_check.h"
#include "device/cuda/cuda_stream.h"
#include "kernels/cuda/int8_rows.cuh"
#include "kernels/cuda/product.cuh"
#include "kernels/cuda/tma.cuh"

namespace invar::cuda {

namespace {

constexpr int kThreads = 256, kWarps = kThreads / kWarp;

// ---- quantise: a block a run

constexpr int kQuantiseThreads = 128;

// The largest of all threads' values, and their sum.
struct LargestAndSum {
  __device__ int largest(int value) {
    value = __reduce_max_sync(kAllLanes, value);
    if (threadIdx.x % kWarp == 0) parts[threadIdx.x / kWarp] = value;
    __syncthreads();
    for (int i = 0; i < kQuantiseThreads / kWarp; ++i) value = max(value, parts[i]);
    __syncthreads();
    return value;
  }
  __device__ int sum(int value) {
    value = __reduce_add_sync(kAllLanes, value);
    if (threadIdx.x % kWarp == 0) parts[threadIdx.x / kWarp] = value;
    __syncthreads();
    for (int i = value = 0; i < kQuantiseThreads / kWarp; ++i) value += parts[i];
    return value;
  }
  int* parts;
};

// Eight elements at a time; pad columns are zeros and stay so.
__global__ __launch_bounds__(kQuantiseThreads) void quantise_kernel(QuantiseParams p) {
  __shared__ int parts[kQuantiseThreads / kWarp];
  LargestAndSum over{parts};
  let_next_kernel_start();
  wait_for_kernels_before();
  const int64_t i = blockIdx.x, t = i / p.split_k, length = p.width / p.split_k,
                first = i % p.split_k * length, eights = round_up(length, kLeafPad) / 8;
  const auto* x =
      reinterpret_cast<const uint4*>(static_cast<const bf16_t*>(p.x.data) + t * p.x.stride + first);
  auto* q = reinterpret_cast<uint2*>(static_cast<int8_t*>(p.out.data) + t * p.out.stride + first);
  int largest = 0;
  for (int64_t e = threadIdx.x; e < eights; e += kQuantiseThreads)
    largest = largest_of(largest, x[e]);
  const RowScale scale(over.largest(largest));
  int sum = 0;
  for (int64_t e = threadIdx.x; e < eights; e += kQuantiseThreads) {
    const uint4 v = x[e];
    const uint32_t words[4] = {v.x, v.y, v.z, v.w};
    uint32_t bytes[2] = {};
#pragma unroll
    for (int j = 0; scale.is_finite && j < 8; ++j) {
      const int value = scale.quantised(words[j / 2], j % 2);
      sum += value;
      bytes[j / 4] |= (static_cast<uint32_t>(value) & 0xff) << 8 * (j % 4);
    }
    q[e] = {bytes[0], bytes[1]};
  }
  sum = over.sum(sum);
  if (threadIdx.x == 0) p.out.scales[i] = {scale.stored(), scale.is_finite ? sum : 0};
}

// ---- weights in panels, as integers with a sign

struct PanelWeights {
  const char* data;
  int64_t unit_bytes, scales_at;

  // Where an output of matrix m of the stack begins.
  __device__ const char* output(int64_t n, int m, int matrices) const {
    return data + (n / 16 * matrices + m) * unit_bytes + n % 16 * 4;
  }
  __device__ float scale(int64_t n, int m, int matrices) const {
    return *reinterpret_cast<const float*>(output(n, m, matrices) + scales_at);
  }
  // Columns 16 i .. 16 i + 15.
  __device__ int4 sixteen(const char* output, int64_t i) const {
    const int* four = reinterpret_cast<const int*>(output) + i * 64;
    constexpr int kSign = static_cast<int>(0x80808080);
    return {__ldg(four) ^ kSign, __ldg(four + 16) ^ kSign, __ldg(four + 32) ^ kSign,
            __ldg(four + 48) ^ kSign};
  }
};

PanelWeights weights_of(const Matrix& w) {
  return {static_cast<const char*>(w.data), w.unit_bytes(), w.scales_at()};
}

// ---- few rows

constexpr int kFewRows = 8;

__device__ __forceinline__ int dot16(int4 a, int4 b, int sum) {
  return __dp4a(a.w, b.w, __dp4a(a.z, b.z, __dp4a(a.y, b.y, __dp4a(a.x, b.x, sum))));
}

template <typename End, int kRows>
__global__ __launch_bounds__(kThreads) void few_kernel(Product p, PanelWeights w, int64_t outputs,
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

constexpr int kMostFewRows = 64;  // by few_int8_matmul

template <typename Params>
void by_panels(const Params& params, const Matrix& matrix, const Execution& on) {
  const Product p = product_of(params);
  if (p.rows == 0) return;
  const auto end = end_of(params);
  using End = decltype(end_of(params));
  const PanelWeights w = weights_of(matrix);
  const int64_t outputs = round_up(p.n, kPanelWidth);
  if (p.rows == 1) {
    few_kernel<End, 1>
        <<<dim3(ceil_divide(outputs, kWarps), 1), kThreads, 0, stream_of(on)>>>(p, w, outputs, end);
  } else {
    few_kernel<End, kFewRows><<<dim3(ceil_divide(outputs, kWarps), ceil_divide(p.rows, kFewRows)),
                                kThreads, 0, stream_of(on)>>>(p, w, outputs, end);
  }
  cuda_launched("a product of integers");
}

void check_integers(const Activation& x, const Matrix& w, int64_t rows, int split_k) {
  CHECK(w.type == DType::i8 && (x.type == DType::i8 || makes_integers(w, rows, split_k)),
        "a product of integers");
}

}  // namespace

void quantise(const QuantiseParams& p, const Execution& on) {
  if (p.rows == 0) return;
  launch("quantising rows", quantise_kernel,
         {.blocks = static_cast<int>(p.rows) * p.split_k,
          .threads = kQuantiseThreads,
          .shared_bytes = 0,
          .early = true},
         on, p);
}

void int8_matmul(const MatmulParams& p, const Execution& on) {
  check_integers(p.x, p.w, p.rows, p.split_k);
  if (p.rows == 0) return;
  if (p.w.layout == WeightLayout::panels) return by_panels(p, p.w, on);
  p.rows <= kMostFewRows ? few_int8_matmul(p, on) : int8_tiles_matmul(p, on);
}

void int8_gated_matmul(const GatedMatmulParams& p, const Execution& on) {
  check_integers(p.x, p.gate_up, p.rows, 1);
  if (p.rows == 0) return;
  if (p.gate_up.layout == WeightLayout::panels) return by_panels(p, p.gate_up, on);
  p.rows <= kMostFewRows ? few_int8_gated(p, on) : int8_tiles_gated(p, on);
}

}  // namespace invar::cuda
