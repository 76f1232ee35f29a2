// The feed-forward network that every row goes through, gated.
#include "model/activation_memory.h"
#include "model/backward_pass.h"
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

// The norm before it has the name of its place: behind attention, or before it where another stands
// behind attention.
constexpr auto with_norm = [](const DecoderSpec&, const LayerSpec& layer) {
  return is_before(layer.ffn.norms) && !is_after(layer.attention.norms);
};
constexpr auto with_second_norm = [](const DecoderSpec&, const LayerSpec& layer) {
  return is_before(layer.ffn.norms) && is_after(layer.attention.norms);
};
constexpr auto with_out_norm = [](const DecoderSpec&, const LayerSpec& layer) {
  return is_after(layer.ffn.norms);
};
constexpr auto with_bias = [](const DecoderSpec& spec, const LayerSpec&) { return spec.mlp_bias; };
constexpr auto with_gate = [](const DecoderSpec&, const LayerSpec& layer) {
  return layer.ffn.is_gated;
};
constexpr auto with_gate_bias = [](const DecoderSpec& spec, const LayerSpec& layer) {
  return spec.mlp_bias && layer.ffn.is_gated;
};
constexpr auto with_norm_bias = [](const DecoderSpec& spec, const LayerSpec& layer) {
  return spec.norm == NormKind::layer && is_before(layer.ffn.norms);
};

// Ranks share out the width; down is cut along it.
// clang-format off
constexpr TensorRow kTensors[] = {
    {post_norm, "post_attention_layernorm.weight", kLayer, E::hidden, E::none, kWhole, with_norm, nullptr, &W::ffn_norm},
    {post_norm, "pre_feedforward_layernorm.weight", kLayer, E::hidden, E::none, kWhole, with_second_norm, nullptr, &W::ffn_norm},
    {post_norm_bias, "post_attention_layernorm.bias", kLayer, E::hidden, E::none, kWhole, with_norm_bias, nullptr, &W::ffn_norm_bias},
    {gate, "mlp.gate_proj.weight", kLayer, E::ffn, E::hidden, kRows, with_gate, &M::gate_up},
    {up, "mlp.up_proj.weight", kLayer, E::ffn, E::hidden, kRows, nullptr, &M::gate_up},
    {down, "mlp.down_proj.weight", kLayer, E::hidden, E::ffn, kColumns, nullptr, &M::down},
    {gate_bias, "mlp.gate_proj.bias", kLayer, E::ffn, E::none, kRows, with_gate_bias, nullptr, &W::gate_bias},
    {up_bias, "mlp.up_proj.bias", kLayer, E::ffn, E::none, kRows, with_bias, nullptr, &W::up_bias},
    {down_bias, "mlp.down_proj.bias", kLayer, E::hidden, E::none, kWhole, with_bias, nullptr, &W::down_bias},
    {ffn_out_norm, "post_feedforward_layernorm.weight", kLayer, E::hidden, E::none, kWhole, with_out_norm, nullptr, &W::ffn_out_norm},
};
// clang-format on

bool is_in(const LayerSpec& layer) {
  return layer.ffn.width > 0;
}

void place(ActivationMemory& memory, const Decoder& decoder, int layer, LayerActivations& at) {
  const int64_t d = decoder.spec.hidden,
                f = decoder.weights->shard().ffn(decoder.spec.layer(layer));
  if (memory.is_kept()) at.middle = memory.array<float>(d);
  at.ffn_normed = memory.activation(d);
  if (memory.is_kept()) at.gate_up = memory.array<float>(2 * round_up(f, kPanelWidth));
  if (!decoder.spec.layer(layer).ffn.is_gated) at.gate_up = memory.array<float>(f);
  at.gated = memory.activation(f);
  if (memory.is_kept() && is_after(decoder.spec.layer(layer).ffn.norms))
    at.ffn_out = memory.array<float>(d);
}

