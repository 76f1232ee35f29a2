// Kimi Delta Attention (Kimi Team, 2025): the gated delta rule with a decay for each channel of a
// key. Decays and the outputs' gates come out of two products with few numbers between them
// (numerics 4.4).
#include "model/parts/makers.h"
#include "model/parts/recurrent_heads.h"

namespace invar {

namespace {

using enum TensorRole;

struct ChannelDeltaWeights : PartWeights {
  Matrix inputs;                     // [3 H R][D]: queries, keys, values
  Matrix narrow;                     // [2 R + H][D]: of decays, of gates; factors
  Matrix decays, gates;              // [H R][R]
  Matrix o;                          // [D][H R]
  const float* norm = nullptr;       // [D]
  const float* conv = nullptr;       // [taps][3 H R]
  const float* bias = nullptr;       // [H R], of decays
  const float* log_rate = nullptr;   // [H]
  const float* head_norm = nullptr;  // [R]
};

struct ChannelDeltaActivations : PartActivations {
  float* stream = nullptr;         // [T][D] the residual stream before it, or null
  Activation normed;               // [T][D]
  float* inputs = nullptr;         // [T][3 H R]
  float* narrow = nullptr;         // [T][2 R + H]
  Activation of_decays, of_gates;  // [T][R]
  float* decays = nullptr;         // [T][H R]
  float* gates = nullptr;          // [T][H R]
  RecurrentArrays heads;
  Activation gated;  // [T][H R]
};

class ChannelDelta final : public PartWithState<ChannelDeltaWeights, ChannelDeltaActivations> {
 public:
  explicit ChannelDelta(const PartPlace& place)
      : PartWithState(place),
        spec_(*layer_spec_.find<ChannelDeltaSpec>()),
        heads_{.kind = Recurrence::channel_delta,
               .key_heads = spec_.heads / shard_.size,
               .heads = spec_.heads / shard_.size,
               .key_size = spec_.size,
               .value_size = spec_.size,
               .taps = spec_.taps} {}

  StateShape state() const override { return heads_.state(); }

 private:
  void visit(Weights& w, TensorVisitor& tensors) const override;
  const Matrix* first(const Weights& w) const override { return &w.inputs; }
  void place(ActivationMemory& memory, Activations& at) const override;
  void forward(const PartPass& p, const Weights& w, const Activations& at) const override;

  void backward(BackwardPass& b, const Kept& kept) const override;

  RecurrentHeads::Convolution convolution_of(const Weights& w, const Activations& at) const {
    return {.x = at.inputs, .x_stride = w.inputs.n, .weight = w.conv};
  }
  RecurrentHeads::Gates gates_of(const Weights& w, const Activations& at) const;
  GatedNormParams norm_of(int64_t rows, const Weights& w, const Activations& at) const;
  void widen(const PartPass& p, const Weights& w, const Activations& at) const;
  void widen_backward(BackwardPass& b, const Kept& kept) const;
  void inputs_backward(BackwardPass& b, const Kept& kept) const;

