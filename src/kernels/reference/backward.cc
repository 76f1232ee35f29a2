// The backward of everything but attention, the loss and the optimizer: numerics 9.
#include <algorithm>
#include <vector>

#include "base/check.h"
#include "kernels/reference/norm_rows.h"
#include "kernels/reference/reference.h"
#include "numerics/math.h"

namespace invar::reference {

namespace {

constexpr int64_t kLeaf = 32;
constexpr float kOnes[kLeaf] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1,
                                1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};

const bf16_t* row_of(const Activation& x, int64_t row) {
  return static_cast<const bf16_t*>(x.data) + row * x.stride;
}

// Stores one element of a bf16 row and returns the row for clearing its pad columns.
void clear_pad(const Activation& out, int64_t row, int64_t width) {
  bf16_t* y = static_cast<bf16_t*>(out.data) + row * out.stride;
  std::fill(y + width, y + round_up(width, kLeafPad), bf16_t{0});
}

// The slope of a curve; gelu's is Phi(x) + x * phi(x).
float slope(Nonlinearity curve, float x) {
  if (curve == Nonlinearity::relu_squared) return x < 0.0f ? 0.0f : x + x;
  if (curve == Nonlinearity::gelu) {
    const float s = (x < 0.0f ? -x : x) * math::constants::kSqrtHalf;
    const float density = math::exp(-(s * s)) * (math::constants::kGeluLinear * 0.25f);
    const float t = 1.0f / __builtin_fmaf(math::constants::kErfcStep, s, 1.0f);
    float p = math::constants::kErfc[0];
    for (int i = 1; i < 5; ++i) p = __builtin_fmaf(p, t, math::constants::kErfc[i]);
    const float tail = ((p * t) * math::exp(-(s * s))) * 0.5f;
    return __builtin_fmaf(x, density, x < 0.0f ? tail : 1.0f - tail);
  }
  const bool is_gelu = curve == Nonlinearity::gelu_tanh;
  const float z = is_gelu ? math::gelu_exponent(x) : x;
  const float step = is_gelu ? x * math::gelu_exponent_slope(x) : x;
  const float s = 1.0f / (1.0f + math::exp(-z));
  return s * __builtin_fmaf(step, 1.0f - s, 1.0f);
}

}  // namespace

void transpose(const TransposeParams& p, const Execution& on) {
  const auto [begin, end] = on.share.of(p.columns.count, kPanelWidth);
  for (int64_t i = begin; i < end; ++i) {
    bf16_t* out = static_cast<bf16_t*>(p.out.data) + i * p.out.stride;
    for (int64_t t = 0; t < p.rows; ++t) out[t] = row_of(p.x, t)[p.columns.at(i)];
    clear_pad(p.out, i, p.rows);
  }
}

void pack_columns(const PackColumnsParams& p, const Execution& on) {
  CHECK(p.layout == WeightLayout::panels, "columns are packed into panels on a CPU");
  const auto [begin, end] = on.share.of(p.width, kPanelWidth);
  for (int64_t n = begin; n < end; ++n)
    for (int64_t t = 0; t < p.rows; ++t)
      p.out[packed_index_bf16(n, p.inner.at(t), p.inner_size)] = p.x[t * p.x_stride + n];
}

void bias_gradient(const BiasGradientParams& p, const Execution& on) {
  const auto [begin, end] = on.share.of(p.columns.count, kPanelWidth);
  for (int64_t i = begin; i < end; ++i) {
    float acc = p.gradient[i];
    for (int64_t t = 0; t < p.rows; t += kLeaf) {
      float dy[kLeaf];
      for (int64_t j = 0; j < kLeaf; ++j) dy[j] = bf16_to_f32(row_of(p.dy, t + j)[p.columns.at(i)]);
      acc = acc + orders::portable_leaf(kOnes, dy);
    }
    p.gradient[i] = acc + 0.0f;
  }
}

void norm_backward(const NormBackwardParams& p, const Execution& on) {
  const auto [begin, end] = on.share.of(p.rows);
  for (int64_t t = begin; t < end; ++t) {
    const float* x = p.x + t * p.width;
    float* dx = p.dx + t * p.width;
    p.rs[t] = inverse_rms(x, p.width, p.eps);
    norm_backward_row(p.dy + t * p.width, x, p.weight, p.width, p.rs[t],
                      [&](int64_t i, float d) { dx[i] = dx[i] + d; });
  }
}

