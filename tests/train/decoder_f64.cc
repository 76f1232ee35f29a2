#include "decoder_f64.h"

#include <algorithm>
#include <cmath>

#include "heads_f64.h"
#include "latent_f64.h"
#include "model/families/family_source.h"
#include "model/rope_table.h"
#include "model/taps.h"
#include "route_f64.h"

namespace invar {

namespace {

using Vector = std::vector<double>;
using Rows = std::vector<Vector>;

class Model {
 public:
  Model(const DecoderSpec& spec, const ParameterLayout& layout, const Vector& parameters)
      : spec_(spec), layout_(layout), parameters_(parameters) {
    for (int layer = 0; layer < spec.all_layers(); ++layer) {
      cos_.emplace_back(), sin_.emplace_back();
      if (!spec.layer(layer).attention()) continue;
      for (const double f : rotary_frequencies(spec.layer(layer).attention()->rope, spec.head_dim))
        for (int t = 0; t < spec.max_positions; ++t) {
          cos_.back().push_back(std::cos(t * f));
          sin_.back().push_back(std::sin(t * f));
        }
    }
  }

  // The residual stream after the layers. Rows go through these experts, if any are named.
  Rows hidden(const std::vector<int32_t>& tokens, const ExpertsOfRows& chosen = {}) const {
    Rows h = embedded(tokens);
    for (int layer = 0; layer < spec_.layers; ++layer) {
      const auto of_layer = chosen.find(layer);
      block(h, layer, of_layer == chosen.end() ? std::span<const int32_t>() : of_layer->second);
    }
    return h;
  }

  Rows logits(const Rows& h) const { return head(norms(h, TensorRole::final_norm)); }

  // Sum over packed rows of n positions, which follow each other through the texts so far, and over
  // layers: E times the sum over experts of the share of positions that chose one and its mean
  // score.
  double balance(int64_t n) const {
    double loss = 0;
    for (const auto& [layer, routes] : routes_) {
      const auto experts = static_cast<size_t>(spec_.layer(layer).experts()->routing.experts);
      for (size_t begin = 0; begin < routes.size(); begin += static_cast<size_t>(n))
        for (size_t e = 0; e < experts; ++e) {
          double chosen = 0, score = 0;
          for (size_t t = begin; t < begin + static_cast<size_t>(n); ++t) {
            chosen += routes[t].weights[e] != 0;
            score += routes[t].scores[e];
          }
          loss += static_cast<double>(experts) * (chosen / n) * (score / n);
        }
    }
    return loss;
  }

  // Those of the module that predicts one token further.
  Rows mtp_logits(const Rows& h, const std::vector<int32_t>& next,
                  const std::map<int, std::vector<float>>& own) const {
    const int layer = spec_.layers;
    Rows joined = norms(embedded(next), TensorRole::embedding_norm, layer);
    Rows read = module_reads_output(spec_) ? norms(h, TensorRole::final_norm) : h;
    for (const auto& [t, left] : own) read[t].assign(left.begin(), left.end());
    const Rows second = norms(read, TensorRole::hidden_norm, layer);
    for (size_t t = 0; t < h.size(); ++t)
      joined[t].insert(joined[t].end(), second[t].begin(), second[t].end());
    Rows x = product(joined, TensorRole::projection, layer, spec_.hidden);
    block(x, layer);
    return head(norms(x, TensorRole::mtp_head_norm, layer));
  }

 private:
  Rows embedded(const std::vector<int32_t>& tokens) const {
    Rows h;
    for (const int32_t token : tokens) {
      const double* row = at(TensorRole::embedding) + int64_t{token} * spec_.hidden;
      h.emplace_back(row, row + spec_.hidden);
      for (double& x : h.back()) x *= spec_.embedding_scale;
    }
    return h;
  }

  void block(Rows& h, int layer, std::span<const int32_t> chosen = {}) const {
    using enum TensorRole;
    const Rows before = h;
    const LayerSpec one = spec_.layer(layer);
    if (one.attention()) {
      const Rows attended =
          one.attention()->latent ? latent_attention(h, layer) : attention(h, layer);
      add(h,
          is_after(one.attention()->norms) ? norms(attended, attention_out_norm, layer) : attended);
    } else if (one.find<ShortConvSpec>()) {
      add(h, short_conv(h, layer));
    } else if (taps_of(one) > 0) {
      add(h, recurrent(h, layer));
    }
    if (one.experts()) return add(h, experts(h, layer, chosen));
    if (!one.ffn()) return;
    const Rows made = ffn(one.ffn()->is_parallel ? before : h, layer);
    add(h, is_after(one.ffn()->norms) ? norms(made, ffn_out_norm, layer) : made);
  }

