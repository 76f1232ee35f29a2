// Matrix products and their backward.
#include <algorithm>

#include "base/error.h"
#include "kernels/pack.h"
#include "operator_checks.h"
#include "operators.h"

namespace invar::python {

namespace {

// The outputs of several weights, one after the other; or of a pair, 16 of each in turn.
std::vector<Columns> places_of(const std::vector<Weight>& weights, bool is_pair) {
  std::vector<Columns> places;
  int64_t first = 0;
  for (const Weight& one : weights) {
    places.push_back(is_pair ? Columns{0, one.n, static_cast<int>(places.size())}
                             : Columns{first, one.n});
    first += one.n;
  }
  return places;
}

int64_t outputs_of(const std::vector<Weight>& weights) {
  int64_t n = 0;
  for (const Weight& one : weights) n += one.n;
  return n;
}

int64_t paired_width(int64_t f) {
  return 2 * round_up(f, kPanelWidth);
}

}  // namespace

// As panels; those of a pair take turns.
const Matrix& Operators::packed(const std::vector<Weight>& weights, int64_t k, bool is_pair) {
  std::vector<PackedWeights::Rows> rows;
  for (const Weight& one : weights) rows.push_back({one.w, one.n});
  return packed_.of(rows, k, is_pair, pool_,
                    [&](DeviceArray<bf16_t>& memory) { return pack(weights, k, is_pair, memory); });
}

Matrix Operators::pack(const std::vector<Weight>& weights, int64_t k, bool is_pair,
                       DeviceArray<bf16_t>& memory) {
  Matrix matrix{.type = DType::bf16,
                .n = is_pair ? weights.front().n : outputs_of(weights),
                .k = k,
                .count = is_pair ? 2 : 1};
  memory = array<bf16_t>(matrix.elements());
  matrix.data = memory.data();
  int64_t output = 0;
  for (const Weight& one : weights) {
    const std::vector<bf16_t> rows = bf16_rows(one.w, one.n * k);
    const PackPlace place{output, is_pair ? 2 : 1};
    pool_.run([&](Part part) {
      const auto [begin, end] = part.of(one.n, kPanelWidth);
      pack_rows(DType::bf16, rows.data() + begin * k, k, begin, end - begin, k, place,
                memory.data());
    });
    output += is_pair ? kPanelWidth : one.n;
  }
  return matrix;
}

Matrix Operators::transposed(const std::vector<Weight>& weights, int64_t k, bool is_pair,
                             DeviceArray<bf16_t>& memory) {
  const int64_t inner = is_pair ? paired_width(weights.front().n) : outputs_of(weights);
  Matrix matrix{.type = DType::bf16, .n = k, .k = inner};
  memory = array<bf16_t>(matrix.elements());
  matrix.data = memory.data();
  const std::vector<Columns> places = places_of(weights, is_pair);
  for (size_t i = 0; i < weights.size(); ++i) {
    const std::vector<bf16_t> rows = bf16_rows(weights[i].w, weights[i].n * k);
    run(training_.pack_columns, PackColumnsParams{.x = rows.data(),
                                                  .x_stride = k,
                                                  .rows = weights[i].n,
                                                  .width = k,
                                                  .inner = places[i],
                                                  .inner_size = inner,
                                                  .out = memory.data()});
  }
  return matrix;
}

void Operators::product(const Activation& x, const Matrix& w, int64_t rows, float* y) {
  run(kernels_.matmul,
      MatmulParams{.x = x, .w = w, .rows = rows, .split_k = 1, .y = y, .y_stride = w.n});
}

void Operators::weight_gradients(const Activation& dy, const float* x, int64_t rows, int64_t k,
                                 const std::vector<Weight>& weights, bool is_pair) {
  const int64_t padded = round_up(rows, kLeafPad), stride = activation_stride(padded);
  DeviceArray<bf16_t> rounded_x;
  const Activation inputs = rounded(x, rows, k, padded, rounded_x);
  const auto packed_x = array<bf16_t>(round_up(k, kPanelWidth) * padded);
  run(training_.pack_columns, PackColumnsParams{.x = rounded_x.data(),
                                                .x_stride = inputs.stride,
                                                .rows = padded,
                                                .width = k,
                                                .inner = {0, padded},
                                                .inner_size = padded,
                                                .out = packed_x.data()});
  const std::vector<Columns> places = places_of(weights, is_pair);
  for (size_t i = 0; i < weights.size(); ++i) {
    const Weight& one = weights[i];
    if (one.bias_gradient)
      run(training_.bias_gradient,
          BiasGradientParams{
              .dy = dy, .rows = padded, .columns = places[i], .gradient = one.bias_gradient});
    if (!one.gradient) continue;
    const auto turned = array<bf16_t>(one.n * stride);
    const Activation columns{turned.data(), DType::bf16, stride};
    run(training_.transpose,
        TransposeParams{.x = dy, .rows = padded, .columns = places[i], .out = columns});
    run(training_.extend_matmul, MatmulParams{.x = columns,
                                              .w = {packed_x.data(), DType::bf16, k, padded},
                                              .rows = one.n,
                                              .split_k = 1,
                                              .y = one.gradient,
                                              .y_stride = k});
  }
}

void Operators::linear(const float* x, int64_t rows, int64_t k, const std::vector<Weight>& weights,
                       int split_k, const float* residual, float* y) {
  const std::lock_guard lock(mutex_);
  expect_runs(split_k, k);
  DeviceArray<bf16_t> rounded_x;
  const int64_t n = outputs_of(weights);
  const bool has_bias = std::ranges::any_of(weights, [](const Weight& w) { return w.bias; });
  std::vector<float> bias;
  for (const Weight& one : weights) {
    const std::vector<float> seen = rounded_vector(one.bias, one.n);
    bias.insert(bias.end(), seen.begin(), seen.end());
    if (!one.bias) bias.resize(bias.size() + static_cast<size_t>(one.n));
  }
  if (residual) std::copy_n(residual, rows * n, y);
  run(kernels_.matmul, MatmulParams{.x = rounded(x, rows, k, rows, rounded_x),
                                    .w = packed(weights, k, false),
                                    .rows = rows,
                                    .split_k = split_k,
                                    .bias = has_bias ? bias.data() : nullptr,
                                    .accumulate = residual != nullptr,
                                    .y = y,
                                    .y_stride = n});
}

void Operators::linear_backward(const float* dy, const float* x, int64_t rows, int64_t k,
                                const std::vector<Weight>& weights, float* dx) {
  const std::lock_guard lock(mutex_);
  DeviceArray<bf16_t> rounded_dy, turned;
  const Activation d = rounded(dy, rows, outputs_of(weights), round_up(rows, kLeafPad), rounded_dy);
  if (dx) product(d, transposed(weights, k, false, turned), rows, dx);
  weight_gradients(d, x, rows, k, weights, false);
}

void Operators::matmul_f32(const float* x, const float* w, const float* bias, int64_t rows,
                           int64_t k, int64_t n, float* y) {
  const std::lock_guard lock(mutex_);
  if (kernels_.order != Order::portable)
    fail_usage("the order hopper is defined for bf16 and these matrices are f32");
  const int64_t stride = activation_stride(k);
  const auto inputs = array<float>(rows * stride);
  run(kernels_.round, RoundParams{.x = x,
                                  .x_stride = k,
                                  .rows = rows,
                                  .width = k,
                                  .out = {inputs.data(), DType::f32, stride}});
  Matrix matrix{.type = DType::f32, .n = n, .k = k};
  const auto panels = array<float>(matrix.elements());
  matrix.data = panels.data();
  pool_.run([&](Part part) {
    const auto [begin, end] = part.of(n, kPanelWidth);
    pack_rows(DType::f32, w + begin * k, k, begin, end - begin, k, {}, panels.data());
  });
  run(kernels_.matmul, MatmulParams{.x = {inputs.data(), DType::f32, stride},
                                    .w = matrix,
                                    .rows = rows,
                                    .split_k = 1,
                                    .bias = bias,
                                    .y = y,
                                    .y_stride = n});
}

void Operators::gated(const float* x, int64_t rows, int64_t k, const Weight& gate, const Weight& up,
                      Nonlinearity curve, float* out, float* dots) {
  const std::lock_guard lock(mutex_);
  DeviceArray<bf16_t> rounded_x;
  const int64_t f = gate.n, stride = activation_stride(f);
  const auto memory = array<bf16_t>(rows * stride);
  const Activation gated{memory.data(), DType::bf16, stride};
  const std::vector<float> gate_bias = rounded_vector(gate.bias, f),
                           up_bias = rounded_vector(up.bias, f);
  const GatedMatmulParams params{.x = rounded(x, rows, k, rows, rounded_x),
                                 .gate_up = packed({gate, up}, k, true),
                                 .rows = rows,
                                 .gate_bias = gate.bias ? gate_bias.data() : nullptr,
                                 .up_bias = up.bias ? up_bias.data() : nullptr,
                                 .out = gated,
                                 .curve = curve};
  run(training_.gated_matmul, KeptGatedMatmulParams{params, dots});
  widen(gated, rows, f, out);
}

void Operators::gated_backward(const float* d_gated, const float* x, const float* dots,
                               int64_t rows, int64_t k, const Weight& gate, const Weight& up,
                               Nonlinearity curve, float* dx) {
  const std::lock_guard lock(mutex_);
  const int64_t f = gate.n, width = paired_width(f), padded = round_up(rows, kLeafPad);
  const auto memory = array<bf16_t>(padded * activation_stride(width));
  const Activation d{memory.data(), DType::bf16, activation_stride(width)};
  const std::vector<float> gate_bias = rounded_vector(gate.bias, f),
                           up_bias = rounded_vector(up.bias, f);
  run(training_.gate_backward,
      GateBackwardParams{.gate_up = dots,
                         .gate_bias = gate.bias ? gate_bias.data() : nullptr,
                         .up_bias = up.bias ? up_bias.data() : nullptr,
                         .d_gated = d_gated,
                         .rows = rows,
                         .width = f,
                         .out = d,
                         .curve = curve});
  DeviceArray<bf16_t> turned;
  if (dx) product(d, transposed({gate, up}, k, true, turned), rows, dx);
  weight_gradients(d, x, rows, k, {gate, up}, true);
}

}  // namespace invar::python