void norm_gradient(const NormGradientParams& p, const Execution& on) {
  const auto [begin, end] = on.share.of(p.width, kPanelWidth);
  for (int64_t i = begin; i < end; ++i) {
    float acc = p.gradient[i];
    for (int64_t t = 0; t < p.rows; t += kLeaf)
      for (int64_t h = 0; h < p.heads; ++h) {
        float dy[kLeaf], normed[kLeaf];
        for (int64_t j = 0; j < kLeaf; ++j) {
          dy[j] = p.dy[(t + j) * p.dy_stride + h * p.width + i];
          normed[j] = p.x[(t + j) * p.x_stride + h * p.width + i] * p.rs[(t + j) * p.rs_stride + h];
        }
        acc = acc + orders::portable_leaf(dy, normed);
      }
    p.gradient[i] = acc + 0.0f;
  }
}

void layer_norm_backward(const LayerNormBackwardParams& layer, const Execution& on) {
  const NormBackwardParams& p = layer.norm;
  const auto [begin, end] = on.share.of(p.rows);
  const float width = static_cast<float>(p.width);
  std::vector<float> n(static_cast<size_t>(p.width)), d(n.size());
  for (int64_t t = begin; t < end; ++t) {
    const float *x = p.x + t * p.width, *dy = p.dy + t * p.width;
    const float mean = layer.mean[t] = orders::sum64({x, n.size()}) / width;
    for (int64_t i = 0; i < p.width; ++i) n[i] = x[i] - mean;
    const float rs = p.rs[t] = 1.0f / math::sqrt(orders::sum64_squares(n) / width + p.eps);
    for (int64_t i = 0; i < p.width; ++i) n[i] = n[i] * rs, d[i] = dy[i] * p.weight[i];
    const float first = orders::sum64(d) / width;
    const float second = dot64(d.data(), n.data(), p.width) / width;
    float* dx = p.dx + t * p.width;
    for (int64_t i = 0; i < p.width; ++i)
      dx[i] = dx[i] + __builtin_fmaf(-n[i], second, d[i] - first) * rs;
  }
}

void layer_norm_gradient(const LayerNormGradientParams& layer, const Execution& on) {
  const NormGradientParams& p = layer.norm;
  const auto [begin, end] = on.share.of(p.width, kPanelWidth);
  for (int64_t i = begin; i < end; ++i) {
    float weight = p.gradient[i], bias = layer.bias_gradient[i];
    for (int64_t t = 0; t < p.rows; t += kLeaf) {
      float dy[kLeaf], normed[kLeaf];
      for (int64_t j = 0; j < kLeaf; ++j) {
        dy[j] = p.dy[(t + j) * p.dy_stride + i];
        normed[j] = (p.x[(t + j) * p.x_stride + i] - layer.mean[t + j]) * p.rs[t + j];
      }
      weight = weight + orders::portable_leaf(dy, normed);
      bias = bias + orders::portable_leaf(kOnes, dy);
    }
    p.gradient[i] = weight + 0.0f;
    layer.bias_gradient[i] = bias + 0.0f;
  }
}

void curve_backward(const CurveBackwardParams& p, const Execution& on) {
  const auto [begin, end] = on.share.of(p.rows);
  for (int64_t t = begin; t < end; ++t) {
    bf16_t* out = static_cast<bf16_t*>(p.out.data) + t * p.out.stride;
    for (int64_t f = 0; f < p.width; ++f)
      out[f] = f32_to_bf16(p.dy[t * p.width + f] * slope(p.curve, p.x[t * p.width + f]));
    clear_pad(p.out, t, p.width);
  }
}

