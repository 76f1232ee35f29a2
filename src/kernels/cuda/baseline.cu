// The baseline's operations on a GPU (numerics 10): what conventional engines do. Products are
// cuBLAS's; attention reads keys and values in as many pieces as there is room for at the same
// time; the residual stream is bf16.
#include "base/check.h"
#include "device/cuda/cublas.h"
#include "device/cuda/cuda_check.h"
#include "device/cuda/cuda_stream.h"
#include "device/cuda/gpu.h"
#include "kernels/cuda/attention_rows.cuh"
#include "kernels/cuda/baseline.h"
#include "kernels/cuda/elementwise.cuh"
#include "kernels/cuda/tma.cuh"

namespace invar::cuda {

namespace {

constexpr int kThreads = 256;

int blocks_for(int64_t items) {
  return static_cast<int>((items + kThreads - 1) / kThreads);
}

__global__ void add_bias_kernel(const float* bias, int64_t rows, int64_t n, float* y,
                                int64_t stride) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  let_next_kernel_start();
  wait_for_kernels_before();
  if (i < rows * n) y[i / n * stride + i % n] += bias[i % n];
}

void multiply(const MatmulParams& p, const Execution& on) {
  const cudaStream_t stream = stream_of(on);
  CHECK(p.w.layout == WeightLayout::rows && p.w.type == DType::bf16,
        "the baseline's products take weights in rows of bf16");
  gpu_of(on).cublas().multiply({.x = p.x.data,
                                .w = p.w.data,
                                .y = p.y,
                                .type = DType::f32,
                                .rows = p.rows,
                                .n = p.w.n,
                                .k = p.w.k,
                                .x_stride = p.x.stride,
                                .w_stride = p.w.row_elements(),
                                .y_stride = p.y_stride,
                                .accumulate = p.accumulate},
                               stream);
  if (p.bias)
    launch("adding a bias", add_bias_kernel,
           {.blocks = blocks_for(p.rows * p.w.n),
            .threads = kThreads,
            .shared_bytes = 0,
            .early = true},
           on, p.bias, p.rows, p.w.n, p.y, p.y_stride);
}

// out = curve(gate) * up, of rows of `stride` products: gate, and from `up_at` on up.
__global__ void gate_kernel(const bf16_t* products, int64_t stride, int64_t up_at,
                            GatedMatmulParams p) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x, n = p.gate_up.n;
  const int64_t padded = round_up(n, kLeafPad), t = i / padded, f = i % padded;
  let_next_kernel_start();
  wait_for_kernels_before();
  if (t >= p.rows) return;
  float value = 0.0f;
  if (f < n) {
    float gate = bf16_to_f32(products[t * stride + f]),
          up = bf16_to_f32(products[t * stride + up_at + f]);
    if (p.gate_bias) gate = gate + p.gate_bias[f];
    if (p.up_bias) up = up + p.up_bias[f];
    const float z = p.curve == Nonlinearity::gelu_tanh ? math::gelu_exponent(gate) : gate;
    value = p.curve == Nonlinearity::clamped ? math::clamped(gate, up)
                                             : gate / (1.0f + __expf(-z)) * up;
  }
  static_cast<bf16_t*>(p.out.data)[t * p.out.stride + f] = f32_to_bf16(value);
}

void multiply_gated(const GatedMatmulParams& p, const Execution& on) {
  const cudaStream_t stream = stream_of(on);
  const Matrix& w = p.gate_up;
  const int64_t width = 2 * w.all_rows();
  void* products = nullptr;
  cuda_check(
      cudaMallocAsync(&products, static_cast<size_t>(p.rows * width) * sizeof(bf16_t), stream),
      "allocating the baseline's products");
  gpu_of(on).cublas().multiply({.x = p.x.data,
                                .w = w.data,
                                .y = products,
                                .type = DType::bf16,
                                .rows = p.rows,
                                .n = width,
                                .k = w.k,
                                .x_stride = p.x.stride,
                                .w_stride = w.row_elements(),
                                .y_stride = width},
                               stream);
  launch("the gated activation", gate_kernel,
         {.blocks = blocks_for(p.rows * round_up(w.n, kLeafPad)),
          .threads = kThreads,
          .shared_bytes = 0,
          .early = true},
         on, static_cast<const bf16_t*>(products), width, w.all_rows(), p);
  cuda_check(cudaFreeAsync(products, stream), "releasing the baseline's products");
}

__global__ void round_kernel(RoundInPlaceParams p) {
  const int64_t i = (int64_t{blockIdx.x} * kThreads + threadIdx.x) * 4;
  let_next_kernel_start();
  wait_for_kernels_before();
  for (int64_t j = i; j < i + 4 && j < p.count; ++j) p.x[j] = bf16_to_f32(f32_to_bf16(p.x[j]));
}

void round(const RoundInPlaceParams& p, const Execution& on) {
  if (p.count == 0) return;
  launch("rounding", round_kernel,
         {.blocks = blocks_for((p.count + 3) / 4),
          .threads = kThreads,
          .shared_bytes = 0,
          .early = true},
         on, p);
}

// Head sizes that no kernel by count takes are computed as the order hopper computes them.
void attend(const AttentionParams& p, const Execution& on) {
  const Kernels hopper = kernels(Order::hopper);
  if (p.rows == 0 || may_have_many_rows(p) || !single_can(p.kv.head_dim) || p.score_cap > 0 ||
      p.sinks)
    return hopper.attention(p, on);
  attend_single_by_count(p, on);
}

}  // namespace

Kernels baseline_kernels() {
  Cublas::expect();
  Kernels table = kernels(Order::hopper);
  table.matmul = multiply;
  table.gated_matmul = multiply_gated;
  table.attention = attend;
  table.rotated_attention = nullptr;
  table.round_in_place = round;
  return table;
}

}  // namespace invar::cuda
