// The backward of what stands around recurrences: short convolutions, decays, keys, gated norms
// (numerics 9). Every set computes it so.
#include <vector>

#include "kernels/recurrent_backward.h"
#include "kernels/reference/norm_rows.h"
#include "kernels/reference/reference.h"
#include "numerics/curves.h"

namespace invar::reference {

namespace {

constexpr int64_t kLeaf = 32;
constexpr float kOnes[kLeaf] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1,
                                1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};

float silu_slope(float x) {
  const float s = 1.0f / (1.0f + math::exp(-x));
  return s * __builtin_fmaf(x, 1.0f - s, 1.0f);
}

// The number that the forward kept of the row so many rows before this one; +0 before position 0.
float kept_input(const ShortConvBackwardParams& p, int64_t t, int back, int64_t c) {
  if (p.positions[t] < back) return 0.0f;
  float x = p.x[(t - back) * p.x_stride + c];
  if (p.factor) x = x * p.factor[(t - back) * p.factor_stride + c];
  return bf16_to_f32(f32_to_cached_bf16(x));
}

float sum_of_taps(const ShortConvBackwardParams& p, int64_t t, int64_t c) {
  float y = 0.0f;
  for (int m = 0; m < p.taps; ++m)
    y = __builtin_fmaf(p.weight[m * p.weight_stride + c], kept_input(p, t, p.taps - 1 - m, c), y);
  return p.bias ? y + p.bias[c] : y;
}

// From the output's gradient to that of the sum.
void leave_gradient_of_sum(const ShortConvBackwardParams& p, int64_t t, int64_t c) {
  float d = p.d_out[t * p.d_out_stride + c];
  const float sum = p.silu || p.gate ? sum_of_taps(p, t, c) : 0.0f;
  if (p.gate) {
    p.d_gate[t * p.dx_stride + c] = d * (p.silu ? math::silu(sum) : sum);
    d = d * p.gate[t * p.gate_stride + c];
  }
  p.d_sum[t * p.d_sum_stride + c] = p.silu ? d * silu_slope(sum) : d;
}

// An input counts in its own row and in the next taps - 1 of its sequence, in this order.
void leave_gradient_of_input(const ShortConvBackwardParams& p, int64_t t, int64_t c) {
  float d = 0.0f;
  for (int ahead = 0; ahead < p.taps; ++ahead) {
    if (t + ahead >= p.rows || p.positions[t + ahead] < ahead) break;
    d = __builtin_fmaf(p.weight[(p.taps - 1 - ahead) * p.weight_stride + c],
                       p.d_sum[(t + ahead) * p.d_sum_stride + c], d);
  }
  const float x = p.x[t * p.x_stride + c];
  p.dx[t * p.dx_stride + c] = p.factor ? d * p.factor[t * p.factor_stride + c] : d;
  if (p.factor) p.d_factor[t * p.dx_stride + c] = d * x;
}

// Sums over rows, each a chain over leaves.
void add_gradients_of_weights(const ShortConvBackwardParams& p, int64_t c) {
  for (int64_t t = 0; t < p.rows; t += kLeaf) {
    float d[kLeaf], x[kLeaf];
    for (int64_t j = 0; j < kLeaf; ++j) d[j] = p.d_sum[(t + j) * p.d_sum_stride + c];
    for (int m = 0; m < p.taps; ++m) {
      for (int64_t j = 0; j < kLeaf; ++j) x[j] = kept_input(p, t + j, p.taps - 1 - m, c);
      float& sum = p.d_weight[m * p.d_weight_stride + c];
      sum = sum + orders::portable_leaf(d, x);
    }
    if (p.d_bias) p.d_bias[c] = p.d_bias[c] + orders::portable_leaf(kOnes, d);
  }
  for (int m = 0; m < p.taps; ++m) p.d_weight[m * p.d_weight_stride + c] += 0.0f;
  if (p.d_bias) p.d_bias[c] += 0.0f;
}

float logistic(float x) {
  return 1.0f / (1.0f + math::exp(-x));
}

// A gate's factor and its derivative.
struct Gate {
  float value, slope;
};
Gate gate_of(bool is_sigmoid, float z) {
  if (!is_sigmoid) return {math::silu(z), silu_slope(z)};
  const float s = logistic(z);
  return {s, s * (1.0f - s)};
}

// One group of a row. Its columns begin at `at` of the row's.
void gated_group_backward(const GatedNormBackwardParams& p, int64_t t, int64_t group,
                          std::vector<Gate>& gates) {
  const GatedNormParams& f = p.forward;
  const int64_t at = group * f.width, own = t * f.groups * f.width + at;
  const float *x = f.x + t * f.x_stride + at, *z = f.gate + t * f.gate_stride + at;
  const float *d_out = p.d_out + own, *weight = f.weight + (f.own_weights ? at : 0);
  float *dx = p.dx + own, *d_gate = p.d_gate + t * p.d_gate_stride + at;
  float *dn = p.d_normed + own, *normed = p.normed + own;
  for (int64_t i = 0; i < f.width; ++i) {
    gates[i] = gate_of(f.is_sigmoid, z[i]);
    normed[i] = f.gate_first ? x[i] * gates[i].value : x[i];
    dn[i] = f.gate_first ? d_out[i] : d_out[i] * gates[i].value;
  }
  const float rs = p.rs[t * f.groups + group] = inverse_rms(normed, f.width, f.eps);
  norm_backward_row(dn, normed, weight, f.width, rs, [&](int64_t i, float d) {
    const float before = f.gate_first ? d * x[i] : d_out[i] * ((x[i] * rs) * weight[i]);
    d_gate[i] = before * gates[i].slope;
    dx[i] = f.gate_first ? d * gates[i].value : d;
  });
}

}  // namespace