  Rows head(const Rows& normed) const {
    const TensorRole head = spec_.tied_head ? TensorRole::embedding : TensorRole::head;
    return product(normed, head, -1, spec_.vocab);
  }

  const double* at(TensorRole role, int layer = -1) const {
    const int64_t offset = layout_.offset(role, layer);
    return offset < 0 ? nullptr : &parameters_[offset];
  }

  static void add(Rows& h, const Rows& x) {
    for (size_t t = 0; t < h.size(); ++t)
      for (size_t i = 0; i < h[t].size(); ++i) h[t][i] += x[t][i];
  }

  Vector norm(const Vector& x, const double* weight, double eps = 0) const {
    double sum = 0;
    for (const double v : x) sum += v * v;
    const double rs = 1 / std::sqrt(sum / x.size() + (eps > 0 ? eps : spec_.norm_eps));
    Vector y(x.size());
    for (size_t i = 0; i < x.size(); ++i) y[i] = x[i] * rs * weight[i];
    return y;
  }

  Vector layer_norm(const Vector& x, const double* weight, const double* bias) const {
    double sum = 0, squares = 0;
    for (const double v : x) sum += v;
    const double mean = sum / x.size();
    for (const double v : x) squares += (v - mean) * (v - mean);
    const double rs = 1 / std::sqrt(squares / x.size() + spec_.norm_eps);
    Vector y(x.size());
    for (size_t i = 0; i < x.size(); ++i) y[i] = (x[i] - mean) * rs * weight[i] + bias[i];
    return y;
  }

  // x itself where the layer has no such norm.
  Rows norms(const Rows& x, TensorRole role, int layer = -1) const {
    using enum TensorRole;
    const TensorRole bias = role == input_norm  ? input_norm_bias
                            : role == post_norm ? post_norm_bias
                                                : final_norm_bias;
    Rows y;
    for (const Vector& row : x)
      y.push_back(!at(role, layer) ? row
                  : spec_.norm == NormKind::layer
                      ? layer_norm(row, at(role, layer), at(bias, layer))
                      : norm(row, at(role, layer)));
    return y;
  }

  Rows product(const Rows& x, TensorRole role, int layer, int64_t outputs,
               const double* bias = nullptr) const {
    const double* w = at(role, layer);
    Rows y;
    for (const Vector& row : x) {
      y.emplace_back(outputs, 0.0);
      for (int64_t n = 0; n < outputs; ++n) {
        double sum[4] = {bias ? bias[n] : 0};
        for (size_t k = 0; k < row.size(); ++k) sum[k % 4] += row[k] * w[n * row.size() + k];
        y.back()[n] = (sum[0] + sum[1]) + (sum[2] + sum[3]);
      }
    }
    return y;
  }

  // Head `head` of row t: normalised when the family does that, rotated.
  Vector head_of(const Rows& x, int64_t t, int head, const double* weight, int layer) const {
    const int e = spec_.head_dim;
    Vector v(x[t].begin() + head * e, x[t].begin() + (head + 1) * e);
    if (weight && !spec_.joint_qk_norm) v = norm(v, weight);
    for (int i = 0; i < e / 2; ++i) {
      const int64_t place = i * spec_.max_positions + t;
      const double c = cos_[layer][place], s = sin_[layer][place];
      const double a = v[i], b = v[i + e / 2];
      v[i] = a * c - b * s;
      v[i + e / 2] = b * c + a * s;
    }
    return v;
  }

