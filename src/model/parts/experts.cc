// Many feed-forward networks, of which every row goes through a few that its router chooses, and
// perhaps one more that all rows go through (numerics 7). Which rows choose which is in
// experts_route.cc, how outputs are put together in experts_combine.cc, their backward in
// experts_backward.cc.
#include "model/parts/experts.h"

#include <algorithm>

#include "kernels/adapters.h"
#include "kernels/pack.h"
#include "model/parts/makers.h"

namespace invar {

using enum TensorRole;

Experts::Experts(const PartPlace& place)
    : PartOf(place),
      spec_(*layer_spec_.experts()),
      places_(shard_.placement.places(spec_.routing.experts)),
      shared_width_(spec_.shared_width / shard_.size) {}

// Ranks share out experts, and the width of the shared one. Every rank has the whole router.
void Experts::visit(Weights& w, TensorVisitor& tensors) const {
  const int count = spec_.routing.experts;
  const TensorAxis d = whole(model_.hidden), f = whole(spec_.width), all = whole(count);
  const TensorAxis own = whole(expert_width());
  const std::vector<int32_t> at = shard_.placement.experts_at(count, shard_.size);
  const Each each{
      count, {at.begin() + first_expert(shard_.rank), at.begin() + first_expert(shard_.rank + 1)}};
  if (spec_.is_beside)
    visit_beside(w, tensors);
  else
    tensors.vector(w.norm, {{post_norm, "post_attention_layernorm.weight", d}});
  std::vector<TensorRow> routers{{router, "mlp.gate.weight", all, d}};
  if (spec_.shared_gate)
    routers.push_back({shared_expert_gate, "mlp.shared_expert_gate.weight", whole(1), d});
  tensors.matrix(w.router, routers);
  if (spec_.has_biases) tensors.vector(w.router_bias, {{router_bias, "mlp.gate.bias", all}});
  if (spec_.has_choice_bias)
    tensors.vector(w.choice_bias, {{choice_bias, "mlp.gate.e_score_correction_bias", all}});
  std::vector<TensorRow> inputs{{expert_up, "mlp.experts.{}.up_proj.weight", f, own}};
  if (spec_.is_gated)
    inputs.insert(inputs.begin(), {expert_gate, "mlp.experts.{}.gate_proj.weight", f, own});
  tensors.matrix(w.gate_up, inputs, {.is_pair = spec_.is_gated, .each = &each});
  tensors.matrix(w.down, {{expert_down, "mlp.experts.{}.down_proj.weight", own, f}},
                 {.each = &each});
  if (spec_.has_biases) {
    tensors.vector(w.gate_bias, {{expert_gate_bias, "mlp.experts.{}.gate_proj.bias", f}}, &each);
    tensors.vector(w.up_bias, {{expert_up_bias, "mlp.experts.{}.up_proj.bias", f}}, &each);
    tensors.vector(w.down_bias, {{expert_down_bias, "mlp.experts.{}.down_proj.bias", d}}, &each);
  }
  if (spec_.latent > 0) {
    tensors.matrix(w.latent_down, {{expert_latent_down, "mlp.fc1_latent_proj.weight", own, d}});
    tensors.matrix(w.latent_up, {{expert_latent_up, "mlp.fc2_latent_proj.weight", d, own}});
  }
  if (spec_.shared_width > 0) visit_shared(w, tensors);
  if (!shard_.placement.is_linear())
    tensors.numbers(w.places, shard_.placement.places_of(count, shard_.size));
}

void Experts::visit_beside(Weights& w, TensorVisitor& tensors) const {
  const TensorAxis d = whole(model_.hidden), all = whole(spec_.routing.experts);
  tensors.vector(w.router_norm, {{router_norm, "router.scale", d}});
  tensors.vector(w.expert_scale, {{expert_scale, "router.per_expert_scale", all}});
  tensors.vector(w.norm, {{experts_norm, "pre_feedforward_layernorm_2.weight", d}});
  tensors.vector(w.out_norm, {{experts_out_norm, "post_feedforward_layernorm_2.weight", d}});
  tensors.vector(w.sum_norm, {{sum_out_norm, "post_feedforward_layernorm.weight", d}});
}

void Experts::visit_shared(Weights& w, TensorVisitor& tensors) const {
  const TensorAxis d = whole(model_.hidden),
                   f = shared(spec_.shared_width, shard_.rank, shard_.size);
  std::vector<TensorRow> inputs{{shared_up, "mlp.shared_expert.up_proj.weight", f, d}};
  if (spec_.is_gated)
    inputs.insert(inputs.begin(), {shared_gate, "mlp.shared_expert.gate_proj.weight", f, d});
  tensors.matrix(w.shared_gate_up, inputs, {.is_pair = spec_.is_gated});
  tensors.matrix(w.shared_down, {{shared_down, "mlp.shared_expert.down_proj.weight", d, f}});
}

int64_t Experts::unread_bytes(const PartWeights& weights) const {
  const Weights& w = of(weights);
  return (w.gate_up.bytes() + w.down.bytes()) / places_ * (places_ - spec_.routing.chosen);
}

void Experts::place(ActivationMemory& memory, Activations& at) const {
  const int64_t d = model_.hidden, own = expert_width(), chosen = spec_.routing.chosen;
  at.stream = memory.stream(d);
  at.normed = memory.activation(d);
  if (spec_.is_beside) at.routed = memory.activation(d);
  if (spec_.is_beside) at.sum = memory.array<float>(d);
  at.router = memory.array<float>(spec_.routing.experts + (spec_.shared_gate ? 1 : 0));
  at.chosen = memory.array<int32_t>(chosen);
  at.weights = memory.array<float>(chosen);
  at.begin = memory.fixed<int32_t>(places_ + 1);
  at.place = memory.array<int32_t>(chosen);
  at.rows = memory.array<int32_t>(chosen);
  if (spec_.latent > 0) {
    at.latent = memory.activation(own);
    at.narrow = memory.array<float>(own);
    at.wide = memory.array<float>(d);
  }
  at.inputs = memory.activation(own, chosen);
  at.gated = memory.activation(spec_.width, chosen);
  if (!spec_.is_gated)
    at.ups = memory.array<float>(std::max<int64_t>(chosen * spec_.width, shared_width_));
  const int64_t stride = round_up(own, kLeafPad);
  at.outputs = {memory.array<float>(chosen * stride), DType::f32, stride};
  if (shard_.size > 1) {  // a rank's piece may reach beyond all outputs
    at.sent = memory.activation(own, 2 * chosen);
    at.pieces = memory.activation(own, shard_.size * chosen);
  }
  if (spec_.shared_width == 0) return;
  if (memory.is_kept())
    at.shared_pair = memory.array<float>(2 * round_up(shared_width_, kPanelWidth));
  at.shared_gated = memory.activation(shared_width_);
  at.shared = memory.array<float>(round_up(d, kLeafPad));
}

// x = norm(h); h = h + the sum of w_e * down_e(curve(gate_e(x)) * up_e(x)) over the chosen experts,
// ascending, and of the shared one's
void Experts::forward(const PartPass& p, const Weights& w, const Activations& at) const {
  p.hooks.keep_hidden(at.stream);
  const bool at_once = routes_at_once(p, w);
  if (!at_once) norm_rows(p, w, at);
  const bool goes_first = forks_shared(p, w, at_once);
  if (goes_first) fork_shared(p, w, at, at_once);
  route(p, w, at, at_once);
  p.hooks.keep_experts(layer_, at.chosen);
  p.trace("ffn_norm", at.normed, model_.hidden);
  p.trace("router", at.router, w.router.n);

  const Activation outputs = expert_outputs(p, w, at);
  if (spec_.shared_width > 0 && !goes_first) shared_output(p, w, at);
  p.ops.join();
  if (spec_.is_beside)
    combine_beside(p, w, at, outputs);
  else if (spec_.latent > 0)
    combine_latents(p, w, at, outputs);
  else
    combine(p, w, at, outputs);
  p.trace("experts", p.hidden, model_.hidden);
}

// latents = act(down(x))
void Experts::make_latents(const PartPass& p, const Weights& w, const Activations& at) const {
  const int64_t own = expert_width();
  p.ops.product("experts latent", at.normed, w.latent_down, nullptr, p.rows, at.narrow, own);
  p.ops.round_part(at.narrow, own, own, at.latent);
}

// Every expert's outputs where all ranks' are read.
Activation Experts::expert_outputs(const PartPass& p, const Weights& w,
                                   const Activations& at) const {
  const Kernels& kernels = p.ops.kernels();
  const Operations::ExpertRows rows = rows_of_experts(at);
  const int64_t pairs = p.rows * spec_.routing.chosen;
  auto* outputs = static_cast<float*>(at.outputs.data);
  if (!spec_.is_gated)
    curved_experts(p, w, at);
  else if (p.ops.is_adapted(w.gate_up))
    adapted_experts(p, w, at);
  else
    gated_experts(p, w, at);
  p.ops.run("experts down", kernels.expert_matmul,
            ExpertMatmulParams{.each = {.x = at.gated,
                                        .w = w.down,
                                        .rows = pairs,
                                        .split_k = 1,
                                        .bias = w.down_bias,
                                        .accumulate = false,
                                        .y = outputs,
                                        .y_stride = at.outputs.stride,
                                        .scratch = p.ops.blocks_scratch()},
                               .begin = rows.begin,
                               .matmul = kernels.matmul});
  if (p.ops.is_adapted(w.down))
    p.ops.add_adapted(at.gated, w.down, 1, rows, outputs, at.outputs.stride);
  return shard_.size == 1 ? at.outputs : gather_outputs(p, at);
}

// curve(gate(x)) * up(x) of every expert
void Experts::gated_experts(const PartPass& p, const Weights& w, const Activations& at) const {
  p.ops.run("experts gated", p.ops.kernels().expert_gated_matmul,
            ExpertGatedMatmulParams{.each = {.x = at.inputs,
                                             .gate_up = w.gate_up,
                                             .rows = p.rows * spec_.routing.chosen,
                                             .gate_bias = w.gate_bias,
                                             .up_bias = w.up_bias,
                                             .out = at.gated,
                                             .scratch = p.ops.blocks_scratch(),
                                             .curve = spec_.curve},
                                    .begin = rows_of_experts(at).begin,
                                    .matmul = p.ops.kernels().gated_matmul});
}

// The same with adapters: each pair as one matrix, then the curve of what both gave.
void Experts::adapted_experts(const PartPass& p, const Weights& w, const Activations& at) const {
  const Operations::ExpertRows rows = rows_of_experts(at);
  Matrix both = as_one(w.gate_up.part(0, 2));
  both.count = w.gate_up.count / 2;
  const int64_t first = rows.begin[0], end = rows.begin[both.count];
  float* dots = p.ops.pair_products(end, both.n);
  p.ops.run("experts gated", p.ops.kernels().expert_matmul,
            ExpertMatmulParams{.each = {.x = at.inputs,
                                        .w = both,
                                        .rows = p.rows * spec_.routing.chosen,
                                        .split_k = 1,
                                        .bias = nullptr,
                                        .accumulate = false,
                                        .y = dots,
                                        .y_stride = both.n,
                                        .scratch = p.ops.blocks_scratch()},
                               .begin = rows.begin,
                               .matmul = p.ops.kernels().matmul});
  p.ops.add_adapted(at.inputs, w.gate_up, 2, rows, dots, both.n);
  p.ops.run("gate", p.ops.kernels().gate_pairs,
            GatePairsParams{.dots = dots + first * both.n,
                            .dots_stride = both.n,
                            .rows = end - first,
                            .width = w.gate_up.n,
                            .curve = spec_.curve,
                            .out = at.gated.from(first)});
}

// out = curve(x), of rows side by side
void Experts::bend(const PartPass& p, const float* x, int64_t width, int64_t rows,
                   const Activation& out) const {
  p.ops.run("curve", p.ops.kernels().curve,
            CurveParams{.x = x,
                        .x_stride = width,
                        .rows = rows,
                        .width = width,
                        .curve = spec_.curve,
                        .out = out});
}

// curve(up(x)) of every expert
void Experts::curved_experts(const PartPass& p, const Weights& w, const Activations& at) const {
  const int64_t pairs = p.rows * spec_.routing.chosen;
  p.ops.run("experts up", p.ops.kernels().expert_matmul,
            ExpertMatmulParams{.each = {.x = at.inputs,
                                        .w = w.gate_up,
                                        .rows = pairs,
                                        .split_k = 1,
                                        .bias = w.up_bias,
                                        .accumulate = false,
                                        .y = at.ups,
                                        .y_stride = spec_.width,
                                        .scratch = p.ops.blocks_scratch()},
                               .begin = at.begin + first_expert(shard_.rank),
                               .matmul = p.ops.kernels().matmul,
                               .is_first_reader = true});
  if (p.ops.is_adapted(w.gate_up))
    p.ops.add_adapted(at.inputs, w.gate_up, 1, rows_of_experts(at), at.ups, spec_.width);
  bend(p, at.ups, spec_.width, pairs, at.gated);
}

// Every rank brings its experts' outputs, rounded, in a piece as long as the longest: where all
// ranks route alike they know each other's.
Activation Experts::gather_outputs(const PartPass& p, const Activations& at) const {
  Stream& stream = p.ops.stream();
  std::vector<int32_t> begin(static_cast<size_t>(places_) + 1);
  stream.download(begin.data(), at.begin, begin.size() * sizeof(int32_t));
  stream.wait();
  const auto first_row = [&](int rank) {
    return int64_t{begin[static_cast<size_t>(first_expert(rank))]};
  };
  int64_t most = 0;
  for (int r = 0; r < shard_.size; ++r) most = std::max(most, first_row(r + 1) - first_row(r));
  const Activation& sent = at.sent;
  const int64_t bytes = sent.stride * size_of(sent.type);
  const auto at_row = [&](const Activation& x, int64_t row) {
    return static_cast<std::byte*>(x.data) + row * bytes;
  };
  const int64_t mine = first_row(shard_.rank), count = first_row(shard_.rank + 1) - mine;
  const float* outputs = static_cast<const float*>(at.outputs.data);
  p.ops.run("round", p.ops.kernels().round,
            RoundParams{.x = outputs + mine * at.outputs.stride,
                        .x_stride = at.outputs.stride,
                        .rows_of = nullptr,
                        .rows = count,
                        .width = expert_width(),
                        .out = {at_row(sent, mine), sent.type, sent.stride}});
  p.ops.all_gather(at_row(sent, mine), most * bytes, at.pieces.data);
  for (int r = 0; r < shard_.size; ++r) {
    const int64_t rows = first_row(r + 1) - first_row(r);
    if (r == shard_.rank || rows == 0) continue;
    stream.copy_rows(at_row(sent, first_row(r)), bytes, at_row(at.pieces, r * most), bytes, bytes,
                     rows);
  }
  return sent;
}

// The output of the expert that every row goes through, of all ranks, before its gate.
void Experts::shared_output(const PartPass& p, const Weights& w, const Activations& at) const {
  const int64_t stride = round_up(model_.hidden, kLeafPad);
  if (spec_.is_gated) {
    p.ops.gated_product("shared gated",
                        {.x = at.normed,
                         .gate_up = w.shared_gate_up,
                         .rows = p.rows,
                         .gate_bias = nullptr,
                         .up_bias = nullptr,
                         .out = at.shared_gated,
                         .next = &w.shared_down},
                        at.shared_pair);
  } else {
    p.ops.product("shared up", at.normed, w.shared_gate_up, nullptr, p.rows, at.ups, shared_width_,
                  &w.shared_down);
    bend(p, at.ups, shared_width_, p.rows, at.shared_gated);
  }
  p.ops.partial_product("shared down", at.shared_gated, w.shared_down,
                        shard_.runs(down_split_k(spec_.shared_width)), at.shared, stride,
                        p.ops.is_on_host());
}

std::unique_ptr<LayerPart> make_experts(const PartPlace& place) {
  return std::make_unique<Experts>(place);
}

}  // namespace invar
