// Operations around recurrences, row by row: short convolutions, decays, keys, gated norms
// (numerics 4.4).
#include <cmath>
#include <cstring>
#include <vector>

#include "kernels/recurrent.h"
#include "kernels/reference/reference.h"
#include "numerics/curves.h"

namespace invar::reference {

namespace {

// Element i of an array of bf16 or f32 that holds finite numbers.
void keep(void* of, DType type, int64_t i, float x) {
  if (type == DType::f32)
    static_cast<float*>(of)[i] = f32_to_cached_f32(x);
  else
    static_cast<bf16_t*>(of)[i] = f32_to_cached_bf16(x);
}
void round_to(void* of, DType type, int64_t i, float x) {
  if (type == DType::f32)
    static_cast<float*>(of)[i] = x;
  else
    static_cast<bf16_t*>(of)[i] = f32_to_bf16(x);
}
float element(const void* of, DType type, int64_t i) {
  return type == DType::f32 ? static_cast<const float*>(of)[i]
                            : bf16_to_f32(static_cast<const bf16_t*>(of)[i]);
}

void keep_input(const ShortConvParams& p, int64_t t, int64_t c) {
  float x = p.x[t * p.x_stride + c];
  if (p.factor) x = x * p.factor[t * p.factor_stride + c];
  if (!std::isfinite(x)) mark(p.non_finite[t]);
  for (int w = p.places.write_begin[t]; w < p.places.write_begin[t + 1]; ++w)
    keep(p.inputs.at<void>(p.places.write_cell[w]), p.type, p.places.slot(t) * p.channels + c, x);
}

float convolved(const ShortConvParams& p, int64_t t, int64_t c) {
  float y = 0.0f;
  for (int j = 0; j < p.taps; ++j) {
    const char* inputs = p.inputs_of(t, p.places.positions[t] - (p.taps - 1 - j));
    const float x = inputs ? element(inputs, p.type, c) : 0.0f;
    y = __builtin_fmaf(p.weight[j * p.channels + c], x, y);
  }
  if (p.bias) y = y + p.bias[c];
  if (p.silu) y = math::silu(y);
  return p.gate ? y * p.gate[t * p.gate_stride + c] : y;
}

void leave_inputs(const ShortConvParams& p, int64_t t, int64_t c) {
  const int64_t bytes = size_of(p.type), first = p.places.positions[t] - (p.taps - 2);
  for (int64_t i = 0; i < p.taps - 1; ++i)
    std::memcpy(p.before.at<char>(p.next_state[t]) + (i * p.channels + c) * bytes,
                p.inputs_of(t, first + i) + c * bytes, static_cast<size_t>(bytes));
}

float logistic(float x) {
  return 1.0f / (1.0f + math::exp(-x));
}

// Computes one head of queries or keys.
void prepare(const RecurrentKeysParams& p, const float* x, float scale, float* y) {
  const int64_t size = p.layer.key_size;
  const float sum = orders::sum64_squares({x, static_cast<size_t>(size)});
  const float rs = 1.0f / math::sqrt(sum + p.eps);
  for (int64_t d = 0; d < size; ++d) y[d] = p.normalises ? (x[d] * rs) * scale : x[d];
}

void place_head(const RecurrentKeysParams& p, int64_t t, int64_t head) {
  const RecurrentLayer& layer = p.layer;
  const int64_t size = layer.key_size, at = (t * layer.key_heads + head) * layer.padded_key();
  float q[kMostStateSize] = {}, k[kMostStateSize] = {};
  prepare(p, p.queries + t * p.stride + head * size, p.scale, q);
  prepare(p, p.keys + t * p.stride + head * size, 1.0f, k);
  for (int64_t d = 0; d < layer.padded_key(); ++d) {
    if (!std::isfinite(k[d])) mark(p.non_finite[t]);
    round_to(p.q, layer.type, at + d, q[d]);
    keep(p.k, layer.type, at + d, k[d]);
    if (d >= size) continue;
    for (int w = p.places.write_begin[t]; w < p.places.write_begin[t + 1]; ++w)
      keep(layer.keys.at<void>(p.places.write_cell[w]), layer.type,
           head * layer.key_elements() + layer.key_index(p.places.slot(t), d), k[d]);
  }
}

void gated_group(const GatedNormParams& p, int64_t t, int64_t group, float* y) {
  const float* x = p.x + t * p.x_stride + group * p.width;
  const float* z = p.gate ? p.gate + t * p.gate_stride + group * p.width : nullptr;
  const auto gate = [&](int64_t i) { return p.is_sigmoid ? logistic(z[i]) : math::silu(z[i]); };
  for (int64_t i = 0; i < p.width; ++i) y[i] = z && p.gate_first ? x[i] * gate(i) : x[i];
  if (p.weight) {
    const float* weight = p.weight + (p.own_weights ? group * p.width : 0);
    const float sum = orders::sum64_squares({y, static_cast<size_t>(p.width)});
    const float rs = 1.0f / math::sqrt(sum / static_cast<float>(p.width) + p.eps);
    for (int64_t i = 0; i < p.width; ++i) y[i] = (y[i] * rs) * weight[i];
  }
  for (int64_t i = 0; i < p.width && z && !p.gate_first; ++i) y[i] = y[i] * gate(i);
}

}  // namespace

void copy_cells(const CopyCellsParams& p, const Execution& on) {
  const auto [begin, end] = on.share.of(p.cells.bytes, 64);
  for (int64_t i = 0; i < p.num_copies && begin < end; ++i)
    std::memcpy(p.cells.at<char>(p.copies[i].to) + begin,
                p.cells.at<char>(p.copies[i].from) + begin, static_cast<size_t>(end - begin));
}

void short_conv(const ShortConvParams& p, const Execution& on) {
  const auto [begin, end] = on.share.of(p.channels, kPanelWidth);
  for (int64_t t = 0; t < p.places.rows; ++t)
    for (int64_t c = begin; c < end; ++c) keep_input(p, t, c);
  for (int64_t t = 0; t < p.places.rows; ++t) {
    const int64_t row = t * p.out.stride;
    for (int64_t c = begin; c < end; ++c)
      round_to(p.out.data, p.out.type, row + c, convolved(p, t, c));
    for (int64_t c = p.channels; end == p.channels && c < round_up(p.channels, kLeafPad); ++c)
      round_to(p.out.data, p.out.type, row + c, 0.0f);
  }
  for (int64_t t = 0; t < p.places.rows; ++t)
    for (int64_t c = begin; c < end && p.leaves_inputs(t); ++c) leave_inputs(p, t, c);
}

void recurrent_gates(const RecurrentGatesParams& p, const Execution& on) {
  const auto [begin, end] = on.share.of(p.rows);
  for (int64_t t = begin; t < end; ++t)
    for (int64_t h = 0; h < p.heads; ++h) {
      float& factor = p.factors[t * p.heads + h];
      if (p.kind != Recurrence::state_space) {
        factor = logistic(p.z[t * p.z_stride + h]);
        if (p.doubles) factor = factor + factor;
      }
      for (int64_t i = h * p.channels; i < (h + 1) * p.channels; ++i) {
        float step = math::softplus(p.a[t * p.a_stride + i] + p.bias[i]);
        if (p.kind == Recurrence::state_space) {
          step = step < p.least ? p.least : step > p.most ? p.most : step;
          factor = step;
        }
        p.decays[t * p.heads * p.channels + i] = step * -math::exp(p.log_rate[h]);
      }
    }
}

void recurrent_keys(const RecurrentKeysParams& p, const Execution& on) {
  const auto [begin, end] = on.share.of(p.places.rows);
  for (int64_t t = begin; t < end; ++t)
    for (int64_t head = 0; head < p.layer.key_heads; ++head) place_head(p, t, head);
}

void gated_norm(const GatedNormParams& p, const Execution& on) {
  const auto [begin, end] = on.share.of(p.rows);
  const int64_t width = p.groups * p.width;
  std::vector<float> y(p.width);
  for (int64_t t = begin; t < end; ++t) {
    for (int64_t group = 0; group < p.groups; ++group) {
      gated_group(p, t, group, y.data());
      for (int64_t i = 0; i < p.width; ++i)
        round_to(p.out.data, p.out.type, t * p.out.stride + group * p.width + i, y[i]);
    }
    for (int64_t i = width; i < round_up(width, kLeafPad); ++i)
      round_to(p.out.data, p.out.type, t * p.out.stride + i, 0.0f);
  }
}

}  // namespace invar::reference
