// Training's operations row by row and element by element: kernels/reference/backward.cc on a GPU.
#include "device/cuda/cuda_stream.h"
#include "kernels/cuda/grid.cuh"
#include "kernels/cuda/tma.cuh"
#include "kernels/cuda/training_operations.h"

namespace invar::cuda {

namespace {

__device__ bf16_t* row_of(const Activation& x, int64_t t) {
  return static_cast<bf16_t*>(x.data) + t * x.stride;
}

// sum64 of at(i) by fma of the pair that it gives, by a warp; every lane has the sum.
template <typename At>
__device__ float dot64(int64_t width, const At& at) {
  float lanes[2] = {};
  for (int64_t i = threadIdx.x % kWarp, half = 0; i < width; i += kWarp, half ^= 1) {
    const float2 pair = at(i);
    lanes[half] = __fmaf_rn(pair.x, pair.y, lanes[half]);
  }
  return __shfl_sync(kAllLanes, halve64(lanes[0], lanes[1]), 0);
}
template <typename At>
__device__ float sum64(int64_t width, const At& at) {
  float lanes[2] = {};
  for (int64_t i = threadIdx.x % kWarp, half = 0; i < width; i += kWarp, half ^= 1)
    lanes[half] = lanes[half] + at(i);
  return __shfl_sync(kAllLanes, halve64(lanes[0], lanes[1]), 0);
}

__device__ float inverse_root(float sum, int64_t width, float eps) {
  return 1.0f / math::sqrt(sum / static_cast<float>(width) + eps);
}

// dx of y = (x * rs) * w over one vector, by a warp; use(i, dx_i).
template <typename Use>
__device__ void norm_backward_row(const float* dy, const float* x, const float* weight,
                                  int64_t width, float rs, const Use& use) {
  const float sum = dot64(width, [&](int64_t i) { return float2{dy[i] * weight[i], x[i] * rs}; });
  const float mean = sum / static_cast<float>(width);
  for (int64_t i = threadIdx.x % kWarp; i < width; i += kWarp)
    use(i, __fmaf_rn(-(x[i] * rs), mean, dy[i] * weight[i]) * rs);
}

// ---- Norms: a warp has a row.

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

// ---- Curves: a thread has an element, pad columns included.

// The slope of a curve; gelu's is Phi(x) + x * phi(x).
__device__ float slope(Nonlinearity curve, float x) {
  if (curve == Nonlinearity::gelu) {
    const float s = (x < 0.0f ? -x : x) * math::constants::kSqrtHalf;
    const float bell = math::exp(-(s * s));
    const float density = bell * (math::constants::kGeluLinear * 0.25f);
    const float t = 1.0f / __fmaf_rn(math::constants::kErfcStep, s, 1.0f);
    constexpr auto kErfc = math::constants::kErfc;
    float p = kErfc[0];
    for (int i = 1; i < 5; ++i) p = __fmaf_rn(p, t, kErfc[i]);
    const float tail = ((p * t) * bell) * 0.5f;
    return __fmaf_rn(x, density, x < 0.0f ? tail : 1.0f - tail);
  }
  const bool is_gelu = curve == Nonlinearity::gelu_tanh;
  const float z = is_gelu ? math::gelu_exponent(x) : x;
  const float step = is_gelu ? x * math::gelu_exponent_slope(x) : x;
  const float s = 1.0f / (1.0f + math::exp(-z));
  return s * __fmaf_rn(step, 1.0f - s, 1.0f);
}

__global__ __launch_bounds__(kThreads) void curve_backward_kernel(
    const __grid_constant__ CurveBackwardParams p) {
  const int64_t padded = round_up(p.width, kLeafPad);
  const int64_t at = thread_of_grid(), t = at / padded, f = at % padded;
  if (t >= p.rows) return;
  const int64_t i = t * p.width + f;
  row_of(p.out, t)[f] = f < p.width ? f32_to_bf16(p.dy[i] * slope(p.curve, p.x[i])) : bf16_t{0};
}

__global__ __launch_bounds__(kThreads) void gate_backward_kernel(
    const __grid_constant__ GateBackwardParams p) {
  const int64_t both = 2 * round_up(p.width, kPanelWidth), units = round_up(both, kLeafPad) / 2;
  const int64_t at = thread_of_grid(), t = at / units, f = at % units;
  if (t >= p.rows) return;
  const int64_t gate = paired_column(f, 0), up = paired_column(f, 1);
  bf16_t* out = row_of(p.out, t);
  if (f >= p.width) {
    out[gate] = out[up] = bf16_t{0};
    return;
  }
  const float* dots = p.gate_up + t * both;
  float g = dots[dots_column(f, 0, p.width, p.layout)];
  float u = dots[dots_column(f, 1, p.width, p.layout)];
  if (p.gate_bias) g = g + p.gate_bias[f];
  if (p.up_bias) u = u + p.up_bias[f];
  const float d = p.d_gated[t * p.width + f];
  const bool is_gelu = p.curve == Nonlinearity::gelu_tanh;
  const float z = is_gelu ? math::gelu_exponent(g) : g;
  const float step = is_gelu ? g * math::gelu_exponent_slope(g) : g;
  const float below = 1.0f + math::exp(-z), s = 1.0f / below;
  out[gate] = f32_to_bf16((d * u) * (s * __fmaf_rn(step, 1.0f - s, 1.0f)));
  out[up] = f32_to_bf16(d * (g / below));
}

// The curve behind dots that were kept: what a gated product leaves.
__global__ __launch_bounds__(kThreads) void gate_dots_kernel(
    const __grid_constant__ KeptGatedMatmulParams kept) {
  const GatedMatmulParams& p = kept.product;
  const int64_t width = p.gate_up.n, padded = round_up(width, kLeafPad);
  const int64_t both = 2 * round_up(width, kPanelWidth);
  const int64_t at = thread_of_grid(), t = at / padded, f = at % padded;
  if (t >= p.rows) return;
  float y = 0.0f;
  if (f < width) {
    const WeightLayout layout = p.gate_up.layout;
    float gate = kept.dots[t * both + dots_column(f, 0, width, layout)];
    float up = kept.dots[t * both + dots_column(f, 1, width, layout)];
    if (p.gate_bias) gate = gate + p.gate_bias[f];
    if (p.up_bias) up = up + p.up_bias[f];
    y = gated(p.curve, gate, up);
  }
  store(p.out, t * p.out.stride + f, y);
}

// ---- The ends of a step

__global__ __launch_bounds__(kThreads) void loss_kernel(const __grid_constant__ LossParams p) {
  const int64_t padded = round_up(p.vocab, kLeafPad);
  const int64_t at = thread_of_grid(), t = at / padded, v = at % padded;
  if (t >= p.rows) return;
  const float weight = p.weights[t];
  bf16_t y{0};
  if (weight != 0.0f && v < p.vocab) {
    const auto probability = [&](const float* logits, const float* max, const float* log_sum) {
      return math::exp((logits[t * p.stride + v] - max[t]) - log_sum[t]);
    };
    float wanted = v == p.targets[t] ? 1.0f : 0.0f;
    if (p.teacher)
      wanted = __fmaf_rn(p.teacher_share, probability(p.teacher, p.teacher_max, p.teacher_log_sum),
                         (1.0f - p.teacher_share) * wanted);
    y = f32_to_bf16(weight * (probability(p.logits, p.max, p.log_sum) - wanted));
  }
  row_of(p.out, t)[v] = y;
}

// A thread has a column and goes through the rows: those of one token meet in their order.
__global__ __launch_bounds__(kThreads) void embed_gradient_kernel(
    const __grid_constant__ EmbedGradientParams p) {
  const int64_t d = thread_of_grid();
  if (d >= p.width) return;
  for (int64_t t = 0; t < p.rows; ++t) {
    float& gradient = p.gradient[int64_t{p.tokens[t]} * p.width + d];
    gradient = gradient + p.dx[t * p.width + d] * p.scale;
  }
}

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
  launch("a norm's backward", norm_backward_kernel, {blocks_of(p.rows * kWarp), kThreads, 0}, on,
         p);
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
  launch("the backward of heads' norms", qkv_norms_kernel,
         {blocks_of(p.rows * (vectors + 1) * kWarp), kThreads, 0}, on, p);
}
void curve_backward(const CurveBackwardParams& p, const Execution& on) {
  if (p.rows == 0) return;
  launch("a curve's backward", curve_backward_kernel,
         {blocks_of(p.rows * round_up(p.width, kLeafPad)), kThreads, 0}, on, p);
}
void gate_backward(const GateBackwardParams& p, const Execution& on) {
  if (p.rows == 0) return;
  const int64_t units = round_up(2 * round_up(p.width, kPanelWidth), kLeafPad) / 2;
  launch("a gate's backward", gate_backward_kernel, {blocks_of(p.rows * units), kThreads, 0}, on,
         p);
}
void gate_dots(const KeptGatedMatmulParams& p, const Execution& on) {
  launch("gates of products", gate_dots_kernel,
         {blocks_of(p.product.rows * round_up(p.product.gate_up.n, kLeafPad)), kThreads, 0}, on, p);
}
void loss(const LossParams& p, const Execution& on) {
  if (p.rows == 0) return;
  launch("the gradient of logits", loss_kernel,
         {blocks_of(p.rows * round_up(p.vocab, kLeafPad)), kThreads, 0}, on, p);
}
void embed_gradient(const EmbedGradientParams& p, const Execution& on) {
  launch("the embedding's gradient", embed_gradient_kernel, {blocks_of(p.width), kThreads, 0}, on,
         p);
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
