// The feed-forward network that every row goes through.
#include "model/parts/makers.h"
#include "model/parts/part_of.h"

namespace invar {

namespace {

using enum TensorRole;

struct FfnWeights : PartWeights {
  Matrix gate_up;                    // [F][D], a stack of two; of one, up, where nothing is gated
  Matrix down;                       // [D][F]
  const float* norm = nullptr;       // [D] or null, as the next two
  const float* norm_bias = nullptr;  // of LayerNorm
  const float* out_norm = nullptr;
  const float* gate_bias = nullptr;  // [F] or null
  const float* up_bias = nullptr;
  const float* down_bias = nullptr;  // [D] or null
};

struct FfnActivations : PartActivations {
  float* stream = nullptr;   // [T][D] the residual stream before it, or null
  Activation normed;         // [T][D]
  float* gate_up = nullptr;  // [T][2 * round_up(F, 16)] the products, or null; [T][F] ungated
  Activation gated;          // [T][F]
  float* added = nullptr;    // [T][D] what it adds, before the norm behind it, or null
};

class DenseFfn final : public PartOf<FfnWeights, FfnActivations> {
 public:
  explicit DenseFfn(const PartPlace& place)
      : PartOf(place), spec_(*layer_spec_.ffn()), width_(spec_.width / shard_.size) {}

  bool is_read_later() const override { return spec_.is_parallel; }
  const char* refusal() const override;

 private:
  void visit(Weights& w, TensorVisitor& tensors) const override;
  const Matrix* first(const Weights& w) const override { return &w.gate_up; }
  void place(ActivationMemory& memory, Activations& at) const override;
  void begin(const PartPass& p, const Weights& w, const Activations& at) const override;
  void forward(const PartPass& p, const Weights& w, const Activations& at) const override;
  void backward(BackwardPass& b, const Kept& kept) const override;

  const char* norm_name() const;
  const char* out_norm_name() const;
  void leave_beside(const PartPass& p, const Weights& w, const Activations& at) const;
  void curved_product(const PartPass& p, const Weights& w, const Activations& at) const;
  Activation inputs_of_curve(BackwardPass& b, const Kept& kept) const;

