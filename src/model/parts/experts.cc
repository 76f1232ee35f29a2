// Many feed-forward networks, of which every row goes through a few that its router chooses, and
// perhaps one more that all rows go through (numerics 7).
#include "model/activation_memory.h"
#include "model/parts/experts_backward.h"
#include "model/parts/layer_part.h"
#include "model/parts/layer_pass.h"

namespace invar {

namespace {

using enum TensorRole;
using E = Extent;
using M = LayerMatrices;
using W = LayerWeights;

constexpr TensorPlace kLayer = TensorPlace::layer;
constexpr Axis kWhole = Axis::none, kRows = Axis::rows, kColumns = Axis::columns;
constexpr Axis kEach = Axis::experts;

constexpr auto with_choice_bias = [](const DecoderSpec&, const LayerSpec& layer) {
  return layer.experts->has_choice_bias;
};
constexpr auto with_biases = [](const DecoderSpec&, const LayerSpec& layer) {
  return layer.experts->has_biases;
};
constexpr auto with_shared = [](const DecoderSpec&, const LayerSpec& layer) {
  return layer.experts->shared_width > 0;
};
constexpr auto with_shared_gate = [](const DecoderSpec&, const LayerSpec& layer) {
  return layer.experts->shared_gate;
};

// Ranks share out experts, and the width of the shared one. Every rank has the whole router.
// clang-format off
constexpr TensorRow kTensors[] = {
    {post_norm, "post_attention_layernorm.weight", kLayer, E::hidden, E::none, kWhole, nullptr, nullptr, &W::ffn_norm},
    {router, "mlp.gate.weight", kLayer, E::experts, E::hidden, kWhole, nullptr, &M::router},
    {shared_expert_gate, "mlp.shared_expert_gate.weight", kLayer, E::one, E::hidden, kWhole, with_shared_gate, &M::router},
    {router_bias, "mlp.gate.bias", kLayer, E::experts, E::none, kWhole, with_biases, nullptr, &W::router_bias},
    {choice_bias, "mlp.gate.e_score_correction_bias", kLayer, E::experts, E::none, kWhole, with_choice_bias, nullptr, &W::choice_bias},
    {expert_gate, "mlp.experts.{}.gate_proj.weight", kLayer, E::expert_ffn, E::hidden, kEach, nullptr, &M::expert_gate_up},
    {expert_up, "mlp.experts.{}.up_proj.weight", kLayer, E::expert_ffn, E::hidden, kEach, nullptr, &M::expert_gate_up},
    {expert_down, "mlp.experts.{}.down_proj.weight", kLayer, E::hidden, E::expert_ffn, kEach, nullptr, &M::expert_down},
    {expert_gate_bias, "mlp.experts.{}.gate_proj.bias", kLayer, E::expert_ffn, E::none, kEach, with_biases, nullptr, &W::expert_gate_bias},
    {expert_up_bias, "mlp.experts.{}.up_proj.bias", kLayer, E::expert_ffn, E::none, kEach, with_biases, nullptr, &W::expert_up_bias},
    {expert_down_bias, "mlp.experts.{}.down_proj.bias", kLayer, E::hidden, E::none, kEach, with_biases, nullptr, &W::expert_down_bias},
    {shared_gate, "mlp.shared_expert.gate_proj.weight", kLayer, E::shared_ffn, E::hidden, kRows, with_shared, &M::shared_gate_up},
    {shared_up, "mlp.shared_expert.up_proj.weight", kLayer, E::shared_ffn, E::hidden, kRows, with_shared, &M::shared_gate_up},
    {shared_down, "mlp.shared_expert.down_proj.weight", kLayer, E::hidden, E::shared_ffn, kColumns, with_shared, &M::shared_down},
};
// clang-format on

bool is_in(const LayerSpec& layer) {
  return layer.experts.has_value();
}

void place(ActivationMemory& memory, const Decoder& decoder, int layer, LayerActivations& at) {
  const LayerSpec spec = decoder.spec.layer(layer);
  const ExpertsSpec& experts = *spec.experts;
  const Shard& shard = decoder.weights->shard();
  const int64_t d = decoder.spec.hidden, count = experts.routing.experts;
  const int64_t chosen = experts.routing.chosen;
  if (memory.is_kept()) at.middle = memory.array<float>(d);
  at.ffn_normed = memory.activation(d);
  at.router = memory.array<float>(count + (experts.shared_gate ? 1 : 0));
  at.chosen = memory.array<int32_t>(chosen);
  at.expert_weights = memory.array<float>(chosen);
  at.expert_begin = memory.fixed<int32_t>(shard.expert_places(spec) + 1);
  at.expert_place = memory.array<int32_t>(chosen);
  at.expert_rows = memory.array<int32_t>(chosen);
  at.expert_inputs = memory.activation(d, chosen);
  at.expert_gated = memory.activation(experts.width, chosen);
  const int64_t stride = round_up(d, kLeafPad);
  at.expert_outputs = {memory.array<float>(chosen * stride), DType::f32, stride};
  if (shard.size > 1) {  // a rank's piece may reach beyond all outputs
    at.expert_sent = memory.activation(d, 2 * chosen);
    at.expert_pieces = memory.activation(d, shard.size * chosen);
  }
  if (experts.shared_width == 0) return;
  at.shared_gated = memory.activation(shard.shared_ffn(spec));
  at.shared = memory.array<float>(stride);
}

// x = norm(h); h = h + the sum of w_e * down_e(curve(gate_e(x)) * up_e(x)) over the chosen experts,
// ascending, and of the shared one's
void forward(const LayerPass& p) {
  p.hooks.keep_hidden(p.at.middle);
  p.ops.route(p);
  p.trace("ffn_norm", p.at.ffn_normed, p.model.hidden);
  p.trace("router", p.at.router, p.w.router.n);

  const Activation outputs = p.ops.expert_outputs(p);
  if (p.spec.experts->shared_width > 0) {
    p.ops.shared_gated_product(p);
    p.ops.shared_output(p);
  }
  p.ops.combine(p, outputs);
  p.trace("experts", p.hidden, p.model.hidden);
}

const char* refusal(const DecoderSpec&, const LayerSpec& layer) {
  return experts_refusal(*layer.experts);
}

}  // namespace

const LayerPart kExperts{.is_in = is_in,
                         .tensors = kTensors,
                         .place = place,
                         .forward = forward,
                         .backward = experts_backward,
                         .refusal = refusal};

}  // namespace invar