void gated_norm_backward(const GatedNormBackwardParams& p, const Execution& on) {
  const auto [begin, end] = on.share.of(p.forward.rows);
  std::vector<Gate> gates(static_cast<size_t>(p.forward.width));
  for (int64_t t = begin; t < end; ++t)
    for (int64_t group = 0; group < p.forward.groups; ++group)
      gated_group_backward(p, t, group, gates);
}

void recurrent_gates_backward(const RecurrentGatesBackwardParams& p, const Execution& on) {
  const RecurrentGatesParams& f = p.forward;
  const auto [begin, end] = on.share.of(f.rows);
  for (int64_t t = begin; t < end; ++t)
    for (int64_t h = 0; h < f.heads; ++h) {
      const float rate = -math::exp(f.log_rate[h]);
      float d_factor = p.d_factors[t * f.heads + h];
      if (p.dz) {
        if (f.doubles) d_factor = d_factor + d_factor;
        p.dz[t * p.dz_stride + h] = d_factor * gate_of(true, f.z[t * f.z_stride + h]).slope;
      }
      if (const int64_t at = (t * f.heads + h) * f.channels; p.d_rates)
        p.d_rates[t * f.heads + h] = dot64(p.d_decays + at, f.decays + at, f.channels);
      for (int64_t i = h * f.channels; i < (h + 1) * f.channels; ++i) {
        const float x = f.a[t * f.a_stride + i] + f.bias[i];
        float d = p.d_decays[t * f.heads * f.channels + i] * rate;
        if (f.kind == Recurrence::state_space) {
          const float step = math::softplus(x);
          d = step < f.least || step > f.most ? 0.0f : d_factor + d;
        }
        p.da[t * p.da_stride + i] = d * logistic(x);
      }
    }
}

void recurrent_keys_backward(const RecurrentKeysBackwardParams& p, const Execution& on) {
  const auto [begin, end] = on.share.of(p.rows);
  float n[kMostStateSize], d[kMostStateSize];
  for (int64_t t = begin; t < end; ++t)
    for (int64_t head = 0; head < p.heads; ++head) {
      const float* x = p.x + t * p.x_stride + head * p.key_size;
      float* dx = p.d + t * p.d_stride + head * p.key_size;
      const float sum = orders::sum64_squares({x, static_cast<size_t>(p.key_size)});
      const float rs = 1.0f / math::sqrt(sum + p.eps);
      for (int64_t i = 0; i < p.key_size; ++i) n[i] = x[i] * rs, d[i] = dx[i] * p.scale;
      const float along = dot64(d, n, p.key_size);
      for (int64_t i = 0; i < p.key_size; ++i) dx[i] = __builtin_fmaf(-n[i], along, d[i]) * rs;
    }
}

void row_sums(const RowSumsParams& p, const Execution& on) {
  const auto [begin, end] = on.share.of(p.count, kPanelWidth);
  for (int64_t i = begin; i < end; ++i) {
    float sum = p.gradient[i];
    for (int64_t t = 0; t < p.rows; t += kLeaf) {
      float x[kLeaf], y[kLeaf];
      for (int64_t j = 0; j < kLeaf; ++j) {
        x[j] = p.x[(t + j) * p.x_stride + i];
        y[j] = p.y ? p.y[(t + j) * p.y_stride + i] : 1.0f;
      }
      sum = sum + orders::portable_leaf(x, y);
    }
    p.gradient[i] = sum + 0.0f;
  }
}

void output_gate_backward(const OutputGateBackwardParams& p, const Execution& on) {
  const auto [begin, end] = on.share.of(p.rows);
  for (int64_t t = begin; t < end; ++t) {
    const bf16_t* x = static_cast<const bf16_t*>(p.x.data) + t * p.x.stride;
    for (int64_t i = 0; i < p.width; ++i) {
      const int64_t at = t * p.width + i;
      const Gate gate = gate_of(true, p.gate[at]);
      const float d = p.d[at];
      p.d_gate[at] = (d * bf16_to_f32(x[i])) * gate.slope;
      p.dx[at] = d * gate.value;
    }
  }
}

void short_conv_backward(const ShortConvBackwardParams& p, const Execution& on) {
  const auto [begin, end] = on.share.of(p.channels, kPanelWidth);
  for (int64_t t = 0; t < p.rows; ++t)
    for (int64_t c = begin; c < end; ++c) leave_gradient_of_sum(p, t, c);
  for (int64_t t = 0; t < p.rows; ++t)
    for (int64_t c = begin; c < end; ++c) leave_gradient_of_input(p, t, c);
  for (int64_t c = begin; p.d_weight && c < end; ++c) add_gradients_of_weights(p, c);
}

}  // namespace invar::reference
