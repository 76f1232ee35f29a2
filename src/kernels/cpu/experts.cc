#include "kernels/cpu/experts.h"

#include <algorithm>

#include "base/check.h"
#include "kernels/reference/reference.h"
#include "numerics/math.h"

namespace invar::cpu {

namespace {

// Outputs are shared out by so many; what a group of them costs beside its rows: reading its
// weights, in rows.
constexpr int64_t kGroupOutputs = 32, kReadingCost = 16;

int64_t cost_of_group(int64_t rows) {
  return rows == 0 ? 0 : rows + kReadingCost;
}

// Calls use(expert, first output, number of outputs) for a share's outputs of every expert: the
// shares cut one line on which all experts' outputs stand, weighed by what they cost.
template <typename Use>
void for_share(const int32_t* begin, int64_t experts, int64_t outputs, Part part, Use use) {
  const int64_t groups = (outputs + kGroupOutputs - 1) / kGroupOutputs;
  int64_t total = 0;
  for (int64_t e = 0; e < experts; ++e) total += groups * cost_of_group(begin[e + 1] - begin[e]);
  const auto cut = [&](int index) {
    return total / part.count * index + total % part.count * index / part.count;
  };
  const int64_t low = cut(part.index), high = cut(part.index + 1);
  int64_t at = 0;  // where the expert's outputs begin on that line
  for (int64_t e = 0; e < experts && at < high; ++e) {
    const int64_t cost = cost_of_group(begin[e + 1] - begin[e]);
    if (cost == 0) continue;
    // Groups that begin before a place on the line.
    const auto before = [&](int64_t place) {
      return std::clamp<int64_t>((place - at + cost - 1) / cost, 0, groups);
    };
    const int64_t first = low > at ? before(low) : 0, end = high > at ? before(high) : 0;
    if (first < end)
      use(e, first * kGroupOutputs, std::min(end * kGroupOutputs, outputs) - first * kGroupOutputs);
    at += groups * cost;
  }
}

// Outputs of a matrix or a gated pair in panels: from a whole panel on.
Matrix outputs_of(Matrix w, int64_t first, int64_t count) {
  w.data = static_cast<const char*>(w.data) + first / kPanelWidth * w.count * w.unit_bytes();
  w.n = count;
  return w;
}

Activation part_of(Activation x, int64_t row, int64_t column) {
  x.data = static_cast<char*>(x.data) + (row * x.stride + column) * size_of(x.type);
  return x;
}

}  // namespace

void expert_matmul(const ExpertMatmulParams& p, const Execution& on) {
  const MatmulParams& m = p.each;
  CHECK(m.split_k == 1 && !m.accumulate, "what an expert's product can have");
  for_share(p.begin, m.w.count, m.w.n, on.share, [&](int64_t e, int64_t first, int64_t count) {
    MatmulParams one = m;
    one.rows = p.begin[e + 1] - p.begin[e];
    one.x = part_of(m.x, p.begin[e], 0);
    one.w = outputs_of(m.w.part(e, 1), first, count);
    one.y = m.y + p.begin[e] * m.y_stride + first;
    one.bias = m.bias ? m.bias + e * m.w.n + first : nullptr;
    p.matmul(one, on.of({}));
  });
}

void expert_gated_matmul(const ExpertGatedMatmulParams& p, const Execution& on) {
  const GatedMatmulParams& m = p.each;
  const Matrix& w = m.gate_up;
  for_share(p.begin, w.count / 2, w.n, on.share, [&](int64_t e, int64_t first, int64_t count) {
    GatedMatmulParams one = m;
    one.rows = p.begin[e + 1] - p.begin[e];
    one.x = part_of(m.x, p.begin[e], 0);
    one.gate_up = outputs_of(w.part(2 * e, 2), first, count);
    one.out = part_of(m.out, p.begin[e], first);
    one.gate_bias = m.gate_bias ? m.gate_bias + e * w.n + first : nullptr;
    one.up_bias = m.up_bias ? m.up_bias + e * w.n + first : nullptr;
    p.matmul(one, on.of({}));
  });
}

void heads_matmul(const HeadsMatmulParams& p, const Execution& on) {
  const MatmulParams& m = p.each;
  CHECK(m.split_k == 1 && !m.accumulate && !m.bias, "what a head's product can have");
  const int64_t groups = (m.w.n + kGroupOutputs - 1) / kGroupOutputs;
  const auto [begin, end] = on.share.of(m.w.count * groups);
  for (int64_t i = begin; i < end;) {
    const int64_t h = i / groups, first = i % groups * kGroupOutputs;
    const int64_t next = std::min(end, (h + 1) * groups);
    const int64_t last = std::min(first + (next - i) * kGroupOutputs, m.w.n);
    MatmulParams one = m;
    one.x = part_of(m.x, 0, h * p.x_step);
    one.w = outputs_of(m.w.part(h, 1), first, last - first);
    one.y = m.y + h * m.w.n + first;
    p.matmul(one, on.of({}));
    i = next;
  }
}

void combine(const RowFunctions& rows, const CombineParams& p, const Execution& on) {
  if (p.by_place) return reference::combine(p, on);
  constexpr int64_t kColumns = 256;
  const int64_t pieces = (p.width + kColumns - 1) / kColumns;  // of a row
  const auto [begin, end] = on.share.of(p.rows * pieces);
  for (int64_t i = begin; i < end; ++i) {
    const int64_t t = i / pieces, first = i % pieces * kColumns;
    const float z = p.gate ? p.gate[t * p.gate_stride] : 0.0f;
    rows.sum_experts({.y = p.y.data,
                      .y_stride = p.y.stride * size_of(p.y.type),
                      .is_bf16 = p.y.type == DType::bf16,
                      .rounds = p.rounds,
                      .place = p.place + t * p.chosen,
                      .weights = p.weights + t * p.chosen,
                      .chosen = p.chosen,
                      .shared = p.shared ? p.shared + t * p.shared_stride : nullptr,
                      .gate = p.gate ? 1.0f / (1.0f + math::exp(-z)) : 1.0f,
                      .scale = p.scale,
                      .hidden = p.hidden + t * p.width},
                     first, std::min(first + kColumns, p.width));
  }
}

}  // namespace invar::cpu
