// Attention to the keys and values of a sequence.
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

constexpr auto with_norm = [](const DecoderSpec&, const LayerSpec& layer) {
  return is_before(layer.attention.norms);
};
constexpr auto with_out_norm = [](const DecoderSpec&, const LayerSpec& layer) {
  return is_after(layer.attention.norms);
};
constexpr auto with_bias = [](const DecoderSpec& spec, const LayerSpec&) { return spec.qkv_bias; };
constexpr auto with_o_bias = [](const DecoderSpec& spec, const LayerSpec&) { return spec.o_bias; };
constexpr auto with_qk_norm = [](const DecoderSpec& spec, const LayerSpec&) {
  return spec.qk_norm && !spec.joint_qk_norm;
};
constexpr auto with_joint_norm = [](const DecoderSpec& spec, const LayerSpec&) {
  return spec.qk_norm && spec.joint_qk_norm;
};
constexpr auto with_sinks = [](const DecoderSpec&, const LayerSpec& layer) {
  return layer.attention.has_sinks;
};
constexpr auto with_norm_bias = [](const DecoderSpec& spec, const LayerSpec& layer) {
  return spec.norm == NormKind::layer && is_before(layer.attention.norms);
};

// Ranks share out heads; the attention output is cut along them.
// clang-format off
constexpr TensorRow kTensors[] = {
    {input_norm, "input_layernorm.weight", kLayer, E::hidden, E::none, kWhole, with_norm, nullptr, &W::attention_norm},
    {input_norm_bias, "input_layernorm.bias", kLayer, E::hidden, E::none, kWhole, with_norm_bias, nullptr, &W::attention_norm_bias},
    {q, "self_attn.q_proj.weight", kLayer, E::query, E::attention_input, kRows, nullptr, &M::qkv},
    {k, "self_attn.k_proj.weight", kLayer, E::kv, E::attention_input, kRows, nullptr, &M::qkv},
    {v, "self_attn.v_proj.weight", kLayer, E::kv, E::attention_input, kRows, nullptr, &M::qkv},
    {q_bias, "self_attn.q_proj.bias", kLayer, E::query, E::none, kRows, with_bias, nullptr, &W::qkv_bias},
    {k_bias, "self_attn.k_proj.bias", kLayer, E::kv, E::none, kRows, with_bias, nullptr, &W::qkv_bias},
    {v_bias, "self_attn.v_proj.bias", kLayer, E::kv, E::none, kRows, with_bias, nullptr, &W::qkv_bias},
    {q_norm, "self_attn.q_norm.weight", kLayer, E::head, E::none, kWhole, with_qk_norm, nullptr, &W::q_norm},
    {k_norm, "self_attn.k_norm.weight", kLayer, E::head, E::none, kWhole, with_qk_norm, nullptr, &W::k_norm},
    {q_norm, "self_attn.q_norm.weight", kLayer, E::query, E::none, kWhole, with_joint_norm, nullptr, &W::q_norm},
    {k_norm, "self_attn.k_norm.weight", kLayer, E::kv, E::none, kWhole, with_joint_norm, nullptr, &W::k_norm},
    {sinks, "self_attn.sinks", kLayer, E::heads, E::none, kRows, with_sinks, nullptr, &W::sinks},
    {o, "self_attn.o_proj.weight", kLayer, E::hidden, E::query, kColumns, nullptr, &M::o},
    {o_bias, "self_attn.o_proj.bias", kLayer, E::hidden, E::none, kWhole, with_o_bias, nullptr, &W::o_bias},
    {attention_out_norm, "post_attention_layernorm.weight", kLayer, E::hidden, E::none, kWhole, with_out_norm, nullptr, &W::attention_out_norm},
};
// clang-format on

bool is_in(const LayerSpec& layer) {
  return !layer.block && !layer.attention.latent;
}

