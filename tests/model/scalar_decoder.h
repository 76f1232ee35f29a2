// A decoder evaluated one number at a time from the definitions of numerics 1 to 5: no batch, no
// cache, no blocks, no kernels. In bf16, on one sequence.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/layout.h"
#include "model/arithmetic.h"
#include "model/families/tensor_table.h"
#include "model/rope_table.h"
#include "numerics/math.h"
#include "numerics/orders.h"
#include "weights/tensor_source.h"

namespace invar::testing_model {

class ScalarDecoder {
 public:
  using Floats = std::vector<float>;
  using Halves = std::vector<bf16_t>;

  ScalarDecoder(const DecoderSpec& spec, const TensorSource& source, Order order)
      : spec_(spec), source_(source), order_(order) {}

  // Logits at every position.
  std::vector<Floats> logits(const std::vector<int32_t>& tokens) const {
    const Halves table = tensor<bf16_t>("model.embed_tokens.weight");
    std::vector<Floats> h;
    for (const int32_t token : tokens) {
      Floats& row = h.emplace_back();
      for (int i = 0; i < spec_.hidden; ++i)
        row.push_back(bf16_to_f32(table[static_cast<size_t>(token * spec_.hidden + i)]) + 0.0f);
    }
    for (int layer = 0; layer < spec_.layers; ++layer) {
      attention(layer, h);
      if (spec_.layer(layer).ffn.width > 0) feed_forward(layer, h);
    }
    const Floats norm = tensor<float>("model.norm.weight");
    const Halves head = tensor<bf16_t>("lm_head.weight");
    for (Floats& row : h) row = product(head, rounded(normed(row, norm)), {});
    return h;
  }

 private:
  template <typename T>
  std::vector<T> tensor(const std::string& name) const {
    if (!source_.has(name)) return {};
    std::vector<T> values(static_cast<size_t>(source_.info(name).elements()));
    const DType as = std::is_same_v<T, bf16_t> ? DType::bf16 : DType::f32;
    source_.read(name, 0, std::ssize(values), as, values.data());
    return values;
  }

  static Halves rounded(const Floats& x) {
    Halves y;
    for (const float v : x) y.push_back(f32_to_bf16(v));
    return y;
  }

  Floats normed(const Floats& x, const Floats& weight) const {
    const float mean = orders::sum64_squares(x) / static_cast<float>(x.size());
    const float rs = 1.0f / std::sqrt(mean + spec_.norm_eps);
    Floats y;
    for (size_t i = 0; i < x.size(); ++i) y.push_back((x[i] * rs) * weight[i]);
    return y;
  }

  Floats product(const Halves& w, const Halves& x, const Floats& bias, int runs = 1) const {
    Floats y;
    const int64_t k = std::ssize(x);
    for (int64_t n = 0; n < std::ssize(w) / k; ++n) {
      y.push_back(orders::dot(order_, x.data(), &w[static_cast<size_t>(n * k)], k, runs));
      if (!bias.empty()) y.back() = y.back() + bias[static_cast<size_t>(n)];
    }
    return y;
  }

  // What a part reads of a row, and what becomes of what it adds.
  Halves read(const Floats& row, NormPlace norms, const Floats& weight) const {
    return rounded(is_before(norms) ? normed(row, weight) : row);
  }
  void add(Floats& row, const Floats& y, NormPlace norms, const Floats& weight) const {
    const Floats added = is_after(norms) ? normed(y, weight) : y;
    for (size_t i = 0; i < row.size(); ++i) row[i] = row[i] + added[i];
  }

  void attention(int layer, std::vector<Floats>& h) const {
    const std::string at = "model.layers." + std::to_string(layer) + ".";
    const AttentionSpec spec = spec_.layer(layer).attention;
    const auto weight = [&](const char* name) { return tensor<bf16_t>(at + name); };
    const auto vector = [&](const char* name) { return tensor<float>(at + name); };
    const Halves wq = weight("self_attn.q_proj.weight"), wk = weight("self_attn.k_proj.weight");
    const Halves wv = weight("self_attn.v_proj.weight"), wo = weight("self_attn.o_proj.weight");
    std::vector<Halves> q, k, v;
    for (size_t t = 0; t < h.size(); ++t) {
      const Halves x = read(h[t], spec.norms, vector("input_layernorm.weight"));
      const int position = static_cast<int>(t);
      q.push_back(heads(product(wq, x, vector("self_attn.q_proj.bias")), position, spec,
                        vector("self_attn.q_norm.weight")));
      k.push_back(heads(product(wk, x, vector("self_attn.k_proj.bias")), position, spec,
                        vector("self_attn.k_norm.weight")));
      v.push_back(rounded(product(wv, x, vector("self_attn.v_proj.bias"))));
    }
    const Floats norm = vector("post_attention_layernorm.weight");
    for (size_t t = 0; t < h.size(); ++t) {
      Floats attended;
      for (int head = 0; head < spec_.heads; ++head) {
        const Floats one = attend(q[t], k, v, static_cast<int>(t), head, spec.window);
        attended.insert(attended.end(), one.begin(), one.end());
      }
      add(h[t], product(wo, rounded(attended), {}, attention_output_runs(spec_)), spec.norms, norm);
    }
  }

