// What the matrix products of both orders share: their operands as kernels see them, and what
// becomes of a dot.
#pragma once

#include "kernels/cuda/elementwise.cuh"

namespace invar::cuda {

// One or two (a gated pair) matrices times rows.
struct Product {
  Activation x;
  const void* w;
  DType type;
  int64_t rows, n, k;
  int split_k;
  int64_t panels;          // of one matrix
  int64_t panel_elements;  // of one panel

  constexpr int64_t steps_per_run(int leaf) const { return round_up(k / split_k, leaf) / leaf; }
};

inline Product product_of(const MatmulParams& p) {
  return {
      p.x, p.w.data, p.w.type, p.rows, p.w.n, p.w.k, p.split_k, p.w.panels(), p.w.panel_elements()};
}
inline Product product_of(const GatedMatmulParams& p) {
  const Matrix& w = p.gate_up;
  return {p.x, w.data, w.type, p.rows, w.n, w.k, 1, w.panels(), w.panel_elements()};
}

// y[t][n] from the finished dots of one output. kMatrices is how many dots an output takes.
struct PlainEnd {
  static constexpr int kMatrices = 1;
  const float* bias;
  bool accumulate;
  float* y;
  int64_t y_stride, n;

  // The same of one of several experts.
  __device__ PlainEnd of(int expert) const {
    PlainEnd end = *this;
    if (bias) end.bias += expert * n;
    return end;
  }

  __device__ void operator()(int64_t t, int64_t output, const float (&dot)[1]) const {
    if (output >= n) return;
    float value = dot[0];
    if (bias) value = value + bias[output];
    float* out = y + t * y_stride + output;
    *out = accumulate ? *out + value : value;
  }
};

struct GatedEnd {
  static constexpr int kMatrices = 2;
  const float* gate_bias;
  const float* up_bias;
  Activation out;
  int64_t n;
  Nonlinearity curve;

  __device__ GatedEnd of(int expert) const {
    GatedEnd end = *this;
    if (gate_bias) end.gate_bias += expert * n;
    if (up_bias) end.up_bias += expert * n;
    return end;
  }

  __device__ void operator()(int64_t t, int64_t output, const float (&dot)[2]) const {
    float gate = dot[0], up = dot[1];
    if (output < n) {
      if (gate_bias) gate = gate + gate_bias[output];
      if (up_bias) up = up + up_bias[output];
    }
    const float value = output < n ? gated(curve, gate, up) : 0.0f;  // pad columns
    store(out, t * out.stride + output, value);
    // The pad columns past the last panel, if any, are its first outputs' business.
    const int64_t past = round_up(n, kPanelWidth) + output % kPanelWidth;
    if (output >= round_up(n, kPanelWidth) - kPanelWidth && past < round_up(n, kLeafPad))
      store(out, t * out.stride + past, 0.0f);
  }
};

inline PlainEnd end_of(const MatmulParams& p) {
  return {p.bias, p.accumulate, p.y, p.y_stride, p.w.n};
}
inline GatedEnd end_of(const GatedMatmulParams& p) {
  return {p.gate_bias, p.up_bias, p.out, p.gate_up.n, p.curve};
}

// The binary tree over runs as they finish (numerics 2): after run r, `sum` is its chain; partial
// sums wait in `parked` until their other half is there. kValues sums at a time.
template <int kValues>
struct RunTree {
  float parked[3][kValues];

  __device__ __forceinline__ void add(int run, float (&sum)[kValues]) {
    int level = 0;
#pragma unroll
    for (int bit = 0; bit < 3; ++bit) {
      if (level != bit) break;
      if (run >> bit & 1) {
#pragma unroll
        for (int i = 0; i < kValues; ++i) sum[i] = parked[bit][i] + sum[i];
        ++level;
      } else {
#pragma unroll
        for (int i = 0; i < kValues; ++i) parked[bit][i] = sum[i];
      }
    }
  }
};

constexpr unsigned ceil_divide(int64_t a, int64_t b) {
  return static_cast<unsigned>((a + b - 1) / b);
}

}  // namespace invar::cuda