void gate_backward(const GateBackwardParams& p, const Execution& on) {
  const auto [begin, end] = on.share.of(p.rows);
  const int64_t width = 2 * round_up(p.width, kPanelWidth);
  for (int64_t t = begin; t < end; ++t) {
    bf16_t* out = static_cast<bf16_t*>(p.out.data) + t * p.out.stride;
    std::fill(out, out + round_up(width, kLeafPad), bf16_t{0});
    for (int64_t f = 0; f < p.width; ++f) {
      const int64_t gate = paired_column(f, 0), up = paired_column(f, 1);
      float g = p.gate_up[t * width + gate], u = p.gate_up[t * width + up];
      if (p.gate_bias) g = g + p.gate_bias[f];
      if (p.up_bias) u = u + p.up_bias[f];
      const float d = p.d_gated[t * p.width + f];
      const bool is_gelu = p.curve == Nonlinearity::gelu_tanh;
      const float z = is_gelu ? math::gelu_exponent(g) : g;
      const float step = is_gelu ? g * math::gelu_exponent_slope(g) : g;
      const float below = 1.0f + math::exp(-z), s = 1.0f / below;
      out[gate] = f32_to_bf16((d * u) * (s * __builtin_fmaf(step, 1.0f - s, 1.0f)));
      out[up] = f32_to_bf16(d * (g / below));
    }
  }
}

void qkv_backward(const QkvBackwardParams& p, const Execution& on) {
  const auto [begin, end] = on.share.of(p.rows);
  const int e = p.head_dim, half = e / 2, rotated = p.heads + p.kv_heads;
  const int64_t width = int64_t{p.heads + 2 * p.kv_heads} * e;
  for (int64_t t = begin; t < end; ++t) {
    bf16_t* out = static_cast<bf16_t*>(p.out.data) + t * p.out.stride;
    float* d = p.d_qkv + t * p.d_qkv_stride;
    const float* c = p.cos + int64_t{p.positions[t]} * half;
    const float* s = p.sin + int64_t{p.positions[t]} * half;
    for (int64_t h = 0; h < rotated; ++h)
      for (int64_t i = h * e; i < h * e + half; ++i) {
        const int64_t pair = i - h * e;
        const float a = d[i], b = d[i + half];
        d[i] = __builtin_fmaf(a, c[pair], b * s[pair]);
        d[i + half] = __builtin_fmaf(b, c[pair], -(a * s[pair]));
      }
    // From the norm's output to its input, of so many heads as one vector.
    const auto part = [&](int64_t first, int64_t heads, const float* norm, float* rs) {
      const int64_t from = first * e, count = heads * e;
      const float* x = p.qkv + t * p.qkv_stride + from;
      *rs = inverse_rms(x, count, p.norm_eps);
      norm_backward_row(d + from, x, norm, count, *rs,
                        [&](int64_t i, float dx) { out[from + i] = f32_to_bf16(dx); });
    };
    for (int64_t i = 0; i < width; ++i) out[i] = f32_to_bf16(d[i]);
    if (p.q_norm && p.is_joint) {
      part(0, p.heads, p.q_norm, p.rs + 2 * t);
      part(p.heads, p.kv_heads, p.k_norm, p.rs + 2 * t + 1);
    }
    for (int64_t h = 0; h < rotated && p.q_norm && !p.is_joint; ++h)
      part(h, 1, h < p.heads ? p.q_norm : p.k_norm, p.rs + t * rotated + h);
    clear_pad(p.out, t, width);
  }
}

void embed_gradient(const EmbedGradientParams& p, const Execution& on) {
  const auto [begin, end] = on.share.of(p.width, kPanelWidth);
  for (int64_t t = 0; t < p.rows; ++t) {
    float* gradient = p.gradient + int64_t{p.tokens[t]} * p.width;
    for (int64_t d = begin; d < end; ++d)
      gradient[d] = gradient[d] + p.dx[t * p.width + d] * p.scale;
  }
}

