#include "model/parts/attention.h"

#include <algorithm>

#include "kernels/row_parts.h"
#include "model/parts/makers.h"

namespace invar {

using enum TensorRole;

// Ranks share out heads; the attention output is cut along them.
void Attention::visit(Weights& w, TensorVisitor& tensors) const {
  const int64_t d = model_.hidden, e = head_dim();
  const bool is_layer_norm = model_.norm == NormKind::layer;
  const TensorAxis queries{model_.heads * e, share_.first_head * e, share_.heads * e};
  const auto of_kv_heads = [&](int64_t each) {
    return TensorAxis{model_.kv_heads_of(spec_) * each, share_.first_kv_head * each,
                      share_.kv_heads * each};
  };
  const TensorAxis keys = of_kv_heads(e), values = of_kv_heads(value_dim());
  const TensorAxis outputs{model_.heads * value_dim(), share_.first_head * value_dim(),
                           share_.heads * value_dim()};
  const TensorAxis inputs = whole(reads_joined(layer_spec_) ? 2 * d : d);
  if (is_before(spec_.norms))
    tensors.vector(w.norm, {{input_norm, "input_layernorm.weight", whole(d)}});
  if (is_before(spec_.norms) && is_layer_norm)
    tensors.vector(w.norm_bias, {{input_norm_bias, "input_layernorm.bias", whole(d)}});
  std::vector<TensorRow> products{{q, "self_attn.q_proj.weight", queries, inputs}};
  if (!spec_.shares_keys) products.push_back({k, "self_attn.k_proj.weight", keys, inputs});
  const TensorRow value{v, "self_attn.v_proj.weight", values, inputs};
  if (!spec_.shares_keys && !spec_.keys_are_values && !places_values()) products.push_back(value);
  tensors.matrix(w.qkv, products, {.takes_quantised = true, .others = &w.qkv_others});
  if (places_values()) tensors.matrix(w.v, {value}, {.takes_quantised = true});
  if (spec_.has_output_gate)
    tensors.matrix(w.gate, {{q_gate, "self_attn.q_gate.weight", queries, inputs}},
                   {.takes_quantised = true});
  if (model_.qkv_bias)
    tensors.vector(w.qkv_bias, {{q_bias, "self_attn.q_proj.bias", queries},
                                {k_bias, "self_attn.k_proj.bias", keys},
                                {v_bias, "self_attn.v_proj.bias", values}});
  if (model_.qk_norm) {
    const bool is_joint = model_.joint_qk_norm;
    tensors.vector(w.q_norm, {{q_norm, "self_attn.q_norm.weight",
                               whole(is_joint ? model_.query_width() : e)}});
    if (!spec_.shares_keys)
      tensors.vector(w.k_norm,
                     {{k_norm, "self_attn.k_norm.weight", whole(is_joint ? keys.size : e)}});
  }
  if (spec_.has_unit_heads || spec_.has_value_norm)
    tensors.numbers(w.ones, std::vector<float>(static_cast<size_t>(e), 1));
  if (spec_.has_sinks)
    tensors.vector(w.sinks,
                   {{sinks, "self_attn.sinks", {model_.heads, share_.first_head, share_.heads}}});
  tensors.matrix(w.o, {{o, "self_attn.o_proj.weight", whole(d), outputs}},
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
  at.q = memory.heads(share_.heads, head_dim());
  if (is_kept) at.max = memory.array<float>(share_.heads);
  if (is_kept) at.sum = memory.array<float>(share_.heads);
  if (places_values()) at.values = memory.array<float>(share_.kv_heads * value_dim());
  at.attended = memory.activation(query_width());
  if (is_narrow()) at.narrow = memory.activation(share_.heads * value_dim());
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
  const int64_t q_stride = share_.heads * round_up(head_dim(), 32);
  p.trace("rope", Activation{at.q, p.ops.arithmetic().heads(), q_stride}, q_stride);

  attend.run(rotation);
  p.trace("attention", at.attended, query_width());
  if (spec_.has_output_gate) gate_output(p, w, at);

  if (is_narrow()) narrow(p, at);
  p.ops.add_product("o", is_narrow() ? at.narrow : at.attended, w.o,
                    shard_.runs(attention_output_split_k(model_, spec_)), w.o_bias, w.out_norm,
                    p.next, at.added);
  p.trace("o", p.hidden, model_.hidden);
}

// The elements of each head that values have.
void Attention::narrow(const PartPass& p, const Activations& at) const {
  const size_t size = static_cast<size_t>(size_of(at.narrow.type));
  const size_t from = static_cast<size_t>(head_dim()) * size;
  const size_t to = static_cast<size_t>(value_dim()) * size;
  for (int64_t t = 0; t < p.rows; ++t)
    p.ops.stream().copy_rows(
        static_cast<std::byte*>(at.narrow.data) + t * at.narrow.stride * size, to,
        static_cast<std::byte*>(at.attended.data) + t * at.attended.stride * size, from, to,
        share_.heads);
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
  return p.ops.kernels().qkv_product && !model_.joint_qk_norm && !turns_early() && !spec_.growth &&
         !places_values() && !makes_values() && !spec_.shares_keys && !arithmetic.is_exact &&
         !arithmetic.is_baseline && p.rows >= kByHeadRows && share_.kv_heads % parts == 0 &&
         head_dim() % kPanelWidth == 0 && parts * qkv_scratch_stride(head_dim()) <= qkv_width() &&
         !p.hooks.is_traced() && !at.qkv && !p.ops.is_adapted(w.qkv);
}

// Rotated queries of the normed input; keys and values in their slots. Where attention rotates,
// only the product.
QkvParams Attention::make_qkv(const PartPass& p, const Weights& w, const Activations& at,
                              const Attend& attend) const {
  const bool by_heads = !model_.joint_qk_norm;  // else they are normed before
  float* products = products_of(p, at);
  const float* q_norm = spec_.has_unit_heads ? w.ones : by_heads ? w.q_norm : nullptr;
  const float* k_norm = spec_.has_unit_heads ? w.ones : by_heads ? w.k_norm : nullptr;
  const QkvParams rotation = attend.rotation(
      turns_early() ? p.ops.ropes().still() : p.ops.ropes().of(layer_), q_norm, k_norm);
  if (goes_by_heads(p, w, at)) {
    p.ops.run("qkv", p.ops.kernels().qkv_product,
              QkvProductParams{.x = p.ops.factor(at.normed, w.qkv, p.rows, 1),
                               .w = w.qkv,
                               .bias = w.qkv_bias,
                               .then = rotation,
                               .scratch = products});
  } else {
    qkv_product(p, w, at, products);
    if (makes_values()) make_values(p, w, products);
    p.trace("qkv", products, qkv_width());
    if (model_.joint_qk_norm) norm_joint_heads(p, w, at);
    if (turns_early()) turn(p, at, p.ops.ropes().of(layer_), share_.heads + share_.kv_heads);
    if (spec_.growth) turn(p, at, p.ops.ropes().growth_of(layer_), share_.heads);
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
  product(*last, first, places_values() ? &w.v : &w.o);
  if (places_values()) value_product(p, w, at, products + last->n + first);
}

void Attention::value_product(const PartPass& p, const Weights& w, const Activations& at,
                              float* out) const {
  const int64_t first = qkv_width() - share_.kv_heads * head_dim();
  p.ops.product("v", at.normed, w.v, w.qkv_bias ? w.qkv_bias + first : nullptr, p.rows, at.values,
                w.v.n, &w.o);
  p.ops.run("place values", p.ops.kernels().place_values,
            PlaceValuesParams{.x = at.values,
                              .rows = p.rows,
                              .heads = share_.kv_heads,
                              .width = value_dim(),
                              .head_dim = head_dim(),
                              .scale = spec_.value_scale,
                              .out = out,
                              .out_stride = qkv_width()});
}

// Values behind their keys: those of the keys before norm and rotation, or their own; normed head
// by head where they are.
void Attention::make_values(const PartPass& p, const Weights& w, float* products) const {
  const int64_t stride = qkv_width(), e = head_dim(), width = own_kv_heads() * e;
  float* values = products + stride - width;
  const auto bytes = [](int64_t count) { return static_cast<size_t>(count) * sizeof(float); };
  if (spec_.keys_are_values)
    p.ops.stream().copy_rows(values, bytes(stride), values - width, bytes(stride), bytes(width),
                             p.rows);
  for (float* head = values; spec_.has_value_norm && head < values + width; head += e)
    p.ops.norm_part(head, stride, e, w.ones, {head, DType::f32, stride}, true);
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
  p.ops.norm_part(keys, stride, share_.kv_heads * head_dim(), w.k_norm, {keys, DType::f32, stride},
                  true);
}

// The first heads of queries and keys, before their norms. A table of growth multiplies them.
void Attention::turn(const PartPass& p, const Activations& at, const RopeTable& rope,
                     int heads) const {
  p.ops.run("rope", p.ops.kernels().rotate_heads,
            RotateHeadsParams{.x = products_of(p, at),
                              .x_stride = qkv_width(),
                              .rows = p.rows,
                              .heads = heads,
                              .head_dim = head_dim(),
                              .positions = p.ops.tables().rotations,
                              .cos = rope.cos(),
                              .sin = rope.sin()});
}

std::unique_ptr<LayerPart> make_attention(const PartPlace& place) {
  return std::make_unique<Attention>(place);
}

}  // namespace invar
