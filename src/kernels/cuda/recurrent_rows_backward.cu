// The backward of what stands around recurrences: kernels/reference/recurrent_rows_backward.cc on a
// GPU. Sums have their own order, so the kernels are those of every order.
#include "kernels/cuda/leaf_chains.cuh"
#include "kernels/cuda/states_backward.h"
#include "kernels/cuda/warp_norms.cuh"
#include "numerics/curves.h"

namespace invar::cuda {

namespace {

__device__ float logistic(float x) {
  return 1.0f / (1.0f + math::exp(-x));
}
__device__ float silu_slope(float x) {
  const float s = logistic(x);
  return s * __fmaf_rn(x, 1.0f - s, 1.0f);
}

// A gate's factor and its derivative.
struct Gate {
  float value, slope;
};
__device__ Gate gate_of(bool is_sigmoid, float z) {
  if (!is_sigmoid) return {math::silu(z), silu_slope(z)};
  const float s = logistic(z);
  return {s, s * (1.0f - s)};
}

// ---- Short convolutions: a thread has a channel of a row.

// The number that the forward kept of the row so many rows before this one; +0 before position 0.
__device__ float kept_input(const ShortConvBackwardParams& p, int64_t t, int back, int64_t c) {
  if (p.positions[t] < back) return 0.0f;
  float x = p.x[(t - back) * p.x_stride + c];
  if (p.factor) x = x * p.factor[(t - back) * p.factor_stride + c];
  return bf16_to_f32(f32_to_cached_bf16(x));
}

__device__ float sum_of_taps(const ShortConvBackwardParams& p, int64_t t, int64_t c) {
  float y = 0.0f;
  for (int m = 0; m < p.taps; ++m)
    y = __fmaf_rn(p.weight[m * p.weight_stride + c], kept_input(p, t, p.taps - 1 - m, c), y);
  return p.bias ? y + p.bias[c] : y;
}

// From the output's gradient to that of the sum.
__global__ __launch_bounds__(kThreads) void conv_sums_kernel(
    const __grid_constant__ ShortConvBackwardParams p) {
  const int64_t i = thread_of_grid(), t = i / p.channels, c = i % p.channels;
  if (t >= p.rows) return;
  float d = p.d_out[t * p.d_out_stride + c];
  const float sum = p.silu || p.gate ? sum_of_taps(p, t, c) : 0.0f;
  if (p.gate) {
    p.d_gate[t * p.dx_stride + c] = d * (p.silu ? math::silu(sum) : sum);
    d = d * p.gate[t * p.gate_stride + c];
  }
  p.d_sum[t * p.d_sum_stride + c] = p.silu ? d * silu_slope(sum) : d;
}

// An input counts in its own row and in the next taps - 1 of its sequence, in this order.
__global__ __launch_bounds__(kThreads) void conv_inputs_kernel(
    const __grid_constant__ ShortConvBackwardParams p) {
  const int64_t i = thread_of_grid(), t = i / p.channels, c = i % p.channels;
  if (t >= p.rows) return;
  float d = 0.0f;
  for (int ahead = 0; ahead < p.taps; ++ahead) {
    if (t + ahead >= p.rows || p.positions[t + ahead] < ahead) break;
    d = __fmaf_rn(p.weight[(p.taps - 1 - ahead) * p.weight_stride + c],
                  p.d_sum[(t + ahead) * p.d_sum_stride + c], d);
  }
  const float x = p.x[t * p.x_stride + c];
  p.dx[t * p.dx_stride + c] = p.factor ? d * p.factor[t * p.factor_stride + c] : d;
  if (p.factor) p.d_factor[t * p.dx_stride + c] = d * x;
}

// Columns are the channels of each tap, and behind them those of the bias.
__global__ __launch_bounds__(kChainThreads) void conv_weights_kernel(
    const __grid_constant__ ShortConvBackwardParams p) {
  __shared__ Leaves leaves;
  const int64_t i = column_of_cluster<kWideColumns>(), tap = i / p.channels, c = i % p.channels;
  const bool is_tap = tap < p.taps, is_column = is_tap || (p.d_bias && tap == p.taps);
  float* gradient = is_tap ? p.d_weight + tap * p.d_weight_stride + c : p.d_bias + c;
  const int back = static_cast<int>(p.taps - 1 - tap);
  const float sum = chain<kWideColumns>(
      leaves, is_column ? *gradient : 0.0f, p.rows / kLeaf, is_column, [&](int64_t leaf) {
        return leaf_of([&](int j) {
          const int64_t t = leaf * kLeaf + j;
          const float d = p.d_sum[t * p.d_sum_stride + c];
          return is_tap ? float2{d, kept_input(p, t, back, c)} : float2{1.0f, d};
        });
      });
  if (is_column && has_sum<kWideColumns>()) *gradient = sum;
}

// ---- Gates, keys and norms: a warp has a vector.

// One group of a row.
__global__ __launch_bounds__(kThreads) void gated_norm_backward_kernel(
    const __grid_constant__ GatedNormBackwardParams p) {
  const GatedNormParams& f = p.forward;
  const int64_t warp = warp_of_grid(), t = warp / f.groups, group = warp % f.groups;
  if (t >= f.rows) return;
  const int64_t at = group * f.width, own = t * f.groups * f.width + at;
  const float *x = f.x + t * f.x_stride + at, *z = f.gate + t * f.gate_stride + at;
  const float *d_out = p.d_out + own, *weight = f.weight + (f.own_weights ? at : 0);
  float *dx = p.dx + own, *d_gate = p.d_gate + t * p.d_gate_stride + at;
  float *dn = p.d_normed + own, *normed = p.normed + own;
  for (int64_t i = threadIdx.x % kWarp; i < f.width; i += kWarp) {  // each lane reads its own again
    const float gate = gate_of(f.is_sigmoid, z[i]).value;
    normed[i] = f.gate_first ? x[i] * gate : x[i];
    dn[i] = f.gate_first ? d_out[i] : d_out[i] * gate;
  }
  const float rs = inverse_root(dot64(f.width,
                                      [&](int64_t i) {
                                        return float2{normed[i], normed[i]};
                                      }),
                                f.width, f.eps);
  if (threadIdx.x % kWarp == 0) p.rs[t * f.groups + group] = rs;
  norm_backward_row(dn, normed, weight, f.width, rs, [&](int64_t i, float d) {
    const Gate gate = gate_of(f.is_sigmoid, z[i]);
    const float before = f.gate_first ? d * x[i] : d_out[i] * ((x[i] * rs) * weight[i]);
    d_gate[i] = before * gate.slope;
    dx[i] = f.gate_first ? d * gate.value : d;
  });
}

// A head of a row. da may be d_decays: a lane writes what it alone has read.
__global__ __launch_bounds__(kThreads) void gates_backward_kernel(
    const __grid_constant__ RecurrentGatesBackwardParams p) {
  const RecurrentGatesParams& f = p.forward;
  const int64_t own = warp_of_grid(), t = own / f.heads, h = own % f.heads;
  if (t >= f.rows) return;
  const int lane = threadIdx.x % kWarp;
  const float rate = -math::exp(f.log_rate[h]);
  float d_factor = p.d_factors[own];
  if (p.dz) {
    if (f.doubles) d_factor = d_factor + d_factor;
    if (lane == 0)
      p.dz[t * p.dz_stride + h] = d_factor * gate_of(true, f.z[t * f.z_stride + h]).slope;
  }
  const int64_t at = own * f.channels;
  if (p.d_rates) {
    const float sum = dot64(f.channels, [&](int64_t i) {
      return float2{p.d_decays[at + i], f.decays[at + i]};
    });
    if (lane == 0) p.d_rates[own] = sum;
  }
  for (int64_t c = lane; c < f.channels; c += kWarp) {
    const int64_t i = h * f.channels + c;
    const float x = f.a[t * f.a_stride + i] + f.bias[i];
    float d = p.d_decays[at + c] * rate;
    if (f.kind == Recurrence::state_space) {
      const float step = math::softplus(x);
      d = step < f.least || step > f.most ? 0.0f : d_factor + d;
    }
    p.da[t * p.da_stride + i] = d * logistic(x);
  }
}

// A head's keys or queries of a row.
__global__ __launch_bounds__(kThreads) void keys_backward_kernel(
    const __grid_constant__ RecurrentKeysBackwardParams p) {
  const int64_t warp = warp_of_grid(), t = warp / p.heads, head = warp % p.heads;
  if (t >= p.rows) return;
  const float* x = p.x + t * p.x_stride + head * p.key_size;
  float* dx = p.d + t * p.d_stride + head * p.key_size;
  const float sum = dot64(p.key_size, [&](int64_t i) { return float2{x[i], x[i]}; });
  const float rs = 1.0f / math::sqrt(sum + p.eps);
  const float along = dot64(p.key_size, [&](int64_t i) {
    return float2{dx[i] * p.scale, x[i] * rs};
  });
  for (int64_t i = threadIdx.x % kWarp; i < p.key_size; i += kWarp)
    dx[i] = __fmaf_rn(-(x[i] * rs), along, dx[i] * p.scale) * rs;
}

__global__ __launch_bounds__(kThreads) void output_gate_backward_kernel(
    const __grid_constant__ OutputGateBackwardParams p) {
  const int64_t at = thread_of_grid(), t = at / p.width, i = at % p.width;
  if (t >= p.rows) return;
  const Gate gate = gate_of(true, p.gate[at]);
  const float d = p.d[at];
  p.d_gate[at] = (d * bf16_to_f32(row_of(p.x, t)[i])) * gate.slope;
  p.dx[at] = d * gate.value;
}

__global__ __launch_bounds__(kChainThreads) void row_sums_kernel(
    const __grid_constant__ RowSumsParams p) {
  __shared__ Leaves leaves;
  const int64_t i = column_of_cluster<kNarrowColumns>();
  const bool is_column = i < p.count;
  const float sum = chain<kNarrowColumns>(
      leaves, is_column ? p.gradient[i] : 0.0f, p.rows / kLeaf, is_column, [&](int64_t leaf) {
        return leaf_of([&](int j) {
          const int64_t t = leaf * kLeaf + j;
          return float2{p.x[t * p.x_stride + i], p.y ? p.y[t * p.y_stride + i] : 1.0f};
        });
      });
  if (is_column && has_sum<kNarrowColumns>()) p.gradient[i] = sum;
}

}  // namespace

void short_conv_backward(const ShortConvBackwardParams& p, const Execution& on) {
  if (p.rows == 0) return;
  const LaunchShape elements{blocks_of(p.rows * p.channels), kThreads, 0};
  launch("gradients of a convolution's sums", conv_sums_kernel, elements, on, p);
  launch("gradients of a convolution's inputs", conv_inputs_kernel, elements, on, p);
  if (!p.d_weight) return;
  launch("gradients of a convolution's weights", conv_weights_kernel,
         chains((p.taps + (p.d_bias ? 1 : 0)) * p.channels), on, p);
}
void gated_norm_backward(const GatedNormBackwardParams& p, const Execution& on) {
  if (p.forward.rows == 0) return;
  launch("a gated norm's backward", gated_norm_backward_kernel,
         {blocks_of(p.forward.rows * p.forward.groups * kWarp), kThreads, 0}, on, p);
}
void recurrent_gates_backward(const RecurrentGatesBackwardParams& p, const Execution& on) {
  if (p.forward.rows == 0) return;
  launch("the backward of decays", gates_backward_kernel,
         {blocks_of(p.forward.rows * p.forward.heads * kWarp), kThreads, 0}, on, p);
}
void recurrent_keys_backward(const RecurrentKeysBackwardParams& p, const Execution& on) {
  if (p.rows == 0) return;
  launch("the backward of recurrent keys", keys_backward_kernel,
         {blocks_of(p.rows * p.heads * kWarp), kThreads, 0}, on, p);
}
void row_sums(const RowSumsParams& p, const Execution& on) {
  launch("sums over rows", row_sums_kernel, chains(p.count, kNarrowColumns), on, p);
}
void output_gate_backward(const OutputGateBackwardParams& p, const Execution& on) {
  if (p.rows == 0) return;
  launch("an output gate's backward", output_gate_backward_kernel,
         {blocks_of(p.rows * p.width), kThreads, 0}, on, p);
}

}  // namespace invar::cuda
