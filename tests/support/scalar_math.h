// Parts of a decoder's layer, one number at a time from the definitions of numerics 1 to 5.
#pragma once

#include <algorithm>
#include <cmath>
#include <optional>
#include <vector>

#include "kernels/layout.h"
#include "numerics/curves.h"
#include "numerics/math.h"
#include "numerics/orders.h"
#include "numerics/routing.h"

namespace invar::scalar {

using Floats = std::vector<float>;
using Halves = std::vector<bf16_t>;

inline Halves rounded(const Floats& x) {
  Halves y;
  for (const float v : x) y.push_back(f32_to_bf16(v));
  return y;
}

inline Floats normed(const Floats& x, const Floats& weight, float eps) {
  const float mean = orders::sum64_squares(x) / static_cast<float>(x.size());
  const float rs = 1.0f / std::sqrt(mean + eps);
  Floats y;
  for (size_t i = 0; i < x.size(); ++i) y.push_back((x[i] * rs) * weight[i]);
  return y;
}

// The bias is empty where there is none.
inline Floats product(Order order, const Halves& w, const Halves& x, const Floats& bias,
                      int split_k = 1) {
  Floats y;
  const int64_t k = std::ssize(x);
  for (int64_t n = 0; n < std::ssize(w) / k; ++n) {
    y.push_back(orders::dot(order, x.data(), &w[static_cast<size_t>(n * k)], k, split_k));
    if (!bias.empty()) y.back() = y.back() + bias[static_cast<size_t>(n)];
  }
  return y;
}

// One head, rotated.
inline Floats turned(const Floats& x, int position, const std::vector<double>& frequencies,
                     double factor = 1) {
  Floats y = x;
  const size_t half = frequencies.size();
  for (size_t i = 0; i < half; ++i) {
    const auto [sine, cosine] = math::sincos(position * frequencies[i]);
    if (frequencies[i] == 0) continue;  // it does not turn
    const float s = static_cast<float>(sine * factor), c = static_cast<float>(cosine * factor);
    y[i] = std::fma(x[i], c, -(x[i + half] * s));
    y[i + half] = std::fma(x[i + half], c, x[i] * s);
  }
  return y;
}

// 1 - 2 / (1 + e^x), and the curves of numerics 5.1.
inline float half_tanh(float x) {
  return 1.0f - 2.0f / (1.0f + math::exp(x));
}
inline float bent(Nonlinearity which, float x) {
  if (which == Nonlinearity::silu) return x / (1.0f + math::exp(-x));
  if (which == Nonlinearity::gelu_tanh)
    return x / (1.0f + math::exp(-(x * std::fma(x * x, 0x1.2444f2p-4f, 0x1.988454p+0f))));
  const float s = std::fabs(x) * 0x1.6a09e6p-1f, t = 1.0f / std::fma(0x1.4f740ap-2f, s, 1.0f);
  float p = 0x1.0fb844p+0f;
  for (const float c : {-0x1.7401c6p+0f, 0x1.6be1c6p+0f, -0x1.23531cp-2f, 0x1.04f20cp-2f})
    p = std::fma(p, t, c);
  const float tail = ((p * t) * math::exp(-(s * s))) * 0.5f;
  return x * (x < 0 ? tail : 1.0f - tail);
}

// LayerNorm.
inline Floats centered(const Floats& x, const Floats& weight, const Floats& bias, float eps) {
  const float n = static_cast<float>(x.size()), mean = orders::sum64(x) / n;
  Floats y;
  for (const float v : x) y.push_back(v - mean);
  const float rs = 1.0f / std::sqrt(orders::sum64_squares(y) / n + eps);
  for (size_t i = 0; i < x.size(); ++i) y[i] = (y[i] * rs) * weight[i] + bias[i];
  return y;
}

// Of scores: a factor in the place of 1 / sqrt(e), and a cap, 0: neither; a head's sink, or none.
struct Scores {
  double scale = 0;
  float cap = 0;
  std::optional<float> sink = {};
};

// The first position that a position sees.
inline int first_seen(int p, int window, int chunk) {
  const int of_window = window > 0 ? std::max(0, p - window + 1) : 0;
  return std::max(of_window, chunk > 0 ? p / chunk * chunk : 0);
}

// Of a query of one head at position p: that of keys and values which begins at element `first`.
inline Floats attend(Order order, const bf16_t* q, const std::vector<Halves>& k,
                     const std::vector<Halves>& v, int e, int first, int p, int begin = 0,
                     Scores scores = {}) {
  const double root = std::sqrt(static_cast<double>(e)), log2e = 0x1.71547652b82fep+0;
  float c = static_cast<float>(scores.scale > 0 ? log2e * scores.scale : log2e / root), inner = 0;
  if (scores.cap > 0) {
    c = static_cast<float>(log2e * scores.cap);
    inner = static_cast<float>(2 * (scores.scale > 0 ? scores.scale : 1 / root) / scores.cap);
  }
  float m = 0, l = 0;
  Floats o;
  for (int split = begin / kSplitSlots; split * kSplitSlots <= p; ++split) {
    const auto is_valid = [&](int j) { return begin <= j && j <= p; };
    Floats d(kSplitSlots, -INFINITY), share(kSplitSlots, 0.0f), os;
    for (int j = 0; j < kSplitSlots; ++j)
      if (const int at = split * kSplitSlots + j; is_valid(at))
        d[j] = orders::dot(order, q, &k[at][first], e);
    for (float& score : d)
      if (inner > 0 && score != -INFINITY) score = half_tanh(score * inner);
    const float ms = *std::ranges::max_element(d) * c;
    for (int j = 0; j < kSplitSlots; ++j)
      if (d[j] != -INFINITY) share[j] = math::exp2(std::fma(d[j], c, -ms));
    const float ls = orders::sum64(share);
    const Halves shares = rounded(share);
    for (int i = 0; i < e; ++i) {
      Halves column(kSplitSlots, 0);
      for (int j = 0; j < kSplitSlots; ++j)
        if (const int at = split * kSplitSlots + j; is_valid(at)) column[j] = v[at][first + i];
      os.push_back(orders::dot(order, shares.data(), column.data(), kSplitSlots));
    }
    if (o.empty()) {
      m = ms, l = ls, o = os;
      continue;
    }
    const float top = std::max(m, ms), a = math::exp2(m - top), b = math::exp2(ms - top);
    l = std::fma(l, a, ls * b);
    for (size_t i = 0; i < o.size(); ++i) o[i] = std::fma(o[i], a, os[i] * b);
    m = top;
  }
  if (scores.sink) {
    const float ms = *scores.sink * 0x1.715476p+0f, top = std::max(m, ms);
    const float a = math::exp2(m - top), b = math::exp2(ms - top);
    l = std::fma(l, a, 1.0f * b);
    for (float& x : o) x = std::fma(x, a, 0.0f * b);
  }
  for (float& x : o) x = x / l;
  return o;
}

// The chosen experts, ascending, and their weights, by sorting: written apart from
// numerics/routing.h.
inline std::vector<std::pair<int, float>> routed(const Routing& how, Floats scores,
                                                 const Floats& bias) {
  const size_t count = scores.size();
  const auto share_out = [](const std::vector<float*>& of) {
    float top = -INFINITY, sum = 0;
    for (const float* x : of) top = std::max(top, *x);
    for (float* x : of) sum = sum + (*x = math::exp(*x - top));
    for (float* x : of) *x = *x / sum;
  };
  std::vector<float*> all;
  for (float& s : scores) all.push_back(&s);
  if (how.score == ExpertScore::softmax) share_out(all);
  if (how.score == ExpertScore::sigmoid)
    for (float& s : scores) s = 1.0f / (1.0f + math::exp(-s));
  Floats choice = scores;
  for (size_t e = 0; e < bias.size(); ++e) choice[e] = choice[e] + bias[e];
  // The first `most` of some numbers, larger first, ties to the lower place.
  const auto best = [](const Floats& x, size_t most) {
    std::vector<int> order(x.size());
    for (size_t i = 0; i < x.size(); ++i) order[i] = static_cast<int>(i);
    std::ranges::stable_sort(order, [&](int a, int b) { return x[a] > x[b]; });
    order.resize(most);
    std::ranges::sort(order);
    return order;
  };
  if (how.groups > 1) {
    const size_t size = count / how.groups;
    Floats groups;
    for (size_t begin = 0; begin < count; begin += size) {
      Floats group(choice.begin() + begin, choice.begin() + begin + size);
      std::ranges::sort(group, std::greater());
      groups.push_back(how.pair_score && size > 1 ? group[0] + group[1] : group[0]);
    }
    const auto kept = best(groups, how.chosen_groups);
    for (size_t e = 0; e < count; ++e)
      if (!std::ranges::binary_search(kept, static_cast<int>(e / size))) choice[e] = -INFINITY;
  }
  const std::vector<int> ids = best(choice, how.chosen);
  if (how.score == ExpertScore::sigmoid_of_chosen)
    for (const int e : ids) scores[e] = 1.0f / (1.0f + math::exp(-scores[e]));
  if (how.score == ExpertScore::softmax_of_chosen) {
    std::vector<float*> chosen;
    for (const int e : ids) chosen.push_back(&scores[e]);
    share_out(chosen);
  }
  float sum = 0;
  for (const int e : ids) sum = sum + scores[e];
  sum = sum + how.epsilon;
  std::vector<std::pair<int, float>> result;
  for (const int e : ids)
    result.emplace_back(e, (how.renormalised ? scores[e] / sum : scores[e]) * how.scale);
  return result;
}

// silu(g) * u, or clamped(g, u) of numerics 5.1
inline Floats gated(const Floats& g, const Floats& u, bool is_clamped = false) {
  Floats y;
  for (size_t i = 0; i < g.size() && is_clamped; ++i) {
    const float gate = g[i] > 7 ? 7 : g[i], up = u[i] > 7 ? 7 : u[i] < -7 ? -7 : u[i];
    y.push_back((up + 1.0f) * (gate / (1.0f + math::exp(-(gate * 1.702f)))));
  }
  if (is_clamped) return y;
  for (size_t i = 0; i < g.size(); ++i) y.push_back((g[i] / (1.0f + math::exp(-g[i]))) * u[i]);
  return y;
}

}  // namespace invar::scalar