  Rows attention(const Rows& h, int layer) const {
    const Rows x = norms(h, TensorRole::input_norm, layer);
    using enum TensorRole;
    Rows queries = product(x, q, layer, spec_.query_width(), at(q_bias, layer));
    Rows keys = product(x, k, layer, spec_.kv_width(), at(k_bias, layer));
    if (spec_.joint_qk_norm)
      queries = norms(queries, q_norm, layer), keys = norms(keys, k_norm, layer);
    const Rows values = product(x, v, layer, spec_.kv_width(), at(v_bias, layer));
    const int e = spec_.head_dim, window = spec_.layer(layer).attention()->window;
    const double asked = spec_.layer(layer).attention()->score_scale;
    const double scale = asked > 0 ? asked : 1 / std::sqrt(e);
    const int64_t count = std::ssize(h);
    Rows out(h.size(), Vector(spec_.query_width()));
    for (int head = 0; head < spec_.heads; ++head) {
      const int group = head / (spec_.heads / spec_.kv_heads);
      Rows rotated;
      for (int64_t t = 0; t < count; ++t)
        rotated.push_back(head_of(keys, t, group, at(k_norm, layer), layer));
      for (int64_t t = 0; t < count; ++t) {
        const Vector query = head_of(queries, t, head, at(q_norm, layer), layer);
        Vector p(t + 1);
        double sum = 0;
        for (int64_t j = 0; j <= t; ++j) {
          if (window > 0 && j <= t - window) continue;
          double score = 0;
          for (int i = 0; i < e; ++i) score += query[i] * rotated[j][i];
          sum += p[j] = std::exp(score * scale);
        }
        for (int64_t j = 0; j <= t; ++j)
          for (int i = 0; i < e; ++i) out[t][head * e + i] += p[j] / sum * values[j][group * e + i];
      }
    }
    if (spec_.layer(layer).attention()->has_output_gate) {
      Rows gates = product(x, q_gate, layer, spec_.query_width());
      for (Vector& row : gates)
        for (double& z : row) z = 1 / (1 + std::exp(-z));
      multiply(out, gates);
    }
    return product(out, o, layer, spec_.hidden, at(o_bias, layer));
  }

  Rows latent_attention(const Rows& h, int layer) const {
    using enum TensorRole;
    const AttentionSpec spec = *spec_.layer(layer).attention();
    const LatentSpec& l = *spec.latent;
    const Rows x = norms(h, input_norm, layer);
    const auto normed = [&](Rows rows, TensorRole role) {
      for (Vector& row : rows) row = norm(row, at(role, layer), l.norm_eps);
      return rows;
    };
    const Rows made_of =
        l.query_rank ? normed(product(x, query_down, layer, l.query_rank), query_norm) : x;
    Rows latents = product(x, latent_down, layer, l.rank + l.rope), beside;
    for (Vector& row : latents) {
      beside.emplace_back(row.begin() + l.rank, row.end());
      row.resize(static_cast<size_t>(l.rank));
    }
    const LatentF64 of{.heads = spec_.heads,
                       .rank = l.rank,
                       .rope = l.rope,
                       .nope = l.nope,
                       .value = l.value,
                       .scale = spec.score_scale,
                       .cos = cos_[layer],
                       .sin = sin_[layer],
                       .stride = spec_.max_positions,
                       .key_up = at(key_up, layer),
                       .value_up = at(value_up, layer)};
    const Rows out = of.attend(product(made_of, still_query, layer, spec_.heads * l.nope),
                               product(made_of, turning_query, layer, spec_.heads * l.rope),
                               normed(latents, latent_norm), beside);
    return product(out, o, layer, spec_.hidden);
  }

  // Sums of a row's last inputs, each times its tap's weight, of the channels of one role.
  Rows convolved(const Rows& x, int64_t first, int64_t channels, TensorRole role, int layer) const {
    const int taps = taps_of(spec_.layer(layer));
    const int64_t step = (channels + 15) / 16 * 16;
    Rows y(x.size(), Vector(static_cast<size_t>(channels)));
    for (int64_t t = 0; t < std::ssize(x); ++t)
      for (int m = 0; m < taps; ++m)
        if (const int64_t from = t - (taps - 1 - m); from >= 0)
          for (int64_t c = 0; c < channels; ++c)
            y[t][c] += at(role, layer)[m * step + c] * x[from][first + c];
    return y;
  }

  // o(conv(x * factor) * gate)
  Rows short_conv(const Rows& h, int layer) const {
    using enum TensorRole;
    const Rows normed = norms(h, input_norm, layer);
    const Rows factors = product(normed, conv_factor, layer, spec_.hidden);
    const Rows gates = product(normed, conv_gate, layer, spec_.hidden);
    Rows x = product(normed, conv_input, layer, spec_.hidden);
    multiply(x, factors);
    Rows y = convolved(x, 0, spec_.hidden, conv_tap, layer);
    multiply(y, gates);
    return product(y, conv_o, layer, spec_.hidden);
  }

