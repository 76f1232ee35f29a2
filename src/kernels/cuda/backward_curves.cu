// Training's curves, gates and losses, element by element: kernels/reference/backward.cc on a GPU.
#include "device/cuda/cuda_stream.h"
#include "kernels/cuda/grid.cuh"
#include "kernels/cuda/tma.cuh"
#include "kernels/cuda/training_operations.h"

namespace invar::cuda {

namespace {

// ---- Curves: a thread has an element, pad columns included.

// The slope of a curve; gelu's is Phi(x) + x * phi(x).
__device__ float slope(Nonlinearity curve, float x) {
  if (curve == Nonlinearity::relu_squared) return x < 0.0f ? 0.0f : x + x;
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

// A gate's curve and its slope.
__device__ void gate_slopes(Nonlinearity curve, float g, float& slope, float& value) {
  const bool is_gelu = curve == Nonlinearity::gelu_tanh;
  const float z = is_gelu ? math::gelu_exponent(g) : g;
  const float step = is_gelu ? g * math::gelu_exponent_slope(g) : g;
  const float below = 1.0f + math::exp(-z), s = 1.0f / below;
  slope = s * __fmaf_rn(step, 1.0f - s, 1.0f);
  value = g / below;
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
  float slope, value;
  gate_slopes(p.curve, g, slope, value);
  out[gate] = f32_to_bf16((d * u) * slope);
  out[up] = f32_to_bf16(d * value);
}

// The slopes of four gated activations of one product: g becomes dg / d, u becomes du / d. g /
// below by a reciprocal and two corrections, which is exact where no gate is extreme.
__device__ void silu_slopes(float (&g)[kFour], float (&u)[kFour]) {
#pragma unroll
  for (int i = 0; i < kFour; ++i) {
    const float below = 1.0f + math::exp(-g[i]), s = __frcp_rn(below);
    float q = g[i] * s;
    q = __fmaf_rn(__fmaf_rn(-below, q, g[i]), s, q);
    q = __fmaf_rn(__fmaf_rn(-below, q, g[i]), s, q);
    u[i] = q;
    g[i] = s * __fmaf_rn(g[i], 1.0f - s, 1.0f);
  }
}

__global__ __launch_bounds__(kThreads) void gate_backward_four_kernel(
    const __grid_constant__ GateBackwardParams p) {
  const int64_t both = 2 * round_up(p.width, kPanelWidth), units = round_up(both, kLeafPad) / 2;
  const auto [t, f] = FourOfRow(units);
  if (f >= units) return;
  bf16_t *out = row_of(p.out, t), *gate = out + paired_column(f, 0),
         *up = out + paired_column(f, 1);
  float dg[kFour] = {}, du[kFour] = {};
  if (f < p.width) {
    const float* dots = p.gate_up + t * both;
    float g[kFour], u[kFour], d[kFour];
    load_four(dots + dots_column(f, 0, p.width, p.layout), g);
    load_four(dots + dots_column(f, 1, p.width, p.layout), u);
    load_four(p.d_gated + t * p.width + f, d);
    bool are_tame = p.curve == Nonlinearity::silu;
#pragma unroll
    for (float x : g) are_tame = are_tame && is_tame_gate(x);
    float slope[kFour], value[kFour];
#pragma unroll
    for (int i = 0; i < kFour; ++i) slope[i] = g[i];
    if (are_tame) {
      silu_slopes(slope, value);
    } else {
      for (int i = 0; i < kFour; ++i) gate_slopes(p.curve, g[i], slope[i], value[i]);
    }
#pragma unroll
    for (int i = 0; i < kFour; ++i) {
      dg[i] = (d[i] * u[i]) * slope[i];
      du[i] = d[i] * value[i];
    }
  }
  store_four(gate, dg);
  store_four(up, du);
}

__global__ __launch_bounds__(kThreads) void gate_dots_four_kernel(
    const __grid_constant__ KeptGatedMatmulParams kept) {
  const GatedMatmulParams& p = kept.product;
  const int64_t width = p.gate_up.n, padded = round_up(width, kLeafPad);
  const auto [t, f] = FourOfRow(padded);
  if (f >= padded) return;
  float y[kFour] = {};
  if (f < width) {
    const float* dots = kept.dots + t * 2 * round_up(width, kPanelWidth);
    float up[kFour];
    load_four(dots + dots_column(f, 0, width, p.gate_up.layout), y);
    load_four(dots + dots_column(f, 1, width, p.gate_up.layout), up);
    gated_all(p.curve, y, up);
  }
  store_four(row_of(p.out, t) + f, y);
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

// ---- Losses

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

__global__ __launch_bounds__(kThreads) void loss_four_kernel(const __grid_constant__ LossParams p) {
  const int64_t padded = round_up(p.vocab, kLeafPad);
  const auto [t, v] = FourOfRow(padded);
  if (v >= padded) return;
  const float weight = p.weights[t];
  float y[kFour] = {};
  if (weight != 0.0f && v < p.vocab) {
    load_four(p.logits + t * p.stride + v, y);
    const float max = p.max[t], log_sum = p.log_sum[t];
    const int64_t target = p.targets[t] - v;
#pragma unroll
    for (int i = 0; i < kFour; ++i)
      y[i] = weight * (math::exp((y[i] - max) - log_sum) - (i == target ? 1.0f : 0.0f));
  }
  store_four(row_of(p.out, t) + v, y);
}

}  // namespace

void curve_backward(const CurveBackwardParams& p, const Execution& on) {
  if (p.rows == 0) return;
  launch("a curve's backward", curve_backward_kernel,
         {blocks_of(p.rows * round_up(p.width, kLeafPad)), kThreads, 0}, on, p);
}
void gate_backward(const GateBackwardParams& p, const Execution& on) {
  if (p.rows == 0) return;
  const int64_t units = round_up(2 * round_up(p.width, kPanelWidth), kLeafPad) / 2;
  if (is_by_four(p.width, p.width) && !p.gate_bias && !p.up_bias)
    return launch("a gate's backward", gate_backward_four_kernel,
                  {fours_of(p.rows, units), kThreads, 0}, on, p);
  launch("a gate's backward", gate_backward_kernel, {blocks_of(p.rows * units), kThreads, 0}, on,
         p);
}
void gate_dots(const KeptGatedMatmulParams& p, const Execution& on) {
  const GatedMatmulParams& of = p.product;
  if (is_by_four(of.gate_up.n, of.gate_up.n) && of.out.type == DType::bf16 && !of.gate_bias &&
      !of.up_bias)
    return launch("gates of products", gate_dots_four_kernel,
                  {fours_of(of.rows, round_up(of.gate_up.n, kLeafPad)), kThreads, 0}, on, p);
  launch("gates of products", gate_dots_kernel,
         {blocks_of(p.product.rows * round_up(p.product.gate_up.n, kLeafPad)), kThreads, 0}, on, p);
}
void loss(const LossParams& p, const Execution& on) {
  if (p.rows == 0) return;
  if (is_by_four(p.vocab, p.stride) && !p.teacher)
    return launch("the gradient of logits", loss_four_kernel,
                  {fours_of(p.rows, round_up(p.vocab, kLeafPad)), kThreads, 0}, on, p);
  launch("the gradient of logits", loss_kernel,
         {blocks_of(p.rows * round_up(p.vocab, kLeafPad)), kThreads, 0}, on, p);
}

}  // namespace invar::cuda