void loss(const LossParams& p, const Execution& on) {
  const auto [begin, end] = on.share.of(p.rows);
  for (int64_t t = begin; t < end; ++t) {
    bf16_t* out = static_cast<bf16_t*>(p.out.data) + t * p.out.stride;
    clear_pad(p.out, t, p.vocab);
    const float weight = p.weights[t];
    if (weight == 0.0f) {
      std::fill(out, out + p.vocab, bf16_t{0});
      continue;
    }
    const auto probability = [&](const float* logits, const float* max, const float* log_sum,
                                 int64_t v) {
      return math::exp((logits[t * p.stride + v] - max[t]) - log_sum[t]);
    };
    for (int64_t v = 0; v < p.vocab; ++v) {
      float wanted = v == p.targets[t] ? 1.0f : 0.0f;
      if (p.teacher)
        wanted = __builtin_fmaf(p.teacher_share,
                                probability(p.teacher, p.teacher_max, p.teacher_log_sum, v),
                                (1.0f - p.teacher_share) * wanted);
      out[v] = f32_to_bf16(weight * (probability(p.logits, p.max, p.log_sum, v) - wanted));
    }
  }
}

void squares(const SquaresParams& p, const Execution& on) {
  const auto [begin, end] = on.share.of(p.count);
  for (int64_t i = begin; i < end; ++i) p.sums[i] = dot64(p.tensors[i], p.tensors[i], p.counts[i]);
}

void adam(const AdamParams& p, const Execution& on) {
  const auto [begin, end] = on.share.of(p.count, kPanelWidth);
  const float rest1 = 1.0f - p.beta1, rest2 = 1.0f - p.beta2;
  for (int64_t i = begin; i < end; ++i) {
    const float g = p.gradient[i] * p.gradient_scale;
    p.first[i] = __builtin_fmaf(p.beta1, p.first[i], rest1 * g);
    p.second[i] = __builtin_fmaf(p.beta2, p.second[i], (rest2 * g) * g);
    const float step =
        (p.first[i] * p.first_scale) / (math::sqrt(p.second[i] * p.second_scale) + p.eps);
    const float w = p.master[i];
    p.master[i] = __builtin_fmaf(-p.rate, __builtin_fmaf(p.decay, w, step), w);
    p.weights[i] = f32_to_bf16(p.master[i]);
  }
}

void add_gradient(const AddGradientParams& p, const Execution& on) {
  const auto [begin, end] = on.share.of(p.count, kPanelWidth);
  for (int64_t i = begin; i < end; ++i) p.y[i] = p.y[i] + p.x[i];
}

void pick(const PickParams& p, const Execution& on) {
  const auto [begin, end] = on.share.of(p.rows);
  for (int64_t t = begin; t < end; ++t) p.out[t] = p.x[t * p.stride + p.columns[t]];
}

TrainingKernels training_table(Order order) {
  CHECK(order != Order::pair, "nothing is trained in the order pair");
  const bool portable = order == Order::portable;
  return {.name = "scalar",
          .order = order,
          .gated_matmul =
              portable ? kept_gated_matmul<Order::portable> : kept_gated_matmul<Order::hopper>,
          .extend_matmul = portable ? extend_matmul<Order::portable> : extend_matmul<Order::hopper>,
          .round = round,
          .transpose = transpose,
          .pack_columns = pack_columns,
          .bias_gradient = bias_gradient,
          .norm_backward = norm_backward,
          .norm_gradient = norm_gradient,
          .gate_backward = gate_backward,
          .attention_backward =
              portable ? attention_backward<Order::portable> : attention_backward<Order::hopper>,
          .attention_scratch = [](int64_t, int64_t) { return int64_t{0}; },
          .qkv_backward = qkv_backward,
          .embed_gradient = embed_gradient,
          .loss = loss,
          .squares = squares,
          .adam = adam,
          .add_gradient = add_gradient,
          .pick = pick,
          .layer_norm_backward = layer_norm_backward,
          .layer_norm_gradient = layer_norm_gradient,
          .curve_backward = curve_backward,
          .pair_gradients = pair_gradients,
          .sum_pairs = sum_pairs,
          .router_backward = router_backward,
          .gather_leaves = gather_leaves,
          .shared_gradients = shared_gradients,
          .short_conv_backward = short_conv_backward,
          .gated_norm_backward = gated_norm_backward,
          .recurrent_gates_backward = recurrent_gates_backward,
          .recurrent_keys_backward = recurrent_keys_backward,
          .recurrence_backward = recurrence_backward,
          .recurrence_scratch = recurrence_backward_scratch,
          .row_sums = row_sums,
          .output_gate_backward = output_gate_backward};
}

}  // namespace invar::reference