  // A layer of heads with states, whatever their recurrence is.
  HeadsF64 heads_of(int layer) const {
    using enum TensorRole;
    const LayerSpec one = spec_.layer(layer);
    HeadsF64 heads{.bias = at(decay_bias, layer),
                   .rate = at(decay_rate, layer),
                   .skip = at(skip, layer),
                   .norm = at(head_norm, layer)};
    if (const RecurrentSpec* r = one.find<RecurrentSpec>()) {
      heads.is_delta = true, heads.doubles = r->doubles;
      heads.key_heads = r->key_heads, heads.heads = heads.norm_groups = r->heads;
      heads.key_size = r->key_size, heads.value_size = r->value_size;
      heads.norm_eps = r->norm_eps > 0 ? r->norm_eps : spec_.norm_eps;
      return heads;
    }
    if (const ChannelDeltaSpec* c = one.find<ChannelDeltaSpec>()) {
      heads.is_delta = heads.has_channels = true;
      heads.key_heads = heads.heads = heads.norm_groups = c->heads;
      heads.key_size = heads.value_size = c->size, heads.norm_eps = spec_.norm_eps;
      return heads;
    }
    const StateSpaceSpec& s = *one.find<StateSpaceSpec>();
    heads.key_heads = s.groups, heads.heads = s.heads, heads.norm_groups = s.norm_groups;
    heads.key_size = s.state_size, heads.value_size = s.head_size;
    heads.least = s.least_step, heads.most = s.most_step, heads.norm_eps = spec_.norm_eps;
    return heads;
  }

  Rows recurrent(const Rows& h, int layer) const {
    using enum TensorRole;
    const HeadsF64 of = heads_of(layer);
    const int64_t keys = of.key_heads * of.key_size, values = of.heads * of.value_size;
    const Rows x = norms(h, input_norm, layer);
    const auto mixed = [&](TensorRole inputs, TensorRole taps, TensorRole bias, int64_t width) {
      Rows y = convolved(product(x, inputs, layer, width), 0, width, taps, layer);
      for (Vector& row : y)
        for (int64_t i = 0; i < width; ++i)
          row[i] = curve(Nonlinearity::silu, row[i] + (at(bias, layer) ? at(bias, layer)[i] : 0));
      return y;
    };
    RowsOfHeads rows{.queries = mixed(recurrent_q, conv_q, conv_q_bias, keys),
                     .keys = mixed(recurrent_k, conv_k, conv_k_bias, keys),
                     .values = mixed(recurrent_v, conv_v, conv_v_bias, values),
                     .decays = {},
                     .factors = {},
                     .gates = {}};
    // Channels have theirs by way of few numbers.
    const auto widened = [&](TensorRole down, TensorRole up, int64_t width) {
      return product(of.has_channels ? product(x, down, layer, of.key_size) : x, up, layer, width);
    };
    rows.decays = widened(decay_down, recurrent_decay, of.has_channels ? keys : of.heads);
    rows.gates = widened(gate_down, recurrent_gate, values);
    if (of.is_delta) rows.factors = product(x, recurrent_factor, layer, of.heads);
    return product(run_heads_f64(of, std::move(rows)), recurrent_o, layer, spec_.hidden);
  }

  static void multiply(Rows& x, const Rows& y) {
    for (size_t t = 0; t < x.size(); ++t)
      for (size_t i = 0; i < x[t].size(); ++i) x[t][i] *= y[t][i];
  }

  static double curve(Nonlinearity which, double x) {
    if (which == Nonlinearity::relu_squared) return x < 0 ? 0 : x * x;
    if (which == Nonlinearity::gelu) return x * 0.5 * std::erfc(-x * std::sqrt(0.5));
    const double z = 2 * std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x);
    return x / (1 + std::exp(-(which == Nonlinearity::silu ? x : z)));
  }

  Rows ffn(const Rows& h, int layer) const {
    const Rows x = norms(h, TensorRole::post_norm, layer);
    using enum TensorRole;
    const DenseFfnSpec spec = *spec_.layer(layer).ffn();
    if (!spec.is_gated) {
      Rows curved = product(x, up, layer, spec.width, at(up_bias, layer));
      for (Vector& row : curved)
        for (double& value : row) value = curve(spec.curve, value);
      return product(curved, down, layer, spec_.hidden, at(down_bias, layer));
    }
    Rows gates = product(x, gate, layer, spec.width, at(gate_bias, layer));
    const Rows ups = product(x, up, layer, spec.width, at(up_bias, layer));
    for (size_t t = 0; t < gates.size(); ++t)
      for (int f = 0; f < spec.width; ++f) gates[t][f] = curve(spec.curve, gates[t][f]) * ups[t][f];
    return product(gates, down, layer, spec_.hidden, at(down_bias, layer));
  }

