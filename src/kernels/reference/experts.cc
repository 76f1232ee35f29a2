// Mixture of experts, numerics 7: the router's choice, rows sorted by expert, a product for each
// expert, and the sum of a row's experts.
#include <algorithm>
#include <cstring>
#include <numeric>
#include <vector>

#include "base/check.h"
#include "kernels/reference/reference.h"

namespace invar::reference {

void route(const RouteParams& p, const Execution& on) {
  CHECK(p.how.experts <= Routing::kMaxExperts, "more experts than the router has room for");
  float logits[Routing::kMaxExperts], choice[Routing::kMaxExperts];
  const auto [begin, end] = on.share.of(p.rows);
  for (int64_t t = begin; t < end; ++t) {
    std::copy_n(p.logits + t * p.stride, p.how.experts, logits);
    const int32_t* given = p.given ? p.given + t * p.how.chosen : nullptr;
    routing::route(p.how, logits, p.bias, choice, p.ids + t * p.how.chosen,
                   p.weights + t * p.how.chosen, given && *given >= 0 ? given : nullptr);
    for (int64_t i = t * p.how.chosen; p.scales && i < (t + 1) * p.how.chosen; ++i)
      p.weights[i] = p.weights[i] * p.scales[p.ids[i]];
  }
}

void sort_rows(const SortRowsParams& p, const Execution& on) {
  if (on.share.index > 0) return;
  const int64_t pairs = p.rows * p.chosen;
  const auto key = [&](int64_t i) { return expert_place(p.expert_places, p.ids[i], i / p.chosen); };
  std::fill_n(p.begin, p.experts + 1, 0);
  for (int64_t i = 0; i < pairs; ++i) ++p.begin[key(i) + 1];
  for (int32_t e = 0; e < p.experts; ++e) p.begin[e + 1] += p.begin[e];
  for (int64_t i = 0; i < pairs; ++i) {
    const int32_t place = p.begin[key(i)]++;
    p.place[i] = place;
    p.rows_of[place] = static_cast<int32_t>(i / p.chosen);
  }
  for (int32_t e = p.experts; e > 0; --e) p.begin[e] = p.begin[e - 1];
  p.begin[0] = 0;
}

void gather_rows(const GatherRowsParams& p, const Execution& on) {
  const int64_t size = size_of(p.x.type), bytes = round_up(p.width, kLeafPad) * size;
  const auto [begin, end] = on.share.of(p.begin[p.experts] - p.begin[0]);
  for (int64_t j = p.begin[0] + begin; j < p.begin[0] + end; ++j)
    std::memcpy(static_cast<char*>(p.out.data) + j * p.out.stride * size,
                static_cast<const char*>(p.x.data) + p.rows_of[j] * p.x.stride * size,
                static_cast<size_t>(bytes));
}

namespace {

void scale_row(const Activation& x, int64_t row, int64_t width, float weight) {
  if (x.type == DType::f32) {
    float* values = static_cast<float*>(x.data) + row * x.stride;
    for (int64_t i = 0; i < width; ++i) values[i] = values[i] * weight;
    return;
  }
  bf16_t* values = static_cast<bf16_t*>(x.data) + row * x.stride;
  for (int64_t i = 0; i < width; ++i) values[i] = f32_to_bf16(bf16_to_f32(values[i]) * weight);
}

}  // namespace

void weigh_rows(const WeighRowsParams& p, const Execution& on) {
  const GatherRowsParams& of = p.of;
  const auto [begin, end] = on.share.of(p.pairs);
  for (int64_t i = begin; i < end; ++i) {
    const int32_t at = p.place[i];
    if (at >= of.begin[0] && at < of.begin[of.experts])
      scale_row(of.out, at, of.width, p.weights[i]);
    p.weights[i] = 1;
  }
}

namespace {

Activation rows_from(Activation x, int64_t row) {
  x.data = static_cast<char*>(x.data) + row * x.stride * size_of(x.type);
  return x;
}

}  // namespace

void expert_matmul(const ExpertMatmulParams& p, const Execution& on) {
  CHECK(p.each.split_k == 1 && !p.each.accumulate, "what an expert's product can have");
  for (int64_t e = 0; e < p.each.w.count; ++e) {
    MatmulParams one = p.each;
    one.rows = p.begin[e + 1] - p.begin[e];
    if (one.rows == 0) continue;
    one.x = rows_from(p.each.x, p.begin[e]);
    one.w = p.each.w.part(e, 1);
    one.y = p.each.y + p.begin[e] * p.each.y_stride;
    one.bias = p.each.bias ? p.each.bias + e * one.w.n : nullptr;
    p.matmul(one, on);
  }
}

void expert_gated_matmul(const ExpertGatedMatmulParams& p, const Execution& on) {
  for (int64_t e = 0; e < p.each.gate_up.count / 2; ++e) {
    GatedMatmulParams one = p.each;
    one.rows = p.begin[e + 1] - p.begin[e];
    if (one.rows == 0) continue;
    one.x = rows_from(p.each.x, p.begin[e]);
    one.gate_up = p.each.gate_up.part(2 * e, 2);
    one.out = rows_from(p.each.out, p.begin[e]);
    one.gate_bias = p.each.gate_bias ? p.each.gate_bias + e * one.gate_up.n : nullptr;
    one.up_bias = p.each.up_bias ? p.each.up_bias + e * one.gate_up.n : nullptr;
    p.matmul(one, on);
  }
}

namespace {

float expert_output(const CombineParams& p, int64_t place, int64_t d) {
  if (p.y.type == DType::bf16)
    return bf16_to_f32(static_cast<const bf16_t*>(p.y.data)[place * p.y.stride + d]);
  const float y = static_cast<const float*>(p.y.data)[place * p.y.stride + d];
  return p.rounds ? bf16_to_f32(f32_to_bf16(y)) : y;
}

}  // namespace

void combine(const CombineParams& p, const Execution& on) {
  const auto [begin, end] = on.share.of(p.rows);
  std::vector<int64_t> order(static_cast<size_t>(p.chosen));
  for (int64_t t = begin; t < end; ++t) {
    std::iota(order.begin(), order.end(), t * p.chosen);
    if (p.by_place) std::ranges::sort(order, {}, [&](int64_t i) { return p.place[i]; });
    const float gate = p.gate ? 1.0f / (1.0f + math::exp(-p.gate[t * p.gate_stride])) : 1.0f;
    for (int64_t d = 0; d < p.width; ++d) {
      float sum = 0;
      for (const int64_t i : order) {
        sum = __builtin_fmaf(p.weights[i], expert_output(p, p.place[i], d), sum);
        if (p.by_place) sum = bf16_to_f32(f32_to_bf16(sum));
      }
      if (p.shared) sum = __builtin_fmaf(gate, p.shared[t * p.shared_stride + d], sum);
      float& h = p.hidden[t * p.width + d];
      h = h + sum * p.scale;
    }
  }
}

// Row by row, whole.
void combine_norm(const CombineNormParams& p, const Execution& on) {
  const CombineParams& s = p.sum;
  const auto [begin, end] = on.share.of(s.rows);
  for (int64_t t = begin; t < end; ++t) {
    CombineParams row = s;
    row.place += t * s.chosen;
    row.weights += t * s.chosen;
    if (s.shared) row.shared += t * s.shared_stride;
    if (s.gate) row.gate += t * s.gate_stride;
    row.rows = 1;
    row.hidden += t * s.width;
    combine(row, on.of({}));
    if (!p.out.data) continue;
    const Activation out = rows_from(p.out, t);
    if (p.next)
      rms_norm({row.hidden, s.width, nullptr, p.next, p.eps, 1, s.width, out}, on.of({}));
    else
      round({row.hidden, s.width, nullptr, 1, s.width, out}, on.of({}));
  }
}

}  // namespace invar::reference
