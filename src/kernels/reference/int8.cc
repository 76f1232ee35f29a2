// Products of integers: numerics 2.1, one output at a time. The same in every order.
#include <algorithm>
#include <cstring>
#include <vector>

#include "base/check.h"
#include "kernels/reference/reference.h"
#include "numerics/int8.h"
#include "numerics/math.h"

namespace invar::reference {

namespace {

// Output `output`, counted through the units of a matrix of i8.
struct Integers {
  Integers(const Matrix& w, int64_t output) : values(static_cast<size_t>(w.k)) {
    const int64_t outputs = w.unit_outputs(), lane = output % outputs;
    const bool panels = w.layout == WeightLayout::panels;
    const auto* unit = static_cast<const uint8_t*>(w.data) + output / outputs * w.unit_bytes();
    for (int64_t k = 0; k < w.k; ++k)
      values[k] =
          static_cast<int8_t>(panels ? unit[(k / 4 * 16 + lane) * 4 + k % 4] ^ 0x80 : unit[k]);
    std::memcpy(&scale, unit + w.scales_at() + lane * sizeof scale, sizeof scale);
  }
  std::vector<int8_t> values;
  float scale;
};

// Calls use(t, dot of activation row t and that output) for every row.
template <typename Use>
void dot_rows(const Activation& x, int64_t rows, const Matrix& w, int64_t output, int split_k,
              Use use) {
  CHECK(x.type == DType::i8 && w.type == DType::i8, "a product of integers");
  const Integers column(w, output);
  const auto* row = static_cast<const int8_t*>(x.data);
  for (int64_t t = 0; t < rows; ++t, row += x.stride)
    use(t, orders::int8_dot(row, x.scales + t * split_k, column.values.data(), column.scale, w.k,
                            split_k));
}

}  // namespace

void quantise(const QuantiseParams& p, const Execution& on) {
  CHECK(p.x.type == DType::bf16 && p.out.type == DType::i8, "what becomes integers is bf16");
  const int64_t length = p.width / p.split_k;
  const auto [begin, end] = on.share.of(p.rows);
  for (int64_t t = begin; t < end; ++t) {
    const bf16_t* x = static_cast<const bf16_t*>(p.x.data) + t * p.x.stride;
    int8_t* q = static_cast<int8_t*>(p.out.data) + t * p.out.stride;
    for (int r = 0; r < p.split_k; ++r)
      p.out.scales[t * p.split_k + r] =
          orders::quantise_run(x + r * length, length, q + r * length);
    std::fill(q + p.width, q + round_up(p.width, kLeafPad), int8_t{0});
  }
}

void int8_matmul(const MatmulParams& p, const Execution& on) {
  const auto [begin, end] = on.share.of(p.w.n, kPanelWidth);
  for (int64_t n = begin; n < end; ++n)
    dot_rows(p.x, p.rows, p.w, n, p.split_k, [&](int64_t t, float y) {
      if (p.bias) y = y + p.bias[n];
      float& out = p.y[t * p.y_stride + n];
      out = p.accumulate ? out + y : y;
    });
}

void int8_gated_matmul(const GatedMatmulParams& p, const Execution& on) {
  CHECK(p.out.type == DType::bf16, "the gated activation beside integers is bf16");
  const Matrix& w = p.gate_up;
  const bool panels = w.layout == WeightLayout::panels;
  const auto [begin, end] = on.share.of(round_up(w.n, kLeafPad), kPanelWidth);
  std::vector<float> g(static_cast<size_t>(p.rows));
  for (int64_t f = begin; f < end; ++f) {
    bf16_t* out = static_cast<bf16_t*>(p.out.data) + f;
    if (f >= w.n) {  // pad columns
      for (int64_t t = 0; t < p.rows; ++t) out[t * p.out.stride] = 0;
      continue;
    }
    const int64_t gate = panels ? f / 16 * 32 + f % 16 : f;
    const int64_t up = panels ? gate + 16 : w.all_rows() + f;
    dot_rows(p.x, p.rows, w, gate, 1, [&](int64_t t, float y) { g[t] = y; });
    dot_rows(p.x, p.rows, w, up, 1, [&](int64_t t, float u) {
      float gate_t = g[t];
      if (p.gate_bias) gate_t = gate_t + p.gate_bias[f];
      if (p.up_bias) u = u + p.up_bias[f];
      out[t * p.out.stride] = f32_to_bf16(math::gated(p.curve, gate_t, u));
    });
  }
}

}  // namespace invar::reference
