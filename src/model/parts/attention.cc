// Attention to the keys and values of a sequence.
#include <algorithm>

#include "kernels/recurrent_backward.h"
#include "kernels/row_parts.h"
#include "model/parts/attend.h"
#include "model/parts/makers.h"

namespace invar {

namespace {

using enum TensorRole;

struct AttentionWeights : PartWeights {
  Matrix qkv;                        // [(H + 2G) * E][D]: q, then k, then v
  std::vector<Matrix> qkv_others;    // its last tensors, where these are stored in other blocks
  Matrix gate;                       // [H * E][D] of outputs, or none
  Matrix o;                          // [D][H * E]
  const float* norm = nullptr;       // [D] or null
  const float* norm_bias = nullptr;  // [D] or null: of LayerNorm
  const float* q_norm = nullptr;     // [E] or null; [H * E] of a joint norm, k's [G * E]
  const float* k_norm = nullptr;
  const float* out_norm = nullptr;  // [D] or null
  const float* qkv_bias = nullptr;  // [(H + 2G) * E] or null
  const float* o_bias = nullptr;    // [D] or null
  const float* sinks = nullptr;     // [H] or null
};

struct AttentionActivations : PartActivations {
  float* stream = nullptr;    // [T][D] the residual stream before it, or null
  Activation normed;          // [T][D]
  float* qkv = nullptr;       // [T][(H + 2G) * E] the product where it is kept, or null
  float* products = nullptr;  // the same where it is not
  bf16_t* q = nullptr;        // [T][H][round_up(E, 32)]; f32 where the cache is
  float* max = nullptr;       // [T][H] or null; see PartialAttentionParams
  float* sum = nullptr;
  Activation attended;     // [T][H * E]
  Activation ungated;      // [T][H * E] the same before the output gate, where it is kept
  float* gates = nullptr;  // [T][H * E] or null
  float* added = nullptr;  // [T][D] what it adds, before the norm behind it, or null
};

class Attention final : public PartOf<AttentionWeights, AttentionActivations> {
 public:
  explicit Attention(const PartPlace& place)
      : PartOf(place), spec_(*layer_spec_.attention()), share_(heads_of(model_, shard_)) {}

  bool is_read_later() const override {
    return layer_spec_.ffn() && layer_spec_.ffn()->is_parallel;
  }
  StateShape state() const override {
    return {.kv_heads = share_.kv_heads, .head_dim = model_.head_dim};
  }
  const char* refusal() const override;

 private:
  void visit(Weights& w, TensorVisitor& tensors) const override;
  const Matrix* first(const Weights& w) const override { return &w.qkv; }
  void place(ActivationMemory& memory, Activations& at) const override;
  void forward(const PartPass& p, const Weights& w, const Activations& at) const override;
  void backward(BackwardPass& b, const Kept& kept) const override;

  void gate_output(const PartPass& p, const Weights& w, const Activations& at) const;
  float* products_of(const PartPass& p, const Activations& at) const;
  bool goes_by_heads(const PartPass& p, const Weights& w, const Activations& at) const;
  void qkv_product(const PartPass& p, const Weights& w, const Activations& at,
                   float* products) const;
  QkvParams make_qkv(const PartPass& p, const Weights& w, const Activations& at,
                     const Attend& attend) const;
  void norm_joint_heads(const PartPass& p, const Weights& w, const Activations& at) const;
  void rotate_heads(const PartPass& p, const Activations& at) const;

  int64_t query_width() const { return int64_t{share_.heads} * model_.head_dim; }
  int64_t qkv_width() const {
    return int64_t{share_.heads + 2 * share_.kv_heads} * model_.head_dim;
  }
  void attention_backward(BackwardPass& b, const Kept& kept, const Activation& d_attended) const;
  void head_norm_gradient(BackwardPass& b, const Kept& kept, TensorRole role, int64_t first,
                          int64_t heads) const;
  Activation qkv_backward(BackwardPass& b, const Kept& kept) const;
  void output_gate_backward(BackwardPass& b, const Activations& at) const;