  // Every head of a row normalised, rotated and rounded.
  Halves heads(const Floats& row, int position, const AttentionSpec& spec,
               const Floats& norm) const {
    const int e = spec_.head_dim;
    Halves out;
    for (size_t begin = 0; begin < row.size(); begin += static_cast<size_t>(e)) {
      Floats x(row.begin() + static_cast<int64_t>(begin),
               row.begin() + static_cast<int64_t>(begin) + e);
      if (!norm.empty()) x = normed(x, norm);
      if (spec.rope) x = turned(x, position, rotary_frequencies(spec.rope, e));
      for (const float value : x) out.push_back(f32_to_bf16(value));
    }
    return out;
  }

  static Floats turned(const Floats& x, int position, const std::vector<double>& frequencies) {
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

  // Numerics 4.1.
  Floats attend(const Halves& q, const std::vector<Halves>& k, const std::vector<Halves>& v, int p,
                int head, int window) const {
    const int e = spec_.head_dim, first = head / (spec_.heads / spec_.kv_heads) * e;
    const float c = static_cast<float>(0x1.71547652b82fep+0 / std::sqrt(static_cast<double>(e)));
    const int begin = window > 0 ? std::max(0, p - window + 1) : 0;
    float m = 0, l = 0;
    Floats o;
    for (int split = begin / kSplitSlots; split * kSplitSlots <= p; ++split) {
      Floats d(kSplitSlots, -INFINITY), share(kSplitSlots, 0.0f);
      for (int j = 0; j < kSplitSlots; ++j)
        if (const int at = split * kSplitSlots + j; begin <= at && at <= p)
          d[j] = orders::dot(order_, &q[static_cast<size_t>(head * e)], &k[at][first], e);
      const float ms = *std::ranges::max_element(d) * c;
      for (int j = 0; j < kSplitSlots; ++j)
        if (d[j] != -INFINITY) share[j] = math::exp2(std::fma(d[j], c, -ms));
      const float ls = orders::sum64(share);
      const Halves p_of = rounded(share);
      Floats os;
      for (int i = 0; i < e; ++i) {
        Halves column(kSplitSlots, 0);
        for (int j = 0; j < kSplitSlots; ++j)
          if (const int at = split * kSplitSlots + j; begin <= at && at <= p)
            column[j] = v[at][static_cast<size_t>(first + i)];
        os.push_back(orders::dot(order_, p_of.data(), column.data(), kSplitSlots));
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

  void feed_forward(int layer, std::vector<Floats>& h) const {
    const std::string at = "model.layers." + std::to_string(layer) + ".";
    const LayerSpec spec = spec_.layer(layer);
    const Halves gate = tensor<bf16_t>(at + "mlp.gate_proj.weight");
    const Halves up = tensor<bf16_t>(at + "mlp.up_proj.weight");
    const Halves down = tensor<bf16_t>(at + "mlp.down_proj.weight");
    const Floats before =
        tensor<float>(at + (is_after(spec.attention.norms) ? "pre_feedforward_layernorm.weight"
                                                           : "post_attention_layernorm.weight"));
    const Floats after = tensor<float>(at + "post_feedforward_layernorm.weight");
    for (Floats& row : h) {
      const Halves x = read(row, spec.ffn.norms, before);
      const Floats g = product(gate, x, {}), u = product(up, x, {});
      Floats gated;
      for (size_t i = 0; i < g.size(); ++i)
        gated.push_back((g[i] / (1.0f + math::exp(-g[i]))) * u[i]);
      add(row, product(down, rounded(gated), {}, down_runs(spec.ffn.width)), spec.ffn.norms, after);
    }
  }

  const DecoderSpec& spec_;
  const TensorSource& source_;
  const Order order_;
};

}  // namespace invar::testing_model
