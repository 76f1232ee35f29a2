#include "model/baseline.h"

#include <algorithm>

#include "numerics/math.h"

namespace invar::baseline {

namespace {

constexpr int64_t kFewRows = 8;     // up to here, a long cache is read in halves
constexpr int32_t kLongCache = 64;  // slots

}  // namespace

struct Attention::MergeParams {
  const AttentionParams& whole;
  const Range &early, &late;
};

void Attention::run(const Decoder& decoder, const AttentionParams& params) {
  cut(params);
  if (early_.begin == late_.begin) return decoder.run(decoder.kernels.attention, params);
  attend(decoder, params, early_);
  attend(decoder, params, late_);
  decoder.run(&Attention::merge, MergeParams{params, early_, late_});
}

// Where every row's slots are cut: at the first new slot of its table, or in the middle.
void Attention::cut(const AttentionParams& p) {
  for (Range* range : {&early_, &late_}) {
    range->begin.resize(p.rows);
    range->last.resize(p.rows);
  }
  int32_t first_new = 0;
  for (int64_t t = 0; t < p.rows; ++t) {
    const int32_t last = p.positions[t], begin = first_slot(p, t);
    if (t == 0 || p.table_of[t] != p.table_of[t - 1]) first_new = last;
    const bool halves = p.rows <= kFewRows && last - begin >= kLongCache;
    const int32_t at = halves ? begin + (last - begin) / 2 : std::max(begin, first_new);
    early_.begin[t] = begin;
    early_.last[t] = std::max(begin, at - 1);  // where nothing is early: unused, but some slot
    late_.begin[t] = at;
    late_.last[t] = last;
  }
}

void Attention::attend(const Decoder& decoder, const AttentionParams& whole, Range& range) {
  const int64_t stride = round_up(int64_t{whole.heads} * whole.kv.head_dim, kLeafPad);
  const size_t values = static_cast<size_t>(whole.rows * stride),
               stats = static_cast<size_t>(whole.rows * whole.heads);
  if (range.out.size() < values) range.out.resize(values);
  if (range.max.size() < stats) range.max.resize(stats);
  if (range.sum.size() < stats) range.sum.resize(stats);
  PartialAttentionParams part{
      .of = whole, .begin = range.begin.data(), .max = range.max.data(), .sum = range.sum.data()};
  part.of.positions = range.last.data();
  part.of.window = part.of.chunk = 0;              // they are in `begin`
  if (&range == &early_) part.of.sinks = nullptr;  // once, behind the others
  part.of.out = {range.out.data(), DType::f32, stride};
  decoder.run(decoder.kernels.partial_attention, part);
}

// Two normalised results by the weights of their ranges.
void Attention::merge(const MergeParams& m, const Execution& on) {
  const AttentionParams& p = m.whole;
  const int64_t e = p.kv.head_dim, width = p.heads * e, stride = round_up(width, kLeafPad);
  const auto [begin, end] = on.share.of(p.rows);
  for (int64_t t = begin; t < end; ++t) {
    const bool has_early = m.early.begin[t] < m.late.begin[t];
    for (int64_t h = 0; h < p.heads; ++h) {
      const int64_t stat = t * p.heads + h, at = t * stride + h * e;
      const float top =
          has_early ? std::max(m.early.max[stat], m.late.max[stat]) : m.late.max[stat];
      float a = has_early ? math::exp2(m.early.max[stat] - top) * m.early.sum[stat] : 0.0f;
      float b = math::exp2(m.late.max[stat] - top) * m.late.sum[stat];
      const float sum = a + b;
      a /= sum;
      b /= sum;
      for (int64_t i = 0; i < e; ++i) {
        const float y =
            has_early ? a * m.early.out[at + i] + b * m.late.out[at + i] : m.late.out[at + i];
        const int64_t to = t * p.out.stride + h * e + i;
        if (p.out.type == DType::bf16)
          static_cast<bf16_t*>(p.out.data)[to] = f32_to_bf16(y);
        else
          static_cast<float*>(p.out.data)[to] = y;
      }
    }
    for (int64_t i = width; i < stride; ++i) {
      if (p.out.type == DType::bf16)
        static_cast<bf16_t*>(p.out.data)[t * p.out.stride + i] = 0;
      else
        static_cast<float*>(p.out.data)[t * p.out.stride + i] = 0.0f;
    }
  }
}

}  // namespace invar::baseline