  const AttentionSpec spec_;
  const HeadShare share_;
};

// Ranks share out heads; the attention output is cut along them.
void Attention::visit(Weights& w, TensorVisitor& tensors) const {
  const int64_t d = model_.hidden, e = model_.head_dim;
  const bool is_layer_norm = model_.norm == NormKind::layer;
  const TensorAxis queries{model_.query_width(), share_.first_head * e, share_.heads * e};
  const TensorAxis keys{model_.kv_width(), share_.first_kv_head * e, share_.kv_heads * e};
  const TensorAxis inputs = whole(reads_joined(layer_spec_) ? 2 * d : d);
  if (is_before(spec_.norms))
    tensors.vector(w.norm, {{input_norm, "input_layernorm.weight", whole(d)}});
  if (is_before(spec_.norms) && is_layer_norm)
    tensors.vector(w.norm_bias, {{input_norm_bias, "input_layernorm.bias", whole(d)}});
  tensors.matrix(w.qkv,
                 {{q, "self_attn.q_proj.weight", queries, inputs},
                  {k, "self_attn.k_proj.weight", keys, inputs},
                  {v, "self_attn.v_proj.weight", keys, inputs}},
                 {.takes_quantised = true, .others = &w.qkv_others});
  if (spec_.has_output_gate)
    tensors.matrix(w.gate, {{q_gate, "self_attn.q_gate.weight", queries, inputs}},
                   {.takes_quantised = true});
  if (model_.qkv_bias)
    tensors.vector(w.qkv_bias, {{q_bias, "self_attn.q_proj.bias", queries},
                                {k_bias, "self_attn.k_proj.bias", keys},
                                {v_bias, "self_attn.v_proj.bias", keys}});
  if (model_.qk_norm) {
    const bool is_joint = model_.joint_qk_norm;
    tensors.vector(w.q_norm, {{q_norm, "self_attn.q_norm.weight",
                               whole(is_joint ? model_.query_width() : e)}});
    tensors.vector(w.k_norm,
                   {{k_norm, "self_attn.k_norm.weight", whole(is_joint ? model_.kv_width() : e)}});
  }
  if (spec_.has_sinks)
    tensors.vector(w.sinks,
                   {{sinks, "self_attn.sinks", {model_.heads, share_.first_head, share_.heads}}});
  tensors.matrix(w.o, {{o, "self_attn.o_proj.weight", whole(d), queries}},
                 {.takes_quantised = true});
  if (model_.o_bias) tensors.vector(w.o_bias, {{o_bias, "self_attn.o_proj.bias", whole(d)}});
  if (is_after(spec_.norms))
    tensors.vector(w.out_norm, {{attention_out_norm, "post_attention_layernorm.weight", whole(d)}});
}

void Attention::place(ActivationMemory& memory, Activations& at) const {
  const bool is_kept = memory.is_kept();
  at.stream = memory.stream(model_.hidden);
  at.normed = memory.handed_on() ? *memory.handed_on() : memory.activation(model_.hidden);
  if (!is_kept) at.products = memory.array<float>(qkv_width());
  if (is_kept && model_.qk_norm) at.qkv = memory.array<float>(qkv_width());
  if (is_kept && is_after(spec_.norms)) at.added = memory.array<float>(model_.hidden);
  at.q = memory.heads(share_.heads, model_.head_dim);
  if (is_kept) at.max = memory.array<float>(share_.heads);
  if (is_kept) at.sum = memory.array<float>(share_.heads);
  at.attended = memory.activation(query_width());
  if (spec_.has_output_gate) at.gates = memory.array<float>(query_width());
  if (spec_.has_output_gate && is_kept) at.ungated = memory.activation(query_width());
}

// h = h + o(attention(rope(qkv(norm(h))))), with norms where the layer has them
void Attention::forward(const PartPass& p, const Weights& w, const Activations& at) const {
  const Attend::Arrays arrays{.products = products_of(p, at),
                              .q = at.q,
                              .out = at.attended,
                              .max = at.max,
                              .sum = at.sum,
                              .products_are_wanted = at.qkv != nullptr,
                              .sinks = w.sinks};
  const Attend attend(p, model_, spec_, share_, arrays);
  attend.copy_slots();
  p.hooks.keep_hidden(at.stream);
  if (is_read_later())
    p.ops.norm(p.hidden, w.norm, at.normed, nullptr, -1, w.norm_bias);
  else if (spec_.has_output_gate)  // which reads it, too
    p.ops.norm(p.hidden, w.norm, at.normed);
  else if (!reads_joined(layer_spec_))
    p.ops.norm_before(w.qkv, p.hidden, w.norm, at.normed, w.norm_bias);
  p.trace("attention_norm", at.normed, w.qkv.k);

  const QkvParams rotation = make_qkv(p, w, at, attend);
  const int64_t q_stride = share_.heads * round_up(model_.head_dim, 32);
  p.trace("rope", Activation{at.q, p.ops.arithmetic().heads(), q_stride}, q_stride);

  attend.run(rotation);
  p.trace("attention", at.attended, query_width());
  if (spec_.has_output_gate) gate_output(p, w, at);

  p.ops.add_product("o", at.attended, w.o, shard_.runs(attention_output_split_k(model_)), w.o_bias,
                    w.out_norm, p.next, at.added);
  p.trace("o", p.hidden, model_.hidden);
}

void Attention::gate_output(const PartPass& p, const Weights& w, const Activations& at) const {
  p.ops.product("output gate", at.normed, w.gate, nullptr, p.rows, at.gates, query_width(), &w.o);
  if (at.ungated.data) {  // for the backward
    const size_t bytes = static_cast<size_t>(p.rows * at.attended.stride) * sizeof(bf16_t);
    p.ops.stream().copy_rows(at.ungated.data, bytes, at.attended.data, bytes, bytes, 1);
  }
  p.ops.run("output gate", p.ops.kernels().gate_output,
            OutputGateParams{.x = at.attended,
                             .gate = at.gates,
                             .gate_stride = query_width(),
                             .rows = p.rows,
                             .width = query_width()});
  p.trace("output gate", at.attended, query_width());
}

// A tape does not keep a product that nothing but the rotation follows; joint norms overwrite it.
float* Attention::products_of(const PartPass& p, const Activations& at) const {
  return at.qkv && !model_.joint_qk_norm ? at.qkv : of(p.in_turn).products;
}

// Whether the product of q, k and v and what follows it go head by head: with many rows, when the
// heads share out evenly over the team.
bool Attention::goes_by_heads(const PartPass& p, const Weights& w, const Activations& at) const {
  constexpr int64_t kByHeadRows = 64;  // with fewer, a product's memory is small anyway
  const Arithmetic& arithmetic = p.ops.arithmetic();
  const int parts = qkv_shares(p.rows, p.ops.team()).groups;
  return p.ops.kernels().qkv_product && !model_.joint_qk_norm && !model_.late_qk_norm &&
         !arithmetic.is_exact && !arithmetic.is_baseline && p.rows >= kByHeadRows &&
         share_.kv_heads % parts == 0 && model_.head_dim % kPanelWidth == 0 &&
         parts * qkv_scratch_stride(model_.head_dim) <= qkv_width() && !p.hooks.is_traced() &&
         !at.qkv && !p.ops.is_adapted(w.qkv);
}

// Rotated queries of the normed input; keys and values in their slots. Where attention rotates,
// only the product.
QkvParams Attention::make_qkv(const PartPass& p, const Weights& w, const Activations& at,
                              const Attend& attend) const {
  const bool by_heads = !model_.joint_qk_norm;  // else they are normed before
  float* products = products_of(p, at);
  const QkvParams rotation =
      attend.rotation(model_.late_qk_norm ? p.ops.ropes().still() : p.ops.ropes().of(layer_),
                      by_heads ? w.q_norm : nullptr, by_heads ? w.k_norm : nullptr);
  if (goes_by_heads(p, w, at)) {
    p.ops.run("qkv", p.ops.kernels().qkv_product,
              QkvProductParams{.x = p.ops.factor(at.normed, w.qkv, p.rows, 1),
                               .w = w.qkv,
                               .bias = w.qkv_bias,
                               .then = rotation,
                               .scratch = products});
  } else {
    qkv_product(p, w, at, products);
    p.trace("qkv", products, qkv_width());
    if (model_.joint_qk_norm) norm_joint_heads(p, w, at);
    if (model_.late_qk_norm) rotate_heads(p, at);
    if (!attend.rotates()) p.ops.run("rope", p.ops.kernels().qkv, rotation);
  }
  attend.store_slots();
  return rotation;
}

void Attention::qkv_product(const PartPass& p, const Weights& w, const Activations& at,
                            float* products) const {
  const auto product = [&](const Matrix& matrix, int64_t first, const Matrix* next) {
    p.ops.product("qkv", at.normed, matrix, w.qkv_bias ? w.qkv_bias + first : nullptr, p.rows,
                  products + first, qkv_width(), next);
  };
  const Matrix* last = &w.qkv;
  int64_t first = 0;
  for (const Matrix& other : w.qkv_others) {
    product(*last, first, &other);
    first += last->n;
    last = &other;
  }
  product(*last, first, &w.o);
}

// The queries of a row are one vector of the norm, its keys another one.
void Attention::norm_joint_heads(const PartPass& p, const Weights& w, const Activations& at) const {
  const int64_t stride = qkv_width(), queries = model_.query_width();
  float* products = products_of(p, at);
  const size_t bytes = static_cast<size_t>(p.rows * stride) * sizeof(float);
  if (at.qkv)  // for the backward
    p.ops.stream().copy_rows(at.qkv, bytes, products, bytes, bytes, 1);
  p.ops.norm_part(products, stride, queries, w.q_norm, {products, DType::f32, stride}, true);
  float* keys = products + queries;
  p.ops.norm_part(keys, stride, model_.kv_width(), w.k_norm, {keys, DType::f32, stride}, true);
}

// Queries and keys, before their norms.
void Attention::rotate_heads(const PartPass& p, const Activations& at) const {
  const RopeTable& rope = p.ops.ropes().of(layer_);
  p.ops.run("rope", p.ops.kernels().rotate_heads,
            RotateHeadsParams{.x = products_of(p, at),
                              .x_stride = qkv_width(),
                              .rows = p.rows,
                              .heads = share_.heads + share_.kv_heads,
                              .head_dim = model_.head_dim,
                              .positions = p.ops.tables().positions,
                              .cos = rope.cos(),
                              .sin = rope.sin()});
}

// d_qkv of rotated queries and keys, and of values.
void Attention::attention_backward(BackwardPass& b, const Kept& kept,
                                   const Activation& d_attended) const {
  const Activations& at = kept.at;
  const BackwardWorkspace& ws = b.workspace();
  b.run("attention backward", b.kernels().attention_backward,
        AttentionBackwardParams{.forward = {.q = at.q,
                                            .rows = b.rows(),
                                            .heads = model_.heads,
                                            .positions = b.tables().positions,
                                            .table_of = b.tables().table_of,
                                            .tables = b.tables().tables,
                                            .window = spec_.window,
                                            .kv = kept.kv,
                                            .out = at.ungated.data ? at.ungated : at.attended,
                                            .score_scale = spec_.score_scale},
                                .max = at.max,
                                .sum = at.sum,
                                .d_out = d_attended,
                                .max_positions = ws.max_positions,
                                .d_qkv = ws.qkv.data(),
                                .d_qkv_stride = qkv_width(),
                                .scratch = ws.scratch.data(),
                                .scratch_stride = ws.scratch_stride});
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
  const Activation d_qkv = BackwardPass::activation(b.workspace().wide, qkv_width());
  b.run("rotation backward", b.kernels().qkv_backward,
        QkvBackwardParams{.d_qkv = b.workspace().qkv.data(),
                          .d_qkv_stride = qkv_width(),
                          .qkv = kept.at.qkv,
                          .qkv_stride = qkv_width(),
                          .rows = b.rows(),
                          .heads = spec.heads,
                          .kv_heads = spec.kv_heads,
                          .head_dim = spec.head_dim,
                          .q_norm = w.q_norm,
                          .k_norm = w.k_norm,
                          .norm_eps = spec.norm_eps,
                          .positions = b.tables().positions,
                          .cos = b.rope(layer_).cos(),
                          .sin = b.rope(layer_).sin(),
                          .rs = b.workspace().rs.data(),
                          .is_joint = spec.joint_qk_norm,
                          .out = d_qkv});
  if (spec.qk_norm) {
    head_norm_gradient(b, kept, q_norm, 0, spec.heads);
    head_norm_gradient(b, kept, k_norm, spec.heads, spec.kv_heads);
  }
  return d_qkv;
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
  b.adapter(kept.w.o, at.attended, shard_.runs(attention_output_split_k(model_)), d_out,
            ws.attended.data());
  if (spec_.has_output_gate) output_gate_backward(b, at);

  attention_backward(b, kept, b.round(ws.attended.data(), queries, ws.wide));
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
  if (model_.late_qk_norm)
    return "its q/k norm stands behind the rotation, and the gradient of that is not implemented";
  if (spec_.score_cap > 0) return "its scores are capped, whose gradient is not implemented";
  if (spec_.has_sinks) return "its attention has sinks, whose gradient is not implemented";
  return nullptr;
}

}  // namespace

std::unique_ptr<LayerPart> make_attention(const PartPlace& place) {
  return std::make_unique<Attention>(place);
}

}  // namespace invar