  const DenseFfnSpec spec_;
  const int width_;  // this rank's
};

// The norm before it has the name of its place: behind attention, or before it where another stands
// behind attention.
const char* DenseFfn::norm_name() const {
  return layer_spec_.attention() && is_after(layer_spec_.attention()->norms)
             ? "pre_feedforward_layernorm.weight"
             : "post_attention_layernorm.weight";
}

// Where experts stand beside it, theirs is behind the sum.
const char* DenseFfn::out_norm_name() const {
  return layer_spec_.has_networks_beside() ? "post_feedforward_layernorm_1.weight"
                                           : "post_feedforward_layernorm.weight";
}

// Ranks share out the width; down is cut along it.
void DenseFfn::visit(Weights& w, TensorVisitor& tensors) const {
  const TensorAxis d = whole(model_.hidden), f = shared(spec_.width, shard_.rank, shard_.size);
  const bool has_bias = model_.mlp_bias;
  if (is_before(spec_.norms)) tensors.vector(w.norm, {{post_norm, norm_name(), d}});
  if (is_before(spec_.norms) && model_.norm == NormKind::layer)
    tensors.vector(w.norm_bias, {{post_norm_bias, "post_attention_layernorm.bias", d}});
  std::vector<TensorRow> products{{up, "mlp.up_proj.weight", f, d}};
  if (spec_.is_gated) products.insert(products.begin(), {gate, "mlp.gate_proj.weight", f, d});
  tensors.matrix(w.gate_up, products, {.is_pair = spec_.is_gated, .takes_quantised = true});
  tensors.matrix(w.down, {{down, "mlp.down_proj.weight", d, f}}, {.takes_quantised = true});
  if (has_bias && spec_.is_gated)
    tensors.vector(w.gate_bias, {{gate_bias, "mlp.gate_proj.bias", f}});
  if (has_bias) tensors.vector(w.up_bias, {{up_bias, "mlp.up_proj.bias", f}});
  if (has_bias) tensors.vector(w.down_bias, {{down_bias, "mlp.down_proj.bias", d}});
  if (is_after(spec_.norms)) tensors.vector(w.out_norm, {{ffn_out_norm, out_norm_name(), d}});
}

void DenseFfn::place(ActivationMemory& memory, Activations& at) const {
  const bool is_kept = memory.is_kept();
  if (!spec_.is_parallel) at.stream = memory.stream(model_.hidden);
  at.normed = memory.activation(model_.hidden);
  if (is_kept) at.gate_up = memory.array<float>(2 * round_up(width_, kPanelWidth));
  if (!spec_.is_gated) at.gate_up = memory.array<float>(width_);
  at.gated = memory.activation(width_);
  if (is_kept && is_after(spec_.norms)) at.added = memory.array<float>(model_.hidden);
}

// Beside attention it reads what attention reads.
void DenseFfn::begin(const PartPass& p, const Weights& w, const Activations& at) const {
  if (spec_.is_parallel) p.ops.norm(p.hidden, w.norm, at.normed, nullptr, -1, w.norm_bias);
}

// h = h + down(curve(gate(norm(h))) * up(norm(h))), or without a gate down(curve(up(norm(h)))),
// with norms where the layer has them
void DenseFfn::forward(const PartPass& p, const Weights& w, const Activations& at) const {
  p.hooks.keep_hidden(at.stream);
  if (!spec_.is_parallel) p.ops.norm_before(w.gate_up, p.hidden, w.norm, at.normed, w.norm_bias);
  p.trace("ffn_norm", at.normed, model_.hidden);

  if (spec_.is_gated)
    p.ops.gated_product("gated",
                        {.x = at.normed,
                         .gate_up = w.gate_up,
                         .rows = p.rows,
                         .gate_bias = w.gate_bias,
                         .up_bias = w.up_bias,
                         .out = at.gated,
                         .next = &w.down,
                         .curve = spec_.curve},
                        at.gate_up);
  else
    curved_product(p, w, at);
  p.trace("gated", at.gated, width_);
  if (layer_spec_.has_networks_beside()) return leave_beside(p, w, at);

  p.ops.add_product("down", at.gated, w.down, shard_.runs(down_split_k(spec_.width)), w.down_bias,
                    w.out_norm, p.next, at.added);
  p.trace("down", p.hidden, model_.hidden);
}

// Leaves norm(down(x)) for the experts beside it, which add to that.
void DenseFfn::leave_beside(const PartPass& p, const Weights& w, const Activations& at) const {
  const int64_t d = model_.hidden;
  float* out = p.ops.beside();
  p.ops.partial_product("down", at.gated, w.down, shard_.runs(down_split_k(spec_.width)), out, d,
                        true);
  p.ops.norm_part(out, d, d, w.out_norm, {out, DType::f32, d}, true);
  p.trace("down", out, d);
}

// out = curve(up(x))
void DenseFfn::curved_product(const PartPass& p, const Weights& w, const Activations& at) const {
  p.ops.product("up", at.normed, w.gate_up, w.up_bias, p.rows, at.gate_up, width_, &w.down);
  p.ops.run("curve", p.ops.kernels().curve,
            CurveParams{.x = at.gate_up,
                        .x_stride = width_,
                        .rows = p.rows,
                        .width = width_,
                        .curve = spec_.curve,
                        .out = at.gated});
}

// The gradients of gate and up from that of the gated activation, or of what a curve follows.
Activation DenseFfn::inputs_of_curve(BackwardPass& b, const Kept& kept) const {
  const Weights& w = kept.w;
  const Activations& at = kept.at;
  const BackwardWorkspace& ws = b.workspace();
  const int64_t f = spec_.width;
  const bool is_whole =
      b.is_adapted(w.gate_up);  // products with their biases, before the adapter's
  const Activation out =
      BackwardPass::activation(ws.wide, spec_.is_gated ? 2 * round_up(f, kPanelWidth) : f);
  if (spec_.is_gated)
    b.run("gate backward", b.kernels().gate_backward,
          GateBackwardParams{.gate_up = at.gate_up,
                             .gate_bias = is_whole ? nullptr : w.gate_bias,
                             .up_bias = is_whole ? nullptr : w.up_bias,
                             .d_gated = ws.gated.data(),
                             .rows = b.rows(),
                             .width = f,
                             .out = out,
                             .curve = spec_.curve,
                             .layout = w.gate_up.layout});
  else
    b.run("curve backward", b.kernels().curve_backward,
          CurveBackwardParams{.x = at.gate_up,
                              .dy = ws.gated.data(),
                              .rows = b.rows(),
                              .width = f,
                              .curve = spec_.curve,
                              .out = out});
  return out;
}

void DenseFfn::backward(BackwardPass& b, const Kept& kept) const {
  const Weights& w = kept.w;
  const Activations& at = kept.at;
  const BackwardWorkspace& ws = b.workspace();
  const int64_t d = model_.hidden, f = spec_.width;
  const Activation d_out = b.added(ffn_out_norm, layer_, w.out_norm, at.added);
  b.matmul("down dX", d_out, kept.transposed.down, ws.gated.data());
  b.pack_inputs(at.gated, f);
  b.weight_gradient("down dW", b.gradient(down, layer_), d_out, {0, d}, f);
  b.bias_gradient(down_bias, layer_, d_out, {0, d});
  b.adapter(w.down, at.gated, shard_.runs(down_split_k(f)), d_out, ws.gated.data());

  const Activation d_gate_up = inputs_of_curve(b, kept);
  b.matmul("gated dX", d_gate_up, kept.transposed.gate_up, ws.normed.data());
  b.pack_inputs(at.normed, d);
  const Columns of_gate{0, f, 0}, of_up{0, f, spec_.is_gated ? 1 : -1};
  if (spec_.is_gated)
    b.weight_gradient("gated dW", b.gradient(gate, layer_), d_gate_up, of_gate, d);
  b.weight_gradient("gated dW", b.gradient(up, layer_), d_gate_up, of_up, d);
  b.bias_gradient(gate_bias, layer_, d_gate_up, of_gate);
  b.bias_gradient(up_bias, layer_, d_gate_up, of_up);
  b.adapter(w.gate_up, at.normed, 1, d_gate_up, ws.normed.data());
  const BackwardPass::Norm norm{post_norm, layer_, w.norm, post_norm_bias};
  if (!spec_.is_parallel) return b.norm(norm, at.stream);
  // Attention reads the same stream and comes next: until then this gradient stands beside.
  b.clear(ws.beside, model_.hidden);
  b.norm(norm, b.layer_input(layer_), ws.beside.data());
}

const char* DenseFfn::refusal() const {
  if (spec_.curve == Nonlinearity::gelu && spec_.is_gated)
    return "its gate is an exact GELU, whose gradient is not implemented";
  if (model_.residual_scale != 1 || model_.logits_divisor != 1 || model_.logits_cap > 0)
    return "its residual stream or logits are scaled, whose gradient is not implemented";
  return nullptr;
}

}  // namespace

std::unique_ptr<LayerPart> make_dense_ffn(const PartPlace& place) {
  return std::make_unique<DenseFfn>(place);
}

}  // namespace invar