// h = h + down(curve(gate(norm(h))) * up(norm(h))), or without a gate down(curve(up(norm(h)))),
// with norms where the layer has them
void forward(const LayerPass& p) {
  p.hooks.keep_hidden(p.at.middle);
  if (!p.spec.ffn.is_parallel)
    p.ops.norm_before(p.w.gate_up, p.hidden, p.w.ffn_norm, p.at.ffn_normed, p.w.ffn_norm_bias);
  p.trace("ffn_norm", p.at.ffn_normed, p.model.hidden);

  if (p.spec.ffn.is_gated)
    p.ops.gated_product(p, p.ops.plan().after_gate_up(p.layer));
  else
    p.ops.curved_product(p, p.ops.plan().after_gate_up(p.layer));
  p.trace("gated", p.at.gated, p.shard.ffn(p.spec));

  p.ops.add_product("down", p.at.gated, p.w.down, p.shard.down_split_k(p.spec), p.w.down_bias,
                    p.w.ffn_out_norm, p.ops.plan().after_down(p.layer), p.at.ffn_out);
  p.trace("down", p.hidden, p.model.hidden);
}

// The gradients of gate and up from that of the gated activation, or of what a curve follows.
Activation inputs_of_curve(BackwardPass& b, int layer) {
  const LayerWeights& w = b.weights(layer);
  const LayerActivations& at = b.activations(layer);
  const BackwardWorkspace& ws = b.workspace();
  const DenseFfnSpec& ffn = b.spec().layer(layer).ffn;
  const int64_t f = ffn.width;
  const Activation out =
      BackwardPass::activation(ws.wide, ffn.is_gated ? 2 * round_up(f, kPanelWidth) : f);
  if (ffn.is_gated)
    b.run("gate backward", b.kernels().gate_backward,
          GateBackwardParams{.gate_up = at.gate_up,
                             .gate_bias = w.gate_bias,
                             .up_bias = w.up_bias,
                             .d_gated = ws.gated.data(),
                             .rows = b.rows(),
                             .width = f,
                             .out = out,
                             .curve = ffn.curve});
  else
    b.run("curve backward", b.kernels().curve_backward,
          CurveBackwardParams{.x = at.gate_up,
                              .dy = ws.gated.data(),
                              .rows = b.rows(),
                              .width = f,
                              .curve = ffn.curve,
                              .out = out});
  return out;
}

void backward(BackwardPass& b, int layer) {
  const LayerWeights& w = b.weights(layer);
  const LayerActivations& at = b.activations(layer);
  const BackwardWorkspace& ws = b.workspace();
  const DenseFfnSpec& ffn = b.spec().layer(layer).ffn;
  const int64_t d = b.spec().hidden, f = ffn.width;
  const Activation d_out = b.added(ffn_out_norm, layer, w.ffn_out_norm, at.ffn_out);
  b.matmul("down dX", d_out, b.transposed(layer).down, ws.gated.data());
  b.pack_inputs(at.gated, f);
  b.weight_gradient("down dW", b.gradient(down, layer), d_out, {0, d}, f);
  b.bias_gradient(down_bias, layer, d_out, {0, d});

  const Activation d_gate_up = inputs_of_curve(b, layer);
  b.matmul("gated dX", d_gate_up, b.transposed(layer).gate_up, ws.normed.data());
  b.pack_inputs(at.ffn_normed, d);
  const Columns of_gate{0, f, 0}, of_up{0, f, ffn.is_gated ? 1 : -1};
  if (ffn.is_gated) b.weight_gradient("gated dW", b.gradient(gate, layer), d_gate_up, of_gate, d);
  b.weight_gradient("gated dW", b.gradient(up, layer), d_gate_up, of_up, d);
  b.bias_gradient(gate_bias, layer, d_gate_up, of_gate);
  b.bias_gradient(up_bias, layer, d_gate_up, of_up);
  const BackwardPass::Norm norm{post_norm, layer, w.ffn_norm, post_norm_bias};
  if (!ffn.is_parallel) return b.norm(norm, at.middle);
  // Attention reads the same stream and comes next: until then this gradient stands beside.
  b.clear(ws.beside);
  b.norm(norm, at.input, ws.beside.data());
}

const char* refusal(const DecoderSpec& spec, const LayerSpec& layer) {
  if (layer.ffn.curve == Nonlinearity::gelu && layer.ffn.is_gated)
    return "its gate is an exact GELU, whose gradient is not implemented";
  if (spec.residual_scale != 1 || spec.logits_divisor != 1 || spec.logits_cap > 0)
    return "its residual stream or logits are scaled, whose gradient is not implemented";
  return nullptr;
}

}  // namespace

const LayerPart kDenseFfn{.is_in = is_in,
                          .tensors = kTensors,
                          .place = place,
                          .forward = forward,
                          .backward = backward,
                          .refusal = refusal};

}  // namespace invar