  const ChannelDeltaSpec spec_;
  const RecurrentHeads heads_;  // of this rank
};

// Ranks share out heads; what is narrow is whole on each.
void ChannelDelta::visit(Weights& w, TensorVisitor& tensors) const {
  const TensorAxis d = whole(model_.hidden), size = whole(spec_.size);
  const TensorAxis all = shared(spec_.width(), shard_.rank, shard_.size),
                   heads = shared(spec_.heads, shard_.rank, shard_.size);
  const Each taps = every_tap(spec_.taps);
  tensors.vector(w.norm, {{input_norm, "input_layernorm.weight", d}});
  tensors.matrix(w.inputs,
                 {{recurrent_q, "self_attn.q_proj.weight", all, d},
                  {recurrent_k, "self_attn.k_proj.weight", all, d},
                  {recurrent_v, "self_attn.v_proj.weight", all, d}},
                 {.takes_quantised = true});
  tensors.matrix(w.narrow, {{decay_down, "self_attn.f_a_proj.weight", size, d},
                            {gate_down, "self_attn.g_a_proj.weight", size, d},
                            {recurrent_factor, "self_attn.b_proj.weight", heads, d}});
  tensors.matrix(w.decays, {{recurrent_decay, "self_attn.f_b_proj.weight", all, size}});
  tensors.matrix(w.gates, {{recurrent_gate, "self_attn.g_b_proj.weight", all, size}});
  tensors.vector(w.conv,
                 {{conv_q, "self_attn.conv.{}.q.weight", all},
                  {conv_k, "self_attn.conv.{}.k.weight", all},
                  {conv_v, "self_attn.conv.{}.v.weight", all}},
                 &taps);
  tensors.vector(w.bias, {{decay_bias, "self_attn.dt_bias", all}});
  tensors.vector(w.log_rate, {{decay_rate, "self_attn.A_log", heads}});
  tensors.vector(w.head_norm, {{head_norm, "self_attn.o_norm.weight", size}});
  tensors.matrix(w.o, {{recurrent_o, "self_attn.o_proj.weight", d, all}},
                 {.takes_quantised = true});
}

void ChannelDelta::place(ActivationMemory& memory, Activations& at) const {
  at.stream = memory.stream(model_.hidden);
  at.normed = memory.activation(model_.hidden);
  at.inputs = memory.array<float>(heads_.mixed());
  at.narrow = memory.array<float>(2 * spec_.size + heads_.heads);
  at.of_decays = memory.activation(spec_.size);
  at.of_gates = memory.activation(spec_.size);
  at.decays = memory.array<float>(heads_.values());
  at.gates = memory.array<float>(heads_.values());
  at.heads = heads_.place(memory);
  at.gated = memory.activation(heads_.values());
}

RecurrentHeads::Gates ChannelDelta::gates_of(const Weights& w, const Activations& at) const {
  return {.a = at.decays,
          .a_stride = heads_.values(),
          .z = at.narrow + 2 * spec_.size,
          .z_stride = w.narrow.n,
          .log_rate = w.log_rate,
          .bias = w.bias};
}

GatedNormParams ChannelDelta::norm_of(int64_t rows, const Weights& w, const Activations& at) const {
  return {.x = at.heads.out,
          .x_stride = heads_.values(),
          .gate = at.gates,
          .gate_stride = heads_.values(),
          .weight = w.head_norm,
          .own_weights = false,
          .is_sigmoid = true,
          .gate_first = false,
          .eps = model_.norm_eps,
          .rows = rows,
          .groups = heads_.heads,
          .width = spec_.size,
          .out = at.gated};
}

// h = h + o(gated_norm(recurrence(conv(inputs(norm(h))), decays(norm(h))), gates(norm(h))))
void ChannelDelta::forward(const PartPass& p, const Weights& w, const Activations& at) const {
  const RecurrentMemory memory = heads_.begin(p);
  p.hooks.keep_hidden(at.stream);
  p.ops.norm(p.hidden, w.norm, at.normed);
  p.trace("attention_norm", at.normed, model_.hidden);
  p.ops.product("recurrent inputs", at.normed, w.inputs, nullptr, p.rows, at.inputs, w.inputs.n);
  widen(p, w, at);
  heads_.convolve(p, at.heads, memory, convolution_of(w, at));
  heads_.gate(p, at.heads, gates_of(w, at));
  heads_.recur(p, at.heads, memory);
  p.ops.run("gated norm", p.ops.kernels().gated_norm, norm_of(p.rows, w, at));
  p.trace("gated norm", at.gated, heads_.values());
  p.ops.add_product("o", at.gated, w.o, shard_.runs(channel_delta_output_split_k(spec_)), nullptr,
                    nullptr, p.next);
  p.trace("o", p.hidden, model_.hidden);
}

// Decays and gates before their functions.
void ChannelDelta::widen(const PartPass& p, const Weights& w, const Activations& at) const {
  const int64_t size = spec_.size, stride = w.narrow.n;
  p.ops.product("recurrent gates", at.normed, w.narrow, nullptr, p.rows, at.narrow, stride);
  p.ops.round_part(at.narrow, stride, size, at.of_decays);
  p.ops.round_part(at.narrow + size, stride, size, at.of_gates);
  p.ops.product("decays", at.of_decays, w.decays, nullptr, p.rows, at.decays, w.decays.n);
  p.ops.product("output gate", at.of_gates, w.gates, nullptr, p.rows, at.gates, w.gates.n, &w.o);
}

void ChannelDelta::backward(BackwardPass& b, const Kept& kept) const {
  const Activations& at = kept.at;
  heads_.output_backward(
      b, layer_, at.gated,
      {kept.w.o, kept.transposed.o, shard_.runs(channel_delta_output_split_k(spec_))});
  heads_.norm_backward(b, layer_, norm_of(b.rows(), kept.w, at));
  heads_.recur_backward(b, layer_, at.heads, gates_of(kept.w, at));
  heads_.conv_backward(b, layer_, convolution_of(kept.w, at));
  widen_backward(b, kept);
  inputs_backward(b, kept);
  b.norm({input_norm, layer_, kept.w.norm}, at.stream);
}

// From the gradients of decays and of gates to those of the narrow numbers they come out of.
void ChannelDelta::widen_backward(BackwardPass& b, const Kept& kept) const {
  const BackwardWorkspace& ws = b.workspace();
  const int64_t width = heads_.values(), size = spec_.size, narrow = heads_.gates_width();
  const auto go_back = [&](const char* name, TensorRole role, const float* d, int64_t stride,
                           const Activation& x, const RecurrentHeads::Product& product, float* dx) {
    const Activation rounded = b.round(d, width, ws.wide, stride);
    b.matmul(name, rounded, product.transposed, dx, false, narrow);
    b.adapter(product.w, x, product.split_k, rounded, dx, narrow);
    b.pack_inputs(x, size);
    b.weight_gradient(name, b.gradient(role, layer_), rounded, {0, width}, size);
  };
  const RecurrentHeads::GateGradients decays = heads_.gate_gradients(ws);
  go_back("decays backward", recurrent_decay, decays.a, decays.a_stride, kept.at.of_decays,
          {kept.w.decays, kept.transposed.decays}, ws.gates.data());
  go_back("output gate backward", recurrent_gate, ws.inputs.data() + heads_.mixed(),
          heads_.mixed() + width, kept.at.of_gates, {kept.w.gates, kept.transposed.gates},
          ws.gates.data() + size);
}

void ChannelDelta::inputs_backward(BackwardPass& b, const Kept& kept) const {
  const BackwardWorkspace& ws = b.workspace();
  const int64_t d = model_.hidden, width = heads_.values(), mixed = heads_.mixed(),
                size = spec_.size;
  const Activation d_inputs = b.round(ws.inputs.data(), mixed, ws.wide, mixed + width);
  const Activation d_narrow = b.round(ws.gates.data(), heads_.gates_width(), ws.narrow);
  b.matmul("recurrent inputs dX", d_inputs, kept.transposed.inputs, ws.normed.data());
  b.adapter(kept.w.inputs, kept.at.normed, 1, d_inputs, ws.normed.data());
  b.matmul("recurrent gates dX", d_narrow, kept.transposed.narrow, ws.normed.data(), true);
  b.adapter(kept.w.narrow, kept.at.normed, 1, d_narrow, ws.normed.data());
  b.pack_inputs(kept.at.normed, d);
  const auto add = [&](TensorRole role, const Activation& dy, Columns columns) {
    b.weight_gradient("recurrent inputs dW", b.gradient(role, layer_), dy, columns, d);
  };
  add(recurrent_q, d_inputs, {0, width});
  add(recurrent_k, d_inputs, {width, width});
  add(recurrent_v, d_inputs, {2 * width, width});
  add(decay_down, d_narrow, {0, size});
  add(gate_down, d_narrow, {size, size});
  add(recurrent_factor, d_narrow, {2 * size, heads_.heads});
}

}  // namespace

std::unique_ptr<LayerPart> make_channel_delta(const PartPlace& place) {
  return std::make_unique<ChannelDelta>(place);
}

}  // namespace invar
