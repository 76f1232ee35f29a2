// The end of a matrix product, when the chains and trees of its dots are done. Included after a
// vec16 header and vec16_math.h.
#pragma once

#include <cstdint>

#include "kernels/cpu/panel_product.h"

namespace invar::cpu {

namespace {

constexpr int64_t kLeaf = 32;  // elements
constexpr int64_t kLine = 64;  // bytes of a cache line

constexpr int64_t ceil_div(int64_t x, int64_t y) {
  return (x + y - 1) / y;
}
constexpr int64_t smaller(int64_t x, int64_t y) {
  return x < y ? x : y;
}
constexpr int64_t larger(int64_t x, int64_t y) {
  return x > y ? x : y;
}

// The values of y for a row and a panel.
inline Vec16 load_output(const PanelProduct& p, int64_t row, int64_t panel) {
  return load(p.y + row * p.y_stride + panel * 16, p.outputs - panel * 16);
}

// The dots of a row with one panel as what y is to hold.
inline Vec16 plain_output(const PanelProduct& p, int64_t row, int64_t panel, Vec16 dots) {
  Vec16 v = dots + splat(0.0f);
  if (p.bias) v = v + load(p.bias + panel * 16, p.outputs - panel * 16);
  return p.accumulate ? load_output(p, row, panel) + v : v;
}

inline void write_plain(const PanelProduct& p, int64_t row, int64_t panel, Vec16 dots) {
  store(p.y + row * p.y_stride + panel * 16, plain_output(p, row, panel, dots),
        p.outputs - panel * 16);
}

// silu(g) * u, gelu_tanh(g) * u, or clamped(g, u).
inline Vec16 gated(const PanelProduct& p, Vec16 g, Vec16 u) {
  if (p.is_clamped) return clamped(g, u);
  const Vec16 z = p.is_gelu ? gelu_exponent(g) : g;
  return (g / (splat(1.0f) + exp(negated(z)))) * u;
}

// The dots of a row with a gate panel and the up panel after it become 16 gated activations.
inline void write_gated(const PanelProduct& p, int64_t row, int64_t gate_panel, Vec16 gate,
                        Vec16 up) {
  const int64_t f = gate_panel / 2 * 16, left = p.outputs - f;
  Vec16 g = gate + splat(0.0f), u = up + splat(0.0f);
  if (p.dots) {
    float* dots = p.dots + row * p.dots_stride + gate_panel * 16;
    store(dots, g);
    store(dots + 16, u);
  }
  if (p.gate_bias) g = g + load(p.gate_bias + f, left);
  if (p.up_bias) u = u + load(p.up_bias + f, left);
  const Vec16 y = gated(p, g, u);
  const Vec16 kept = select(lanes(0, static_cast<int>(smaller(left, 16))), y, splat(0.0f));
  char* out = static_cast<char*>(p.out) + row * p.out_stride;
  if (p.f32)
    store(reinterpret_cast<float*>(out) + f, kept);
  else
    store_u16(reinterpret_cast<uint16_t*>(out) + f, to_bf16(kept));
}

}  // namespace

}  // namespace invar::cpu