  // The output of the expert that all rows go through, behind its gate.
  Rows shared_expert(const Rows& x, int layer, const ExpertsSpec& spec) const {
    using enum TensorRole;
    Rows gated = product(x, shared_gate, layer, spec.shared_width);
    const Rows ups = product(x, shared_up, layer, spec.shared_width);
    for (Vector& row : gated)
      for (double& value : row) value = curve(Nonlinearity::silu, value);
    multiply(gated, ups);
    Rows out = product(gated, shared_down, layer, spec_.hidden);
    if (!spec.shared_gate) return out;
    const Rows gates = product(x, shared_expert_gate, layer, 1);
    for (size_t t = 0; t < out.size(); ++t)
      for (double& value : out[t]) value /= 1 + std::exp(-gates[t][0]);
    return out;
  }

  Rows experts(const Rows& h, int layer, std::span<const int32_t> chosen) const {
    const Rows x = norms(h, TensorRole::post_norm, layer);
    using enum TensorRole;
    const ExpertsSpec spec = *spec_.layer(layer).experts();
    const int64_t d = spec_.hidden, f = spec.width;
    const Rows logits = product(x, router, layer, spec.routing.experts);
    const double* bias = spec.has_choice_bias ? at(choice_bias, layer) : nullptr;
    Rows out(h.size(), Vector(h[0].size()));
    if (spec.shared_width > 0) out = shared_expert(x, layer, spec);
    const auto of_row = static_cast<size_t>(chosen.empty() ? 0 : spec.routing.chosen);
    for (size_t t = 0; t < h.size(); ++t) {
      const auto ids = chosen.subspan(t * of_row, of_row);
      const Vector& weights =
          routes_[layer].emplace_back(route_f64(spec.routing, logits[t], bias, ids)).weights;
      for (size_t e = 0; e < weights.size(); ++e) {
        if (weights[e] == 0) continue;
        const int64_t from = static_cast<int64_t>(e) * ((d * f + 15) / 16 * 16);
        const double *g = at(expert_gate, layer) + from, *u = at(expert_up, layer) + from,
                     *w = at(expert_down, layer) + from;
        for (int64_t i = 0; i < f; ++i) {
          double gate = 0, up = 0;
          for (int64_t k = 0; k < d; ++k)
            gate += g[i * d + k] * x[t][k], up += u[i * d + k] * x[t][k];
          const double y = weights[e] * gate / (1 + std::exp(-gate)) * up;
          for (int64_t n = 0; n < d; ++n) out[t][n] += y * w[n * f + i];
        }
      }
    }
    return out;
  }

  const DecoderSpec& spec_;
  const ParameterLayout& layout_;
  const Vector& parameters_;
  std::vector<Vector> cos_, sin_;                        // [layer][pair][position]
  mutable std::map<int, std::vector<RouteF64>> routes_;  // by layer, of all texts so far
};

}  // namespace

namespace {

double cross_entropies(const Rows& logits, const std::vector<int32_t>& targets,
                       const std::vector<double>& weights) {
  double loss = 0;
  for (size_t t = 0; t < logits.size(); ++t) {
    if (weights[t] == 0) continue;
    double sum = 0;
    for (const double x : logits[t]) sum += std::exp(x);
    loss += weights[t] * (std::log(sum) - logits[t][targets[t]]);
  }
  return loss;
}

}  // namespace

std::vector<double> logits_f64(const DecoderSpec& spec, const ParameterLayout& layout,
                               const std::vector<double>& parameters,
                               const std::vector<int32_t>& tokens) {
  const Model model(spec, layout, parameters);
  std::vector<double> all;
  for (const Vector& row : model.logits(model.hidden(tokens)))
    all.insert(all.end(), row.begin(), row.end());
  return all;
}

double loss_f64(const DecoderSpec& spec, const ParameterLayout& layout,
                const std::vector<double>& parameters, const std::vector<Example>& examples,
                const BalanceLoss& balance) {
  const Model model(spec, layout, parameters);
  double loss = 0;
  for (const Example& example : examples) {
    const Rows h = model.hidden(example.tokens, example.experts);
    loss += cross_entropies(model.logits(h), example.targets, example.weights);
    if (spec.mtp_layers > 0)
      loss += cross_entropies(model.mtp_logits(h, example.next, example.own), example.mtp_targets,
                              example.mtp_weights);
  }
  if (balance.weight != 0) loss += balance.weight * model.balance(balance.rows);
  return loss;
}

}  // namespace invar
