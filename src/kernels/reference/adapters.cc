// Low-rank adapters, numerics 2.4, one row at a time.
#include "kernels/adapters.h"

#include <algorithm>

#include "base/check.h"
#include "kernels/reference/reference.h"
#include "numerics/math.h"

namespace invar::reference {

namespace {

// Calls use(group, row) for each row of a group, whichever share it is in.
template <typename Use>
void for_adapted_rows(const AdapterParams& p, Part share, Use use) {
  int64_t number = 0;
  for (int32_t g = 0; g < p.num_groups; ++g)
    for (int32_t i = 0; i < p.groups[g].num_runs; ++i) {
      const RowRun run = p.groups[g].runs[i];
      for (int64_t t = run.first; t < run.first + run.count; ++t)
        if (number++ % share.count == share.index) use(p.groups[g], t);
    }
}

Activation at_column(Activation x, int64_t row, int64_t column) {
  x.data = static_cast<char*>(x.data) + (row * x.stride + column) * size_of(x.type);
  return x;
}

void store(const Activation& out, int64_t row, int64_t column, float value) {
  const Activation at = at_column(out, row, column);
  if (out.type == DType::bf16)
    *static_cast<bf16_t*>(at.data) = f32_to_bf16(value);
  else
    *static_cast<float*>(at.data) = value;
}

}  // namespace

void adapter_shrink(const AdapterParams& p, const Execution& on) {
  for_adapted_rows(p, on.share, [&](const AdapterGroup& group, int64_t t) {
    p.matmul({.x = p.x.from(t),
              .w = group.a,
              .rows = 1,
              .split_k = p.split_k,
              .bias = nullptr,
              .accumulate = false,
              .y = p.sums + t * p.sums_stride,
              .y_stride = p.sums_stride},
             on.of({}));
  });
}

void adapter_round(const AdapterParams& p, const Execution& on) {
  for_adapted_rows(p, on.share, [&](const AdapterGroup& group, int64_t t) {
    for (int32_t i = 0; i < group.tensors; ++i) {
      const AdapterOutputs& to = group.outputs[i];
      for (int64_t k = 0; k < round_up(to.b.k, kLeafPad); ++k)
        store(p.inner, t, to.inner + k,
              k < to.b.k ? p.sums[t * p.sums_stride + to.inner + k] * to.scale : 0.0f);
    }
  });
}

void adapter_expand(const AdapterParams& p, const Execution& on) {
  for_adapted_rows(p, on.share, [&](const AdapterGroup& group, int64_t t) {
    for (int32_t i = 0; i < group.tensors; ++i) {
      const AdapterOutputs& to = group.outputs[i];
      for (int64_t n = 0; n < to.b.n; n += kPanelWidth) {
        Matrix panel = to.b;
        panel.data = static_cast<const char*>(to.b.data) + n / kPanelWidth * to.b.unit_bytes();
        panel.n = std::min<int64_t>(kPanelWidth, to.b.n - n);
        p.matmul({.x = at_column(p.inner, t, to.inner),
                  .w = panel,
                  .rows = 1,
                  .split_k = 1,
                  .bias = nullptr,
                  .accumulate = true,
                  .y = p.y + t * p.y_stride + to.output + n * to.step,
                  .y_stride = p.y_stride},
                 on.of({}));
      }
    }
  });
}

void add_bias(const AddBiasParams& p, const Execution& on) {
  const auto [begin, end] = on.share.of(p.rows);
  for (int64_t t = begin; t < end; ++t)
    for (int64_t n = 0; n < p.width; n += kPanelWidth) {
      float* x = p.x + t * p.x_stride + p.output + n * p.step;
      for (int64_t i = 0; i < std::min<int64_t>(kPanelWidth, p.width - n); ++i)
        x[i] = x[i] + p.bias[n + i];
    }
}

void gate_pairs(const GatePairsParams& p, const Execution& on) {
  const auto [begin, end] = on.share.of(p.rows);
  for (int64_t t = begin; t < end; ++t)
    for (int64_t f = 0; f < round_up(p.width, kLeafPad); ++f) {
      const float* dots = p.dots + t * p.dots_stride + f / kPanelWidth * 2 * kPanelWidth;
      const int64_t lane = f % kPanelWidth;
      store(p.out, t, f,
            f < p.width ? math::gated(p.curve, dots[lane], dots[kPanelWidth + lane]) : 0.0f);
    }
}

}  // namespace invar::reference
