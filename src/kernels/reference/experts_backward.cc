// The backward of experts (numerics 9): what of a row's gradient goes to which expert, to the
// weights of the sum, and to the router.
#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "kernels/reference/reference.h"
#include "numerics/math.h"

namespace invar::reference {

void pair_gradients(const PairGradientsParams& p, const Execution& on) {
  const auto [begin, end] = on.share.of(p.rows);
  const int64_t padded = round_up(p.width, kLeafPad);
  for (int64_t t = begin; t < end; ++t)
    for (int64_t i = t * p.chosen; i < (t + 1) * p.chosen; ++i) {
      const float* d = p.d + t * p.width;
      const float* y = static_cast<const float*>(p.y.data) + p.place[i] * p.y.stride;
      bf16_t* out = static_cast<bf16_t*>(p.out.data) + p.place[i] * p.out.stride;
      float lane[64] = {};
      for (int64_t n = 0; n < p.width; ++n) {
        lane[n % 64] = __builtin_fmaf(d[n], bf16_to_f32(f32_to_bf16(y[n])), lane[n % 64]);
        out[n] = f32_to_bf16(p.weights[i] * d[n]);
      }
      std::fill(out + p.width, out + padded, bf16_t{0});
      p.d_weights[i] = orders::halve64(lane);
    }
}

void shared_gradients(const SharedGradientsParams& p, const Execution& on) {
  const auto [begin, end] = on.share.of(p.rows);
  const int64_t padded = round_up(p.width, kLeafPad);
  for (int64_t t = begin; t < end; ++t) {
    const float gate = routing::logistic(p.z[t * p.z_stride]);
    const float *d = p.d + t * p.width, *y = p.y + t * p.y_stride;
    bf16_t* out = static_cast<bf16_t*>(p.out.data) + t * p.out.stride;
    float lane[64] = {};
    for (int64_t n = 0; n < p.width; ++n) {
      lane[n % 64] = __builtin_fmaf(d[n], y[n], lane[n % 64]);
      out[n] = f32_to_bf16(gate * d[n]);
    }
    std::fill(out + p.width, out + padded, bf16_t{0});
    p.d_gates[t] = orders::halve64(lane);
  }
}

void sum_pairs(const SumPairsParams& p, const Execution& on) {
  const auto [begin, end] = on.share.of(p.rows);
  for (int64_t t = begin; t < end; ++t)
    for (int64_t n = 0; n < p.width; ++n) {
      float sum = 0;
      for (int64_t i = t * p.chosen; i < (t + 1) * p.chosen; ++i)
        sum = sum + p.x[p.place[i] * p.x_stride + n];
      p.out[t * p.width + n] = sum;
    }
}

namespace {

// Gradients of scores from those of the weights that the chosen ones became.
void score_gradients(const RouterBackwardParams& p, int64_t t, const float* scores, float* out) {
  const int32_t* ids = p.ids + t * p.how.chosen;
  const float* d = p.d_weights + t * p.how.chosen;
  float total = 0, mean = 0;
  for (int i = 0; i < p.how.chosen; ++i) total = total + scores[ids[i]];
  if (p.how.epsilon != 0) total = total + p.how.epsilon;
  for (int i = 0; i < p.how.chosen && p.how.renormalised; ++i)
    mean = __builtin_fmaf(d[i] * p.how.scale, scores[ids[i]] / total, mean);
  for (int i = 0; i < p.how.chosen; ++i) {
    const float g = d[i] * p.how.scale;
    out[ids[i]] = out[ids[i]] + (p.how.renormalised ? (g - mean) / total : g);
  }
}

// Scores from logits, and the gradients of logits from those of scores.
void scores_of(const Routing& how, float* x) {
  if (how.score == ExpertScore::softmax)
    return routing::share_out(x, how.experts, [](int) { return true; });
  for (int e = 0; e < how.experts; ++e) x[e] = routing::logistic(x[e]);
}

void through_scores(const Routing& how, const float* scores, float* d) {
  float mean = 0;
  for (int e = 0; e < how.experts; ++e) mean = __builtin_fmaf(d[e], scores[e], mean);
  for (int e = 0; e < how.experts; ++e)
    d[e] = how.score == ExpertScore::softmax ? scores[e] * (d[e] - mean)
                                             : d[e] * (scores[e] * (1 - scores[e]));
}

}  // namespace

void router_backward(const RouterBackwardParams& p, const Execution& on) {
  const int experts = p.how.experts, columns = experts + (p.d_gates ? 1 : 0);
  float scores[Routing::kMaxExperts], d[Routing::kMaxExperts];
  const auto [begin, end] = on.share.of(p.rows);
  for (int64_t t = begin; t < end; ++t) {
    std::copy_n(p.logits + t * p.stride, experts, scores);
    scores_of(p.how, scores);
    if (p.balance)
      std::copy_n(p.balance + t / p.balance_rows * experts, experts, d);
    else
      std::fill_n(d, experts, 0.0f);
    score_gradients(p, t, scores, d);
    through_scores(p.how, scores, d);
    bf16_t* out = static_cast<bf16_t*>(p.out.data) + t * p.out.stride;
    for (int e = 0; e < experts; ++e) out[e] = f32_to_bf16(d[e]);
    if (p.d_gates) {
      const float gate = routing::logistic(p.logits[t * p.stride + experts]);
      out[experts] = f32_to_bf16(p.d_gates[t] * (gate * (1 - gate)));
    }
    std::fill(out + columns, out + round_up(columns, kLeafPad), bf16_t{0});
  }
}

void gather_leaves(const GatherLeavesParams& p, const Execution& on) {
  const auto [begin, end] = on.share.of(p.rows);
  for (int64_t j = begin; j < end; ++j) {
    bf16_t* out = static_cast<bf16_t*>(p.out.data) + j * p.out.stride;
    const int64_t padded = round_up(p.width, kLeafPad);
    if (p.from[j] < 0)
      std::fill_n(out, padded, bf16_t{0});
    else
      std::copy_n(static_cast<const bf16_t*>(p.x.data) + p.from[j] * p.x.stride, padded, out);
  }
}

}  // namespace invar::reference
