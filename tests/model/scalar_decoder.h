// A decoder evaluated one number at a time from the definitions of numerics 1 to 5: no batch, no
// cache, no blocks, no kernels. In bf16, on one sequence.
#pragma once

#include <vector>

#include "model/arithmetic.h"
#include "model/families/tensor_table.h"
#include "model/rope_table.h"
#include "support/scalar_math.h"
#include "weights/tensor_source.h"

namespace invar::testing_model {

class ScalarDecoder {
 public:
  using Floats = scalar::Floats;
  using Halves = scalar::Halves;

  ScalarDecoder(const DecoderSpec& spec, const TensorSource& source, Order order)
      : spec_(spec), source_(source), order_(order) {}

  // Logits at every position.
  std::vector<Floats> logits(const std::vector<int32_t>& tokens) const {
    const Halves table = tensor<bf16_t>("model.embed_tokens.weight");
    std::vector<Floats> h;
    for (const int32_t token : tokens) {
      Floats& row = h.emplace_back();
      for (int i = 0; i < spec_.hidden; ++i)
        row.push_back((bf16_to_f32(table[static_cast<size_t>(token * spec_.hidden + i)]) + 0.0f) *
                      spec_.embedding_scale);
    }
    for (int layer = 0; layer < spec_.layers; ++layer) {
      const std::vector<Floats> before = h;
      const LayerSpec parts = spec_.layer(layer);
      parts.attention()->latent ? latent_attention(layer, h) : attention(layer, h);
      if (const DenseFfnSpec* ffn = parts.ffn())
        feed_forward(layer, ffn->is_parallel ? before : h, h);
      if (parts.experts()) experts(layer, h);
    }
    const Floats norm = tensor<float>("model.norm.weight"), bias = tensor<float>("model.norm.bias");
    const Halves head = tensor<bf16_t>("lm_head.weight");
    for (Floats& row : h) {
      row = product(head, scalar::rounded(normed(row, norm, bias)), {});
      for (float& x : row) {
        if (spec_.logits_divisor != 1) x = x / spec_.logits_divisor;
        const float cap = spec_.logits_cap;
        if (cap > 0) x = cap * scalar::half_tanh((x + x) / cap);
      }
    }
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

  // RMSNorm, or with a bias LayerNorm.
  Floats normed(const Floats& x, const Floats& weight, const Floats& bias = {}) const {
    return bias.empty() ? scalar::normed(x, weight, spec_.norm_eps)
                        : scalar::centered(x, weight, bias, spec_.norm_eps);
  }
  Floats product(const Halves& w, const Halves& x, const Floats& bias, int split_k = 1) const {
    return scalar::product(order_, w, x, bias, split_k);
  }

  // What a part reads of a row, and what becomes of what it adds.
  Halves read(const Floats& row, NormPlace norms, const Floats& weight, const Floats& bias) const {
    return scalar::rounded(is_before(norms) ? normed(row, weight, bias) : row);
  }
  void add(Floats& row, const Floats& y, NormPlace norms, const Floats& weight) const {
    const Floats added = is_after(norms) ? normed(y, weight) : y;
    for (size_t i = 0; i < row.size(); ++i) row[i] = row[i] + added[i] * spec_.residual_scale;
  }

  void attention(int layer, std::vector<Floats>& h) const {
    const std::string at = "model.layers." + std::to_string(layer) + ".";
    const AttentionSpec spec = *spec_.layer(layer).attention();
    const auto weight = [&](const char* name) { return tensor<bf16_t>(at + name); };
    const auto vector = [&](const char* name) { return tensor<float>(at + name); };
    const Halves wq = weight("self_attn.q_proj.weight"), wk = weight("self_attn.k_proj.weight");
    const Halves wv = weight("self_attn.v_proj.weight"), wo = weight("self_attn.o_proj.weight");
    std::vector<Halves> q, k, v;
    for (size_t t = 0; t < h.size(); ++t) {
      const Halves x =
          read(h[t], spec.norms, vector("input_layernorm.weight"), vector("input_layernorm.bias"));
      const int position = static_cast<int>(t);
      Floats queries = product(wq, x, vector("self_attn.q_proj.bias"));
      for (float& one : queries) one = one * growth(spec, position);
      q.push_back(heads(queries, position, spec, vector("self_attn.q_norm.weight")));
      k.push_back(heads(product(wk, x, vector("self_attn.k_proj.bias")), position, spec,
                        vector("self_attn.k_norm.weight")));
      v.push_back(values(product(wv, x, vector("self_attn.v_proj.bias")), spec));
    }
    const Floats norm = vector("post_attention_layernorm.weight");
    const Floats sinks = vector("self_attn.sinks"), o_bias = vector("self_attn.o_proj.bias");
    for (size_t t = 0; t < h.size(); ++t) {
      Floats attended;
      for (int head = 0; head < spec_.heads; ++head) {
        const int e = spec_.head_dim;
        const int first = head / (spec_.heads / spec_.kv_heads_of(spec)) * e;
        Floats one = scalar::attend(
            order_, &q[t][static_cast<size_t>(head * e)], k, v, e, first, static_cast<int>(t),
            scalar::first_seen(static_cast<int>(t), spec.window, spec.chunk),
            {spec.score_scale, spec.score_cap,
             sinks.empty() ? std::nullopt : std::optional(sinks[static_cast<size_t>(head)])});
        if (spec.value_dim) one.resize(static_cast<size_t>(spec.value_dim));
        attended.insert(attended.end(), one.begin(), one.end());
      }
      add(h[t],
          product(wo, scalar::rounded(attended), o_bias, attention_output_split_k(spec_, spec)),
          spec.norms, norm);
    }
  }

  // Numerics 4.2.
  void latent_attention(int layer, std::vector<Floats>& h) const {
    const std::string at = "model.layers." + std::to_string(layer) + ".self_attn.";
    const AttentionSpec spec = *spec_.layer(layer).attention();
    const LatentSpec l = *spec.latent;
    const int e = l.rank + l.rope;
    const auto weight = [&](const std::string& name) {
      return tensor<bf16_t>(at + name + ".weight");
    };
    const auto head_weight = [&](int head, const char* name) {
      return weight("head." + std::to_string(head) + "." + name);
    };
    // What turns begins both halves.
    const auto placed = [&](Floats latent, const Floats& turning) {
      latent.insert(latent.begin(), turning.begin(), turning.begin() + l.rope / 2);
      latent.insert(latent.begin() + e / 2, turning.begin() + l.rope / 2, turning.end());
      return latent;
    };
    const auto part = [](const Floats& x, int first, int count) {
      return Floats(x.begin() + first, x.begin() + first + count);
    };
    std::vector<Halves> q, k, v;
    for (size_t t = 0; t < h.size(); ++t) {
      const int position = static_cast<int>(t);
      const Halves x =
          scalar::rounded(normed(h[t], tensor<float>("model.layers." + std::to_string(layer) +
                                                     ".input_layernorm.weight")));
      const Halves of_queries =
          l.query_rank ? scalar::rounded(normed(product(weight("q_a_proj"), x, {}),
                                                tensor<float>(at + "q_a_layernorm.weight")))
                       : x;
      const Halves still = scalar::rounded(product(weight("still_q_proj"), of_queries, {}));
      const Floats turning = product(weight("turning_q_proj"), of_queries, {});
      const Floats down = product(weight("kv_a_proj_with_mqa"), x, {});
      const Floats latent =
          normed(part(down, 0, l.rank), tensor<float>(at + "kv_a_layernorm.weight"));
      Halves& row = q.emplace_back();
      for (int head = 0; head < spec_.heads; ++head) {
        const Halves own(still.begin() + head * l.nope, still.begin() + (head + 1) * l.nope);
        const Halves one = heads(placed(product(head_weight(head, "k_up_proj"), own, {}),
                                        part(turning, head * l.rope, l.rope)),
                                 position, spec, {});
        row.insert(row.end(), one.begin(), one.end());
      }
      k.push_back(heads(placed(latent, part(down, l.rank, l.rope)), position, spec, {}));
      v.push_back(scalar::rounded(latent));
      v.back().resize(static_cast<size_t>(e));
    }
    for (size_t t = 0; t < h.size(); ++t) {
      Floats values;
      for (int head = 0; head < spec_.heads; ++head) {
        Halves attended = scalar::rounded(scalar::attend(
            order_, &q[t][static_cast<size_t>(head * e)], k, v, e, 0, static_cast<int>(t),
            scalar::first_seen(static_cast<int>(t), spec.window, spec.chunk),
            {spec.score_scale, spec.score_cap}));
        attended.resize(static_cast<size_t>(l.rank));
        const Floats one = product(head_weight(head, "v_up_proj"), attended, {});
        values.insert(values.end(), one.begin(), one.end());
      }
      add(h[t],
          product(weight("o_proj"), scalar::rounded(values), {},
                  attention_output_split_k(spec_, spec)),
          NormPlace::before, {});
    }
  }

  // A row's values, scaled, each with zeros behind it where it is narrower than a key.
  Halves values(const Floats& product, const AttentionSpec& spec) const {
    const int width = spec.value_dim ? spec.value_dim : spec_.head_dim;
    Halves out;
    for (size_t i = 0; i < product.size(); ++i) {
      out.push_back(f32_to_bf16(product[i] * spec.value_scale));
      if ((i + 1) % static_cast<size_t>(width) == 0)
        out.resize(out.size() + static_cast<size_t>(spec_.head_dim - width));
    }
    return out;
  }

  // The factor of queries, in layers where nothing turns and no head has a norm.
  static float growth(const AttentionSpec& spec, int position) {
    if (!spec.growth) return 1;
    const double steps = std::floor((position + 1) / spec.growth->step);
    return static_cast<float>(1 + spec.growth->scale * math::log(1 + steps));
  }

  // Every head of a row normalised, rotated and rounded.
  Halves heads(const Floats& product, int position, const AttentionSpec& spec,
               const Floats& norm) const {
    const int e = spec_.head_dim;
    const Floats row = spec_.joint_qk_norm ? normed(product, norm) : product;
    const bool by_heads = !norm.empty() && !spec_.joint_qk_norm;
    Halves out;
    for (size_t begin = 0; begin < row.size(); begin += static_cast<size_t>(e)) {
      Floats x(row.begin() + static_cast<int64_t>(begin),
               row.begin() + static_cast<int64_t>(begin) + e);
      if (by_heads && !spec_.late_qk_norm) x = normed(x, norm);
      if (spec.rope)
        x = scalar::turned(x, position, rotary_frequencies(spec.rope, e),
                           spec.rope->attention_factor);
      if (by_heads && spec_.late_qk_norm) x = normed(x, norm);
      if (spec.has_unit_heads) x = normed(x, Floats(x.size(), 1.0f));
      for (const float value : x) out.push_back(f32_to_bf16(value));
    }
    return out;
  }

  void feed_forward(int layer, const std::vector<Floats>& from, std::vector<Floats>& h) const {
    const std::string at = "model.layers." + std::to_string(layer) + ".";
    const NormPlace of_attention = spec_.layer(layer).attention()->norms;
    const DenseFfnSpec spec = *spec_.layer(layer).ffn();
    const Halves gate = tensor<bf16_t>(at + "mlp.gate_proj.weight");
    const Halves up = tensor<bf16_t>(at + "mlp.up_proj.weight");
    const Halves down = tensor<bf16_t>(at + "mlp.down_proj.weight");
    const Floats before =
        tensor<float>(at + (is_after(of_attention) ? "pre_feedforward_layernorm.weight"
                                                   : "post_attention_layernorm.weight"));
    const Floats after = tensor<float>(at + "post_feedforward_layernorm.weight");
    const Floats bias = tensor<float>(at + "post_attention_layernorm.bias");
    for (size_t t = 0; t < h.size(); ++t) {
      const Halves x = read(from[t], spec.norms, before, bias);
      const Floats g = product(gate, x, {}), u = product(up, x, {});
      Floats gated;
      for (size_t i = 0; i < u.size(); ++i)
        gated.push_back(spec.is_gated ? scalar::bent(spec.curve, g[i]) * u[i]
                                      : scalar::bent(spec.curve, u[i]));
      add(h[t], product(down, scalar::rounded(gated), {}, down_split_k(spec.width)), spec.norms,
          after);
    }
  }

  // down(silu(gate(x)) * up(x)) of the tensors with this beginning, or that of clamped pairs.
  Floats gated_network(const std::string& at, const Halves& x, int split_k,
                       Nonlinearity curve = Nonlinearity::silu) const {
    const auto of = [&](const char* name, const Halves& from, int in) {
      return product(tensor<bf16_t>(at + name + ".weight"), from,
                     tensor<float>(at + name + ".bias"), in);
    };
    const Floats gated =
        scalar::gated(of("gate_proj", x, 1), of("up_proj", x, 1), curve == Nonlinearity::clamped);
    return of("down_proj", scalar::rounded(gated), split_k);
  }

  static Halves times(Halves x, float weight) {
    for (bf16_t& one : x) one = f32_to_bf16(bf16_to_f32(one) * weight);
    return x;
  }

  void experts(int layer, std::vector<Floats>& h) const {
    const std::string at = "model.layers." + std::to_string(layer) + ".";
    const ExpertsSpec spec = *spec_.layer(layer).experts();
    const Floats norm = tensor<float>(at + "post_attention_layernorm.weight");
    const Halves router = tensor<bf16_t>(at + "mlp.gate.weight");
    const Halves gate = tensor<bf16_t>(at + "mlp.shared_expert_gate.weight");
    const Floats bias = tensor<float>(at + "mlp.gate.e_score_correction_bias");
    const Floats router_bias = tensor<float>(at + "mlp.gate.bias");
    for (Floats& row : h) {
      const Halves x = scalar::rounded(normed(row, norm));
      Floats sum(row.size(), 0.0f);
      for (const auto& [e, weight] :
           scalar::routed(spec.routing, product(router, x, router_bias), bias)) {
        const Halves y = scalar::rounded(
            gated_network(at + "mlp.experts." + std::to_string(e) + ".",
                          spec.weighs_inputs ? times(x, weight) : x, 1, spec.curve));
        for (size_t i = 0; i < sum.size(); ++i)
          sum[i] = std::fma(spec.weighs_inputs ? 1.0f : weight, bf16_to_f32(y[i]), sum[i]);
      }
      if (spec.shared_width > 0) {
        const Floats y =
            gated_network(at + "mlp.shared_expert.", x, down_split_k(spec.shared_width));
        const float share =
            spec.shared_gate ? 1.0f / (1.0f + math::exp(-product(gate, x, {})[0])) : 1.0f;
        for (size_t i = 0; i < sum.size(); ++i) sum[i] = std::fma(share, y[i], sum[i]);
      }
      add(row, sum, NormPlace::before, {});
    }
  }

  const DecoderSpec& spec_;
  const TensorSource& source_;
  const Order order_;
};

}  // namespace invar::testing_model
