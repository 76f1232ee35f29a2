// Training's operations row by row and element by element: kernels/reference/backward.cc on a GPU.
#include "device/cuda/cuda_stream.h"
#include "kernels/cuda/grid.cuh"
#include "kernels/cuda/tma.cuh"
#include "kernels/cuda/training_operations.h"
#include "kernels/cuda/warp_norms.cuh"

namespace invar::cuda {

namespace {

// A vector of whole 64 elements, at most kMost times 64, in a warp's registers: lane l has elements
// 2l and 2l + 1 of each 64.
template <int kMost>
struct Pairs {
  float2 of[kMost];

  // use(k, i): of[k] are elements i and i + 1.
  template <typename Use>
  __device__ static void each(int64_t width, const Use& use) {
#pragma unroll
    for (int k = 0; k < kMost; ++k)
      if (k * 64 < width) use(k, k * 64 + threadIdx.x % kWarp * 2);
  }
  __device__ Pairs(const float* x, int64_t width) {
    each(width, [&](int k, int i) { of[k] = *reinterpret_cast<const float2*>(x + i); });
  }
  // sum64 by fma of the products with another's elements.
  __device__ float dot(const Pairs& y, int64_t width) const {
    float even = 0.0f, odd = 0.0f;
    each(width, [&](int k, int) {
      even = __fmaf_rn(of[k].x, y.of[k].x, even);
      odd = __fmaf_rn(of[k].y, y.of[k].y, odd);
    });
    return halve64_of_pairs(even, odd);
  }
};

// norm_backward_row and what comes before it: use(i, both dx from i on); returns rs.
template <int kMost, typename Use>
__device__ float norm_backward_pairs(const float* dy, const float* x, const float* weight,
                                     int64_t width, float eps, const Use& use) {
  Pairs<kMost> n(x, width), d(dy, width);
  const float rs = inverse_root(n.dot(n, width), width, eps);
  Pairs<kMost>::each(width, [&](int k, int i) {
    n.of[k] = {n.of[k].x * rs, n.of[k].y * rs};
    d.of[k] = {d.of[k].x * weight[i], d.of[k].y * weight[i + 1]};
  });
  const float mean = d.dot(n, width) / static_cast<float>(width);
  Pairs<kMost>::each(width, [&](int k, int i) {
    use(i, float2{__fmaf_rn(-n.of[k].x, mean, d.of[k].x) * rs,
                  __fmaf_rn(-n.of[k].y, mean, d.of[k].y) * rs});
  });
  return rs;
}
constexpr int kMostOfRow = 32, kMostOfHead = 4;
bool are_pairs(int64_t width, int most) {
  return width % 64 == 0 && width <= most * 64;
}

// ---- Norms: a warp has a row.

__global__ __launch_bounds__(kThreads) void norm_backward_pairs_kernel(
    const __grid_constant__ NormBackwardParams p) {
  const int64_t t = warp_of_grid();
  if (t >= p.rows) return;
  float* dx = p.dx + t * p.width;
  const float rs = norm_backward_pairs<kMostOfRow>(
      p.dy + t * p.width, p.x + t * p.width, p.weight, p.width, p.eps, [&](int i, float2 d) {
        float2& both = *reinterpret_cast<float2*>(dx + i);
        both = {both.x + d.x, both.y + d.y};
      });
  if (threadIdx.x % kWarp == 0) p.rs[t] = rs;
}

__global__ __launch_bounds__(kThreads) void norm_backward_kernel(
    const __grid_constant__ NormBackwardParams p) {
  const int64_t t = warp_of_grid();
  if (t >= p.rows) return;
  const float* x = p.x + t * p.width;
  float* dx = p.dx + t * p.width;
  const float sum = dot64(p.width, [&](int64_t i) { return float2{x[i], x[i]}; });
  const float rs = inverse_root(sum, p.width, p.eps);
  if (threadIdx.x % kWarp == 0) p.rs[t] = rs;
  norm_backward_row(p.dy + t * p.width, x, p.weight, p.width, rs,
                    [&](int64_t i, float d) { dx[i] = dx[i] + d; });
}

__global__ __launch_bounds__(kThreads) void layer_norm_backward_kernel(
    const __grid_constant__ LayerNormBackwardParams layer) {
  const NormBackwardParams& p = layer.norm;
  const int64_t t = warp_of_grid();
  if (t >= p.rows) return;
  const float width = static_cast<float>(p.width);
  const float *x = p.x + t * p.width, *dy = p.dy + t * p.width;
  const float mean = sum64(p.width, [&](int64_t i) { return x[i]; }) / width;
  const float squares = dot64(p.width, [&](int64_t i) {
    const float c = x[i] - mean;
    return float2{c, c};
  });
  const float rs = inverse_root(squares, p.width, p.eps);
  if (threadIdx.x % kWarp == 0) layer.mean[t] = mean, p.rs[t] = rs;
  const auto n = [&](int64_t i) { return (x[i] - mean) * rs; };
  const auto d = [&](int64_t i) { return dy[i] * p.weight[i]; };
  const float first = sum64(p.width, d) / width;
  const float second = dot64(p.width, [&](int64_t i) { return float2{d(i), n(i)}; }) / width;
  float* dx = p.dx + t * p.width;
  for (int64_t i = threadIdx.x % kWarp; i < p.width; i += kWarp)
    dx[i] = dx[i] + __fmaf_rn(-n(i), second, d(i) - first) * rs;
}

// ---- Rotation and the norms of heads

__global__ __launch_bounds__(kThreads) void rotate_back_kernel(
    const __grid_constant__ QkvBackwardParams p) {
  const int half = p.head_dim / 2, heads = p.heads + p.kv_heads;
  const int64_t at = thread_of_grid(), t = at / (int64_t{heads} * half);
  if (t >= p.rows) return;
  const int64_t h = at / half % heads, pair = at % half;
  float* d = p.d_qkv + t * p.d_qkv_stride + h * p.head_dim;
  const int64_t turn = int64_t{p.positions[t]} * half + pair;
  const float c = p.cos[turn], s = p.sin[turn], a = d[pair], b = d[pair + half];
  d[pair] = __fmaf_rn(a, c, b * s);
  d[pair + half] = __fmaf_rn(b, c, -(a * s));
}

// A warp has a vector that a norm is of, a head, or the values and pad columns of a row.
__global__ __launch_bounds__(kThreads) void qkv_norms_kernel(
    const __grid_constant__ QkvBackwardParams p) {
  const int e = p.head_dim, vectors = p.is_joint ? 2 : p.heads + p.kv_heads;
  const int64_t warp = warp_of_grid(), t = warp / (vectors + 1), v = warp % (vectors + 1);
  if (t >= p.rows) return;
  const float* d = p.d_qkv + t * p.d_qkv_stride;
  bf16_t* out = row_of(p.out, t);
  const int64_t values = int64_t{p.heads + p.kv_heads} * e;
  if (v == vectors) {
    const int64_t end = values + int64_t{p.kv_heads} * e;
    for (int64_t i = values + threadIdx.x % kWarp; i < round_up(end, kLeafPad); i += kWarp)
      out[i] = i < end ? f32_to_bf16(d[i]) : bf16_t{0};
    return;
  }
  const int64_t first = p.is_joint ? (v == 0 ? 0 : int64_t{p.heads} * e) : v * e;
  const int64_t count = p.is_joint ? int64_t{v == 0 ? p.heads : p.kv_heads} * e : e;
  if (!p.q_norm) {
    for (int64_t i = threadIdx.x % kWarp; i < count; i += kWarp)
      out[first + i] = f32_to_bf16(d[first + i]);
    return;
  }
  const bool is_query = p.is_joint ? v == 0 : v < p.heads;
  const float* x = p.qkv + t * p.qkv_stride + first;
  const float sum = dot64(count, [&](int64_t i) { return float2{x[i], x[i]}; });
  const float rs = inverse_root(sum, count, p.norm_eps);
  if (threadIdx.x % kWarp == 0) p.rs[t * vectors + v] = rs;
  norm_backward_row(d + first, x, is_query ? p.q_norm : p.k_norm, count, rs,
                    [&](int64_t i, float dx) { out[first + i] = f32_to_bf16(dx); });
}

// The same of heads of whole 64 elements, each of which has a norm of its own.
__global__ __launch_bounds__(kThreads) void head_norms_kernel(
    const __grid_constant__ QkvBackwardParams p) {
  const int e = p.head_dim, normed = p.heads + p.kv_heads, heads = normed + p.kv_heads;
  const auto warp = static_cast<uint32_t>(warp_of_grid());
  const int64_t t = warp / static_cast<uint32_t>(heads + 1);
  const int h = static_cast<int>(warp % static_cast<uint32_t>(heads + 1));
  if (t >= p.rows) return;
  bf16_t* out = row_of(p.out, t);
  const int64_t first = int64_t{h} * e;
  if (h == heads) {
    for (int64_t i = first + threadIdx.x % kWarp; i < round_up(first, kLeafPad); i += kWarp)
      out[i] = bf16_t{0};
    return;
  }
  const float* d = p.d_qkv + t * p.d_qkv_stride + first;
  const auto write = [&](int i, float2 x) {
    *reinterpret_cast<uint32_t*>(out + first + i) =
        f32_to_bf16(x.x) | static_cast<uint32_t>(f32_to_bf16(x.y)) << 16;
  };
  if (h >= normed || !p.q_norm) {
    const Pairs<kMostOfHead> values(d, e);
    return Pairs<kMostOfHead>::each(e, [&](int k, int i) { write(i, values.of[k]); });
  }
  const float rs = norm_backward_pairs<kMostOfHead>(
      d, p.qkv + t * p.qkv_stride + first, h < p.heads ? p.q_norm : p.k_norm, e, p.norm_eps, write);
  if (threadIdx.x % kWarp == 0) p.rs[t * normed + h] = rs;
}

// ---- The ends of a step

__global__ __launch_bounds__(kThreads) void adam_kernel(const __grid_constant__ AdamParams p) {
  const int64_t i = thread_of_grid();
  if (i >= p.count) return;
  const float rest1 = 1.0f - p.beta1, rest2 = 1.0f - p.beta2;
  const float g = p.gradient[i] * p.gradient_scale;
  const float m = __fmaf_rn(p.beta1, p.first[i], rest1 * g);
  const float v = __fmaf_rn(p.beta2, p.second[i], (rest2 * g) * g);
  p.first[i] = m, p.second[i] = v;
  const float step = (m * p.first_scale) / (math::sqrt(v * p.second_scale) + p.eps);
  const float w = p.master[i];
  const float next = __fmaf_rn(-p.rate, __fmaf_rn(p.decay, w, step), w);
  p.master[i] = next;
  p.weights[i] = f32_to_bf16(next);
}

__global__ __launch_bounds__(kThreads) void add_gradient_kernel(
    const __grid_constant__ AddGradientParams p) {
  const int64_t i = thread_of_grid();
  if (i < p.count) p.y[i] = p.y[i] + p.x[i];
}

__global__ __launch_bounds__(kThreads) void pick_kernel(const __grid_constant__ PickParams p) {
  const int64_t t = thread_of_grid();
  if (t < p.rows) p.out[t] = p.x[t * p.stride + p.columns[t]];
}

}  // namespace

void norm_backward(const NormBackwardParams& p, const Execution& on) {
  if (p.rows == 0) return;
  auto* kernel = are_pairs(p.width, kMostOfRow) ? norm_backward_pairs_kernel : norm_backward_kernel;
  launch("a norm's backward", kernel, {blocks_of(p.rows * kWarp), kThreads, 0}, on, p);
}
void layer_norm_backward(const LayerNormBackwardParams& p, const Execution& on) {
  if (p.norm.rows == 0) return;
  launch("a norm's backward", layer_norm_backward_kernel,
         {blocks_of(p.norm.rows * kWarp), kThreads, 0}, on, p);
}
void qkv_backward(const QkvBackwardParams& p, const Execution& on) {
  if (p.rows == 0) return;
  const int64_t heads = p.heads + p.kv_heads, vectors = p.is_joint ? 2 : heads;
  launch("rotating gradients back", rotate_back_kernel,
         {blocks_of(p.rows * heads * (p.head_dim / 2)), kThreads, 0}, on, p);
  if (!p.is_joint && are_pairs(p.head_dim, kMostOfHead) && p.d_qkv_stride % 2 == 0 &&
      p.qkv_stride % 2 == 0)
    return launch("the backward of heads' norms", head_norms_kernel,
                  {blocks_of(p.rows * (heads + p.kv_heads + 1) * kWarp), kThreads, 0}, on, p);
  launch("the backward of heads' norms", qkv_norms_kernel,
         {blocks_of(p.rows * (vectors + 1) * kWarp), kThreads, 0}, on, p);
}
void adam(const AdamParams& p, const Execution& on) {
  if (p.count == 0) return;
  launch("AdamW", adam_kernel, {blocks_of(p.count), kThreads, 0}, on, p);
}
void pick(const PickParams& p, const Execution& on) {
  if (p.rows == 0) return;
  launch("picking", pick_kernel, {blocks_of(p.rows), kThreads, 0}, on, p);
}
void add_gradient(const AddGradientParams& p, const Execution& on) {
  if (p.count == 0) return;
  launch("adding gradients", add_gradient_kernel, {blocks_of(p.count), kThreads, 0}, on, p);
}

}  // namespace invar::cuda
