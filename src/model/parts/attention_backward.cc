// The gradients of attention (numerics 9).
#include "kernels/recurrent_backward.h"
#include "model/parts/attention.h"

namespace invar {

using enum TensorRole;

void attend_backward(BackwardPass& b, const AttentionSpec& spec, const KvLayer& kv,
                     const Attend::Arrays& at, const Activation& d_out, int64_t width) {
  const BackwardWorkspace& ws = b.workspace();
  b.run("attention backward", b.kernels().attention_backward,
        AttentionBackwardParams{.forward = {.q = at.q,
                                            .rows = b.rows(),
                                            .heads = b.spec().heads,
                                            .positions = b.tables().positions,
                                            .table_of = b.tables().table_of,
                                            .tables = b.tables().tables,
                                            .window = spec.window,
                                            .kv = kv,
                                            .out = at.out,
                                            .score_scale = spec.score_scale},
                                .max = at.max,
                                .sum = at.sum,
                                .d_out = d_out,
                                .max_positions = ws.max_positions,
                                .d_qkv = ws.qkv.data(),
                                .d_qkv_stride = width,
                                .scratch = ws.scratch.data(),
                                .scratch_stride = ws.scratch_stride});
}

QkvBackwardParams rotation_backward(const BackwardPass& b, int layer, int64_t width) {
  const DecoderSpec& spec = b.spec();
  const BackwardWorkspace& ws = b.workspace();
  return {.d_qkv = ws.qkv.data(),
          .d_qkv_stride = width,
          .qkv = nullptr,
          .qkv_stride = width,
          .rows = b.rows(),
          .heads = spec.heads,
          .kv_heads = spec.kv_heads,
          .head_dim = spec.head_dim,
          .q_norm = nullptr,
          .k_norm = nullptr,
          .norm_eps = spec.norm_eps,
          .positions = b.tables().rotations,
          .cos = b.rope(layer).cos(),
          .sin = b.rope(layer).sin(),
          .rs = ws.rs.data(),
          .out = BackwardPass::activation(ws.wide, width)};
}

void Attention::head_norm_gradient(BackwardPass& b, const Kept& kept, TensorRole role,
                                   int64_t first, int64_t heads) const {
  const DecoderSpec& spec = model_;
  if (!b.gradient(role, layer_)) return;
  const bool is_joint = spec.joint_qk_norm;
  const int64_t column = first * spec.head_dim;
  b.run("norm gradient", b.kernels().norm_gradient,
        NormGradientParams{.dy = b.workspace().qkv.data() + column,
                           .dy_stride = qkv_width(),
                           .x = kept.at.qkv + column,
                           .x_stride = qkv_width(),
                           .rs = b.workspace().rs.data() + (is_joint ? first > 0 : first),
                           .rs_stride = is_joint ? 2 : spec.heads + spec.kv_heads,
                           .rows = b.rows(),
                           .heads = is_joint ? 1 : heads,
                           .width = is_joint ? heads * spec.head_dim : spec.head_dim,
                           .gradient = b.gradient(role, layer_)});
}

// The gradient of the q, k, v product; also that of the heads' norms.
Activation Attention::qkv_backward(BackwardPass& b, const Kept& kept) const {
  const DecoderSpec& spec = model_;
  const Weights& w = kept.w;
  QkvBackwardParams params = rotation_backward(b, layer_, qkv_width());
  params.qkv = kept.at.qkv;
  params.q_norm = w.q_norm;
  params.k_norm = w.k_norm;
  params.is_joint = spec.joint_qk_norm;
  b.run("rotation backward", b.kernels().qkv_backward, params);
  if (spec.qk_norm) {
    head_norm_gradient(b, kept, q_norm, 0, spec.heads);
    head_norm_gradient(b, kept, k_norm, spec.heads, spec.kv_heads);
  }
  return params.out;
}

void Attention::backward(BackwardPass& b, const Kept& kept) const {
  const Activations& at = kept.at;
  const BackwardWorkspace& ws = b.workspace();
  const int64_t d = model_.hidden, queries = model_.query_width(), keys = model_.kv_width();
  const Activation d_out = b.added(attention_out_norm, layer_, kept.w.out_norm, at.added);
  b.matmul("o dX", d_out, kept.transposed.o, ws.attended.data());
  b.pack_inputs(at.attended, queries);
  b.weight_gradient("o dW", b.gradient(o, layer_), d_out, {0, d}, queries);
  b.bias_gradient(o_bias, layer_, d_out, {0, d});
  b.adapter(kept.w.o, at.attended, shard_.runs(attention_output_split_k(model_, spec_)), d_out,
            ws.attended.data());
  if (spec_.has_output_gate) output_gate_backward(b, at);

  const Attend::Arrays arrays{.products = nullptr,
                              .q = at.q,
                              .out = at.ungated.data ? at.ungated : at.attended,
                              .max = at.max,
                              .sum = at.sum};
  attend_backward(b, spec_, kept.kv, arrays, b.round(ws.attended.data(), queries, ws.wide),
                  qkv_width());
  const Activation d_qkv = qkv_backward(b, kept);
  b.matmul("qkv dX", d_qkv, kept.transposed.qkv, ws.normed.data());
  b.pack_inputs(at.normed, d);
  const Columns of_q{0, queries}, of_k{queries, keys}, of_v{queries + keys, keys};
  b.weight_gradient("qkv dW", b.gradient(q, layer_), d_qkv, of_q, d);
  b.weight_gradient("qkv dW", b.gradient(k, layer_), d_qkv, of_k, d);
  b.weight_gradient("qkv dW", b.gradient(v, layer_), d_qkv, of_v, d);
  b.bias_gradient(q_bias, layer_, d_qkv, of_q);
  b.bias_gradient(k_bias, layer_, d_qkv, of_k);
  b.bias_gradient(v_bias, layer_, d_qkv, of_v);
  b.adapter(kept.w.qkv, at.normed, 1, d_qkv, ws.normed.data());
  if (spec_.has_output_gate) {
    const Activation d_gate = b.round(ws.output_gates.data(), queries, ws.wide);
    b.matmul("output gate dX", d_gate, kept.transposed.gate, ws.normed.data(), true);
    b.weight_gradient("output gate dW", b.gradient(q_gate, layer_), d_gate, of_q, d);
    b.adapter(kept.w.gate, at.normed, 1, d_gate, ws.normed.data());
  }
  b.norm({input_norm, layer_, kept.w.norm, input_norm_bias}, at.stream);
  if (is_read_later()) b.add_to_hidden(ws.beside);
}

// From what the gate left to what attention left, and to the gate's product.
void Attention::output_gate_backward(BackwardPass& b, const Activations& at) const {
  const BackwardWorkspace& ws = b.workspace();
  b.run("output gate backward", b.kernels().output_gate_backward,
        OutputGateBackwardParams{.x = at.ungated,
                                 .gate = at.gates,
                                 .d = ws.attended.data(),
                                 .rows = b.rows(),
                                 .width = query_width(),
                                 .dx = ws.attended.data(),
                                 .d_gate = ws.output_gates.data()});
}

const char* Attention::refusal() const {
  if (spec_.sees_ahead)
    return "its attention is in both directions, whose gradient is not implemented";
  if (spec_.chunk > 0) return "its attention goes by chunks, whose gradient is not implemented";
  if (places_values() || makes_values() || spec_.shares_keys || spec_.kv_heads > 0 ||
      spec_.head_dim > 0)
    return "its values are not as its keys, whose gradient is not implemented";
  if (spec_.growth)
    return "its queries grow with their positions, whose gradient is not implemented";
  if (turns_early())
    return "its q/k norm stands behind the rotation, and the gradient of that is not implemented";
  if (spec_.score_cap > 0) return "its scores are capped, whose gradient is not implemented";
  if (spec_.has_sinks) return "its attention has sinks, whose gradient is not implemented";
  return nullptr;
}

}  // namespace invar