void place(ActivationMemory& memory, const Decoder& decoder, int layer, LayerActivations& at) {
  const DecoderSpec& spec = decoder.spec;
  const Shard& shard = decoder.weights->shard();
  const int64_t products = int64_t{shard.heads + 2 * shard.kv_heads} * spec.head_dim;
  at.normed = reads_joined(spec.layer(layer)) ? at.joined : memory.activation(spec.hidden);
  if (!memory.is_kept()) at.products = memory.array<float>(products);
  if (memory.is_kept() && spec.qk_norm) at.qkv = memory.array<float>(products);
  if (memory.is_kept() && is_after(spec.layer(layer).attention.norms))
    at.attention_out = memory.array<float>(spec.hidden);
  const int64_t words = size_of(decoder.arithmetic.heads()) / size_of(DType::bf16);
  at.q = memory.array<bf16_t>(shard.heads * round_up(spec.head_dim, 32) * words);
  if (memory.is_kept()) at.max = memory.array<float>(shard.heads);
  if (memory.is_kept()) at.sum = memory.array<float>(shard.heads);
  at.attended = memory.activation(int64_t{shard.heads} * spec.head_dim);
}

// h = h + o(attention(rope(qkv(norm(h))))), with norms where the layer has them
void forward(const LayerPass& p) {
  p.ops.copy_slots(p.kv);
  p.hooks.keep_hidden(p.at.input);
  if (p.spec.ffn.is_parallel) {
    p.ops.norm(p.hidden, p.w.attention_norm, p.at.normed, nullptr, -1, p.w.attention_norm_bias);
    p.ops.norm(p.hidden, p.w.ffn_norm, p.at.ffn_normed, nullptr, -1, p.w.ffn_norm_bias);
  } else if (!reads_joined(p.spec)) {
    p.ops.norm_before(p.w.qkv, p.hidden, p.w.attention_norm, p.at.normed, p.w.attention_norm_bias);
  }
  p.trace("attention_norm", p.at.normed, p.w.qkv.k);

  p.ops.qkv(p);
  p.hooks.trace_queries(p.layer, p.at.q);

  p.ops.attention(p);
  p.trace("attention", p.at.attended, int64_t{p.shard.heads} * p.model.head_dim);

  p.ops.add_product("o", p.at.attended, p.w.o, p.shard.o_split_k, p.w.o_bias,
                    p.w.attention_out_norm, p.ops.plan().after_o(p.layer), p.at.attention_out);
  p.trace("o", p.hidden, p.model.hidden);
}

// d_qkv of rotated queries and keys, and of values.
void attention_backward(BackwardPass& b, int layer, const Activation& d_attended) {
  const LayerActivations& at = b.activations(layer);
  const BackwardWorkspace& ws = b.workspace();
  const AttentionSpec attention = b.spec().layer(layer).attention;
  b.run("attention backward", b.kernels().attention_backward,
        AttentionBackwardParams{.forward = {.q = at.q,
                                            .rows = b.rows(),
                                            .heads = b.spec().heads,
                                            .positions = b.tables().positions,
                                            .table_of = b.tables().table_of,
                                            .tables = b.tables().tables,
                                            .window = attention.window,
                                            .kv = b.kv(layer),
                                            .out = at.attended,
                                            .score_scale = attention.score_scale},
                                .max = at.max,
                                .sum = at.sum,
                                .d_out = d_attended,
                                .max_positions = ws.max_positions,
                                .d_qkv = ws.qkv.data(),
                                .d_qkv_stride = b.qkv_width(),
                                .scratch = ws.scratch.data(),
                                .scratch_stride = ws.scratch_stride});
}

void head_norm_gradient(BackwardPass& b, TensorRole role, int layer, int64_t first, int64_t heads) {
  const DecoderSpec& spec = b.spec();
  const bool is_joint = spec.joint_qk_norm;
  const int64_t column = first * spec.head_dim;
  b.run("norm gradient", b.kernels().norm_gradient,
        NormGradientParams{.dy = b.workspace().qkv.data() + column,
                           .dy_stride = b.qkv_width(),
                           .x = b.activations(layer).qkv + column,
                           .x_stride = b.qkv_width(),
                           .rs = b.workspace().rs.data() + (is_joint ? first > 0 : first),
                           .rs_stride = is_joint ? 2 : spec.heads + spec.kv_heads,
                           .rows = b.rows(),
                           .heads = is_joint ? 1 : heads,
                           .width = is_joint ? heads * spec.head_dim : spec.head_dim,
                           .gradient = b.gradient(role, layer)});
}

