// What ends a part and what the next product begins with, in one pass: y = y + z * scale, then the
// norm of y. z is a product with its bias, or behind its norm, or the sum of a row's experts. A
// block has a row.
#include "device/cuda/cuda_stream.h"
#include "kernels/cuda/operations.h"
#include "kernels/cuda/row_norm.cuh"
#include "kernels/cuda/tma.cuh"

namespace invar::cuda {

namespace {

__device__ __forceinline__ bf16_t* out_row(const Activation& out, int64_t t) {
  return out.data ? static_cast<bf16_t*>(out.data) + t * out.stride : nullptr;
}

template <int kPer>
__global__ __launch_bounds__(kRowThreads) void add_norm_kernel(const AddNormParams p) {
  __shared__ float lanes[2][64];
  const int64_t t = blockIdx.x;
  const int width = static_cast<int>(p.width);
  let_next_kernel_start();
  // No kernel writes the weights: they are read while those before this one still run.
  float more[kPer], next[kPer] = {}, z[kPer], y[kPer];
  if (p.norm || p.bias) load_row(p.norm ? p.norm : p.bias, width, more);
  if (p.next) load_row(p.next, width, next);
  wait_for_kernels_before();
  load_row(p.x + t * p.x_stride, width, z);
  load_row(p.y + t * p.width, width, y);
  if (p.norm) {
    const float rs = inverse_rms(z, static_cast<float>(width), p.eps, lanes[0]);
#pragma unroll
    for (int j = 0; j < kPer; ++j) z[j] = (z[j] * rs) * more[j];
  } else if (p.bias) {
#pragma unroll
    for (int j = 0; j < kPer; ++j) z[j] = z[j] + more[j];
  }
  RowEnd<kPer>{p.y + t * p.width, p.scale, p.eps, width, out_row(p.out, t)}(z, y, next, p.next,
                                                                            lanes[1]);
}

__device__ __forceinline__ float widen(float x) {
  return x;
}
__device__ __forceinline__ float widen(bf16_t x) {
  return bf16_to_f32(x);
}

// z = fma(weight, y, z) over a row's experts, ascending; several are read before the first is
// added.
template <typename T, int kPer>
__device__ __forceinline__ void add_experts(const CombineParams& s, const int32_t* place,
                                            const float* weight, float (&z)[kPer]) {
  constexpr int kAtOnce = kPer <= 8 ? 32 / kPer : 2;
  const int begin = first_of_thread<kPer>(), width = static_cast<int>(s.width);
  const T* y = static_cast<const T*>(s.y.data) + begin;
  bool is_in[kPer];
#pragma unroll
  for (int j = 0; j < kPer; ++j) is_in[j] = begin + 64 * j < width;
  for (int first = 0; first < s.chosen; first += kAtOnce) {
    T x[kAtOnce][kPer];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const bool is_chosen = first + i < s.chosen;
      const T* from = y + (is_chosen ? place[first + i] * s.y.stride : 0);
#pragma unroll
      for (int j = 0; j < kPer; ++j) x[i][j] = is_chosen && is_in[j] ? from[64 * j] : T{0};
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      if (first + i >= s.chosen) break;
      const float w = weight[first + i];
#pragma unroll
      for (int j = 0; j < kPer; ++j) {
        const float value = s.rounds ? rounded(widen(x[i][j])) : widen(x[i][j]);
        if (is_in[j]) z[j] = __fmaf_rn(w, value, z[j]);
      }
    }
  }
}

template <int kPer>
__global__ __launch_bounds__(kRowThreads) void combine_norm_kernel(const CombineNormParams p) {
  __shared__ float lanes[64], weight[Routing::kMaxChosen];
  __shared__ int32_t place[Routing::kMaxChosen];
  const CombineParams& s = p.sum;
  const int64_t t = blockIdx.x;
  const int width = static_cast<int>(s.width), begin = first_of_thread<kPer>();
  const int tid = static_cast<int>(threadIdx.x);
  let_next_kernel_start();
  float next[kPer] = {}, z[kPer], y[kPer];
  if (p.next) load_row(p.next, width, next);
  wait_for_kernels_before();
  if (tid < s.chosen) place[tid] = s.place[t * s.chosen + tid];
  if (tid < s.chosen) weight[tid] = s.weights[t * s.chosen + tid];
  load_row(s.hidden + t * s.width, width, y);
#pragma unroll
  for (float& sum : z) sum = 0.0f;
  __syncthreads();
  s.y.type == DType::f32 ? add_experts<float>(s, place, weight, z)
                         : add_experts<bf16_t>(s, place, weight, z);
  if (s.shared) {
    const float gate = s.gate ? 1.0f / (1.0f + math::exp(-s.gate[t * s.gate_stride])) : 1.0f;
#pragma unroll
    for (int j = 0; j < kPer; ++j)
      if (begin + 64 * j < width)
        z[j] = __fmaf_rn(gate, s.shared[t * s.shared_stride + begin + 64 * j], z[j]);
  }
  RowEnd<kPer>{s.hidden + t * s.width, s.scale, p.eps, width, out_row(p.out, t)}(z, y, next, p.next,
                                                                                 lanes);
}

// For rows of up to 256 * kPer elements, their padding included: `use` gets that number.
template <typename Use>
void by_width(int64_t padded, Use use) {
  if (padded <= 1024) return use(std::integral_constant<int, 4>());
  if (padded <= 2048) return use(std::integral_constant<int, 8>());
  if (padded <= 3072) return use(std::integral_constant<int, 12>());
  if (padded <= 4096) return use(std::integral_constant<int, 16>());
  if (padded <= 5120) return use(std::integral_constant<int, 20>());
  use(std::integral_constant<int, 32>());
}

LaunchShape shape_of(int64_t rows) {
  return {
      .blocks = static_cast<int>(rows), .threads = kRowThreads, .shared_bytes = 0, .early = true};
}

// Rows that are too long for a block's registers, and those that enter products of f32, by parts.
bool is_too_much(int64_t width, const Activation& out) {
  return width > 8192 || (out.data && out.type != DType::bf16);
}

void norm_by_itself(const float* y, int64_t rows, int64_t width, const float* weight, float eps,
                    const Activation& out, const Execution& on) {
  if (!out.data) return;
  if (!weight) return round({y, width, nullptr, rows, width, out}, on);
  rms_norm({y, width, nullptr, weight, eps, rows, width, out}, on);
}

}  // namespace

