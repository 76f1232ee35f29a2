// Parts of a decoder's layer, one number at a time from the definitions of numerics 1 to 5.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/layout.h"
#include "numerics/math.h"
#include "numerics/orders.h"

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
                      int runs = 1) {
  Floats y;
  const int64_t k = std::ssize(x);
  for (int64_t n = 0; n < std::ssize(w) / k; ++n) {
    y.push_back(orders::dot(order, x.data(), &w[static_cast<size_t>(n * k)], k, runs));
    if (!bias.empty()) y.back() = y.back() + bias[static_cast<size_t>(n)];
  }
  return y;
}

// One head, rotated.
inline Floats turned(const Floats& x, int position, const std::vector<double>& frequencies) {
  Floats y = x;
  const size_t half = frequencies.size();
  for (size_t i = 0; i < half; ++i) {
    const auto [sine, cosine] = math::sincos(position * frequencies[i]);
    const float s = static_cast<float>(sine), c = static_cast<float>(cosine);
    y[i] = std::fma(x[i], c, -(x[i + half] * s));
    y[i + half] = std::fma(x[i + half], c, x[i] * s);
  }
  return y;
}

// Of a query of one head at position p: that of keys and values which begins at element `first`.
inline Floats attend(Order order, const bf16_t* q, const std::vector<Halves>& k,
                     const std::vector<Halves>& v, int e, int first, int p, int window = 0) {
  const float c = static_cast<float>(0x1.71547652b82fep+0 / std::sqrt(static_cast<double>(e)));
  const int begin = window > 0 ? std::max(0, p - window + 1) : 0;
  float m = 0, l = 0;
  Floats o;
  for (int split = begin / kSplitSlots; split * kSplitSlots <= p; ++split) {
    const auto is_valid = [&](int j) { return begin <= j && j <= p; };
    Floats d(kSplitSlots, -INFINITY), share(kSplitSlots, 0.0f), os;
    for (int j = 0; j < kSplitSlots; ++j)
      if (const int at = split * kSplitSlots + j; is_valid(at))
        d[j] = orders::dot(order, q, &k[at][first], e);
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
  for (float& x : o) x = x / l;
  return o;
}

// silu(g) * u
inline Floats gated(const Floats& g, const Floats& u) {
  Floats y;
  for (size_t i = 0; i < g.size(); ++i) y.push_back((g[i] / (1.0f + math::exp(-g[i]))) * u[i]);
  return y;
}

}  // namespace invar::scalar