// The gradient of the q, k, v product; also that of the heads' norms.
Activation qkv_backward(BackwardPass& b, int layer) {
  const DecoderSpec& spec = b.spec();
  const LayerWeights& w = b.weights(layer);
  const Activation d_qkv = BackwardPass::activation(b.workspace().wide, b.qkv_width());
  b.run("rotation backward", b.kernels().qkv_backward,
        QkvBackwardParams{.d_qkv = b.workspace().qkv.data(),
                          .d_qkv_stride = b.qkv_width(),
                          .qkv = b.activations(layer).qkv,
                          .qkv_stride = b.qkv_width(),
                          .rows = b.rows(),
                          .heads = spec.heads,
                          .kv_heads = spec.kv_heads,
                          .head_dim = spec.head_dim,
                          .q_norm = w.q_norm,
                          .k_norm = w.k_norm,
                          .norm_eps = spec.norm_eps,
                          .positions = b.tables().positions,
                          .cos = b.rope(layer).cos(),
                          .sin = b.rope(layer).sin(),
                          .rs = b.workspace().rs.data(),
                          .is_joint = spec.joint_qk_norm,
                          .out = d_qkv});
  if (spec.qk_norm) {
    head_norm_gradient(b, q_norm, layer, 0, spec.heads);
    head_norm_gradient(b, k_norm, layer, spec.heads, spec.kv_heads);
  }
  return d_qkv;
}

void backward(BackwardPass& b, int layer) {
  const DecoderSpec& spec = b.spec();
  const LayerActivations& at = b.activations(layer);
  const BackwardWorkspace& ws = b.workspace();
  const int64_t d = spec.hidden, queries = spec.query_width(), keys = spec.kv_width();
  const Activation d_out =
      b.added(attention_out_norm, layer, b.weights(layer).attention_out_norm, at.attention_out);
  b.matmul("o dX", d_out, b.transposed(layer).o, ws.attended.data());
  b.pack_inputs(at.attended, queries);
  b.weight_gradient("o dW", b.gradient(o, layer), d_out, {0, d}, queries);
  b.bias_gradient(o_bias, layer, d_out, {0, d});

  attention_backward(b, layer, b.round(ws.attended.data(), queries, ws.wide));
  const Activation d_qkv = qkv_backward(b, layer);
  b.matmul("qkv dX", d_qkv, b.transposed(layer).qkv, ws.normed.data());
  b.pack_inputs(at.normed, d);
  const Columns of_q{0, queries}, of_k{queries, keys}, of_v{queries + keys, keys};
  b.weight_gradient("qkv dW", b.gradient(q, layer), d_qkv, of_q, d);
  b.weight_gradient("qkv dW", b.gradient(k, layer), d_qkv, of_k, d);
  b.weight_gradient("qkv dW", b.gradient(v, layer), d_qkv, of_v, d);
  b.bias_gradient(q_bias, layer, d_qkv, of_q);
  b.bias_gradient(k_bias, layer, d_qkv, of_k);
  b.bias_gradient(v_bias, layer, d_qkv, of_v);
  b.norm({input_norm, layer, b.weights(layer).attention_norm, input_norm_bias}, at.input);
  if (spec.layer(layer).ffn.is_parallel) b.add_to_hidden(ws.beside);
}

const char* refusal(const DecoderSpec& spec, const LayerSpec& layer) {
  if (spec.late_qk_norm)
    return "its q/k norm stands behind the rotation, and the gradient of that is not implemented";
  if (layer.attention.score_cap > 0)
    return "its scores are capped, whose gradient is not implemented";
  if (layer.attention.has_sinks)
    return "its attention has sinks, whose gradient is not implemented";
  return nullptr;
}

}  // namespace

const LayerPart kAttention{.is_in = is_in,
                           .tensors = kTensors,
                           .place = place,
                           .forward = forward,
                           .backward = backward,
                           .refusal = refusal};

}  // namespace invar
