// The loops of what stands around recurrences: short convolutions, decays, keys, gated norms.
#include <cstring>
#include <limits>
#include <vector>

#include "kernels/cpu/recurrent.h"
#include "numerics/math.h"

namespace invar::cpu {

namespace {

template <typename T>
T* element(void* of, DType type, int64_t i) {
  return reinterpret_cast<T*>(static_cast<char*>(of) + i * size_of(type));
}
void* element(void* of, DType type, int64_t i) {
  return element<char>(of, type, i);
}

// Keeps the inputs of the channels [begin, end).
void keep_inputs(const RecurrentFunctions& rows, const ShortConvParams& p, int64_t begin,
                 int64_t end) {
  const RowPlaces& places = p.places;
  for (int64_t t = 0; t < places.rows; ++t) {
    const int64_t at = places.slot(t) * p.channels + begin;
    const auto cell = [&](int w) {
      return element(p.inputs.at<void>(places.write_cell[w]), p.type, at);
    };
    const int first = places.write_begin[t], last = places.write_begin[t + 1];
    if (!rows.keep(p.x + t * p.x_stride + begin,
                   p.factor ? p.factor + t * p.factor_stride + begin : nullptr, end - begin,
                   cell(first), p.type == DType::bf16))
      mark(p.non_finite[t]);
    for (int w = first + 1; w < last; ++w)
      std::memcpy(cell(w), cell(first), (end - begin) * size_of(p.type));
  }
}

void convolve_row(const RecurrentFunctions& rows, const ShortConvParams& p, int64_t t,
                  int64_t begin, int64_t end) {
  ConvRow row{.inputs = {},
              .weight = p.weight + begin,
              .weight_stride = p.channels,
              .bias = p.bias ? p.bias + begin : nullptr,
              .gate = p.gate ? p.gate + t * p.gate_stride + begin : nullptr,
              .taps = p.taps,
              .silu = p.silu,
              .is_bf16 = p.type == DType::bf16,
              .out_is_bf16 = p.out.type == DType::bf16,
              .out = element(p.out.data, p.out.type, t * p.out.stride + begin)};
  for (int j = 0; j < p.taps; ++j)
    if (char* inputs = p.inputs_of(t, p.places.positions[t] - (p.taps - 1 - j)))
      row.inputs[j] = element(inputs, p.type, begin);
  rows.convolve(row, end - begin);
  if (end == p.channels)
    std::memset(element(p.out.data, p.out.type, t * p.out.stride + end), 0,
                (round_up(end, kLeafPad) - end) * size_of(p.out.type));
}

void leave_inputs(const ShortConvParams& p, int64_t t, int64_t begin, int64_t end) {
  const int64_t first = p.places.positions[t] - (p.taps - 2);
  for (int64_t i = 0; i < p.taps - 1; ++i)
    std::memcpy(element(p.before.at<void>(p.next_state[t]), p.type, i * p.channels + begin),
                element(p.inputs_of(t, first + i), p.type, begin),
                static_cast<size_t>((end - begin) * size_of(p.type)));
}

// A key's elements, in the layout that products read.
void place_key(const RecurrentLayer& layer, const void* key, int slot, void* keys) {
  if (layer.is_f32()) {
    float* to = static_cast<float*>(keys) + layer.key_index(slot, 0);
    for (int64_t d = 0; d < layer.key_size; ++d) to[d * 16] = static_cast<const float*>(key)[d];
    return;
  }
  bf16_t* to = static_cast<bf16_t*>(keys) + layer.key_index(slot, 0);
  for (int64_t d = 0; d < layer.key_size; d += 2)  // beyond an odd size there is a zero
    std::memcpy(to + 16 * d, static_cast<const bf16_t*>(key) + d, 4);
}

void place_head(const RecurrentFunctions& rows, const RecurrentKeysParams& p, int64_t t,
                int64_t h) {
  const RecurrentLayer& layer = p.layer;
  const int64_t at = (t * layer.key_heads + h) * layer.padded_key();
  KeyHead head{.x = p.queries + t * p.stride + h * layer.key_size,
               .size = layer.key_size,
               .padded = layer.padded_key(),
               .normalises = p.normalises,
               .keeps = false,
               .is_bf16 = !layer.is_f32(),
               .eps = p.eps,
               .scale = p.scale,
               .out = element(p.q, layer.type, at)};
  rows.key_head(head);
  head.x = p.keys + t * p.stride + h * layer.key_size;
  head.keeps = true;
  head.scale = 1.0f;
  head.out = element(p.k, layer.type, at);
  if (!rows.key_head(head)) mark(p.non_finite[t]);
  for (int w = p.places.write_begin[t]; w < p.places.write_begin[t + 1]; ++w)
    place_key(
        layer, head.out, p.places.slot(t),
        element(layer.keys.at<void>(p.places.write_cell[w]), layer.type, h * layer.key_elements()));
}

}  // namespace

void short_conv(const RecurrentFunctions& rows, const ShortConvParams& p, const Execution& on) {
  const auto [begin, end] = on.share.of(p.channels, 32);  // whole cache lines
  if (begin == end) return;
  keep_inputs(rows, p, begin, end);
  for (int64_t t = 0; t < p.places.rows; ++t) convolve_row(rows, p, t, begin, end);
  for (int64_t t = 0; t < p.places.rows; ++t)
    if (p.leaves_inputs(t)) leave_inputs(p, t, begin, end);
}

void recurrent_gates(const RecurrentFunctions& rows, const RecurrentGatesParams& p,
                     const Execution& on) {
  const bool is_space = p.kind == Recurrence::state_space;
  const float infinity = std::numeric_limits<float>::infinity();
  const int64_t width = p.heads * p.channels;
  const auto [begin, end] = on.share.of(p.rows);
  if (begin == end) return;
  std::vector<float> rates(static_cast<size_t>(p.heads));
  for (int64_t h = 0; h < p.heads; ++h) rates[static_cast<size_t>(h)] = -math::exp(p.log_rate[h]);
  for (int64_t t = begin; t < end; ++t) {
    float *g = p.decays + t * width, *b = p.factors + t * p.heads;
    float* steps = is_space ? b : g;
    rows.steps(p.a + t * p.a_stride, p.bias, width, is_space ? p.least : -infinity,
               is_space ? p.most : infinity, steps);
    if (p.channels == 1)
      rows.multiply(steps, rates.data(), width, g);
    else
      for (int64_t i = 0; i < width; ++i) g[i] = g[i] * rates[static_cast<size_t>(i / p.channels)];
    if (!is_space) rows.logistic(p.z + t * p.z_stride, p.heads, p.doubles, b);
  }
}

void recurrent_keys(const RecurrentFunctions& rows, const RecurrentKeysParams& p,
                    const Execution& on) {
  const auto [begin, end] = on.share.of(p.places.rows * p.layer.key_heads);
  for (int64_t i = begin; i < end; ++i)
    place_head(rows, p, i / p.layer.key_heads, i % p.layer.key_heads);
}

void gated_norm(const RecurrentFunctions& rows, const GatedNormParams& p, const Execution& on) {
  const int64_t all = p.groups * p.width;
  const auto [begin, end] = on.share.of(p.rows);
  for (int64_t t = begin; t < end; ++t) {
    for (int64_t group = 0; group < p.groups; ++group) {
      const int64_t at = group * p.width;
      rows.gated_norm({.x = p.x + t * p.x_stride + at,
                       .gate = p.gate ? p.gate + t * p.gate_stride + at : nullptr,
                       .weight = p.weight ? p.weight + (p.own_weights ? at : 0) : nullptr,
                       .is_sigmoid = p.is_sigmoid,
                       .gate_first = p.gate_first,
                       .is_bf16 = p.out.type == DType::bf16,
                       .eps = p.eps,
                       .width = p.width,
                       .out = element(p.out.data, p.out.type, t * p.out.stride + at)});
    }
    std::memset(element(p.out.data, p.out.type, t * p.out.stride + all), 0,
                (round_up(all, kLeafPad) - all) * size_of(p.out.type));
  }
}

}  // namespace invar::cpu