void add_norm(const AddNormParams& p, const Execution& on) {
  if (p.rows == 0) return;
  if (!is_too_much(p.width, p.out))
    return by_width(round_up(p.width, kLeafPad), [&](auto per) {
      launch("add_norm", add_norm_kernel<per()>, shape_of(p.rows), on, p);
    });
  if (p.norm)
    rms_norm(
        {p.x, p.x_stride, nullptr, p.norm, p.eps, p.rows, p.width, {p.x, DType::f32, p.x_stride}},
        on);
  add({p.x, p.x_stride, p.norm ? nullptr : p.bias, p.rows, p.width, p.y, p.scale}, on);
  norm_by_itself(p.y, p.rows, p.width, p.next, p.eps, p.out, on);
}

void combine_norm(const CombineNormParams& p, const Execution& on) {
  const CombineParams& sum = p.sum;
  if (sum.rows == 0) return;
  if (!is_too_much(sum.width, p.out))
    return by_width(round_up(sum.width, kLeafPad), [&](auto per) {
      launch("combine_norm", combine_norm_kernel<per()>, shape_of(sum.rows), on, p);
    });
  combine(sum, on);
  norm_by_itself(sum.hidden, sum.rows, sum.width, p.next, p.eps, p.out, on);
}

}  // namespace invar::cuda
