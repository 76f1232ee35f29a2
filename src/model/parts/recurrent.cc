// Heads with a state in the place of attention: the gated delta rule (Yang et al., 2024), whose
// queries, keys and values come out of a short convolution and whose outputs go through a gated
// norm (numerics 4.4).
#include "model/parts/makers.h"
#include "model/parts/recurrent_heads.h"

namespace invar {

namespace {

using enum TensorRole;

struct RecurrentWeights : PartWeights {
  Matrix inputs;                     // [2 K R + 2 H V][D]: queries, keys, values, gates of outputs
  Matrix gates;                      // [2 H][D]: factors, decays
  Matrix o;                          // [D][H V]
  const float* norm = nullptr;       // [D]
  const float* conv = nullptr;       // [taps][2 K R + H V]
  const float* bias = nullptr;       // [H], of decays
  const float* log_rate = nullptr;   // [H]
  const float* head_norm = nullptr;  // [V]
};

struct RecurrentActivations : PartActivations {
  float* stream = nullptr;  // [T][D] the residual stream before it, or null
  Activation normed;        // [T][D]
  float* inputs = nullptr;  // [T][2 K R + 2 H V]
  float* gates = nullptr;   // [T][2 H]
  RecurrentArrays heads;
  Activation gated;  // [T][H V]
};

class Recurrent final : public PartWithState<RecurrentWeights, RecurrentActivations> {
 public:
  explicit Recurrent(const PartPlace& place)
      : PartWithState(place),
        spec_(*layer_spec_.find<RecurrentSpec>()),
        heads_{.kind = Recurrence::delta,
               .key_heads = spec_.key_heads / shard_.size,
               .heads = spec_.heads / shard_.size,
               .key_size = spec_.key_size,
               .value_size = spec_.value_size,
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

  const RecurrentSpec spec_;
  const RecurrentHeads heads_;  // of this rank
};

// Ranks share out key heads, each with its value heads.
void Recurrent::visit(Weights& w, TensorVisitor& tensors) const {
  const TensorAxis d = whole(model_.hidden);
  const auto of_ranks = [&](int64_t size) { return shared(size, shard_.rank, shard_.size); };
  const TensorAxis keys = of_ranks(int64_t{spec_.key_heads} * spec_.key_size),
                   values = of_ranks(int64_t{spec_.heads} * spec_.value_size),
                   heads = of_ranks(spec_.heads);
  const Each taps = every_tap(spec_.taps);
  tensors.vector(w.norm, {{input_norm, "input_layernorm.weight", d}});
  tensors.matrix(w.inputs,
                 {{recurrent_q, "linear_attn.q_proj.weight", keys, d},
                  {recurrent_k, "linear_attn.k_proj.weight", keys, d},
                  {recurrent_v, "linear_attn.v_proj.weight", values, d},
                  {recurrent_gate, "linear_attn.z_proj.weight", values, d}},
                 {.takes_quantised = true});
  tensors.matrix(w.gates, {{recurrent_factor, "linear_attn.b_proj.weight", heads, d},
                           {recurrent_decay, "linear_attn.a_proj.weight", heads, d}});
  tensors.vector(w.conv,
                 {{conv_q, "linear_attn.conv.{}.q.weight", keys},
                  {conv_k, "linear_attn.conv.{}.k.weight", keys},
                  {conv_v, "linear_attn.conv.{}.v.weight", values}},
                 &taps);
  tensors.vector(w.bias, {{decay_bias, "linear_attn.dt_bias", heads}});
  tensors.vector(w.log_rate, {{decay_rate, "linear_attn.A_log", heads}});
  tensors.vector(w.head_norm, {{head_norm, "linear_attn.norm.weight", whole(spec_.value_size)}});
  tensors.matrix(w.o, {{recurrent_o, "linear_attn.out_proj.weight", d, values}},
                 {.takes_quantised = true});
}

void Recurrent::place(ActivationMemory& memory, Activations& at) const {
  at.stream = memory.stream(model_.hidden);
  at.normed = memory.activation(model_.hidden);
  at.inputs = memory.array<float>(heads_.mixed() + heads_.values());
  at.gates = memory.array<float>(2 * heads_.heads);
  at.heads = heads_.place(memory);
  at.gated = memory.activation(heads_.values());
}

RecurrentHeads::Gates Recurrent::gates_of(const Weights& w, const Activations& at) const {
  return {.a = at.gates + heads_.heads,
          .a_stride = w.gates.n,
          .z = at.gates,
          .z_stride = w.gates.n,
          .log_rate = w.log_rate,
          .bias = w.bias,
          .doubles = spec_.doubles};
}

GatedNormParams Recurrent::norm_of(int64_t rows, const Weights& w, const Activations& at) const {
  return {.x = at.heads.out,
          .x_stride = heads_.values(),
          .gate = at.inputs + heads_.mixed(),
          .gate_stride = w.inputs.n,
          .weight = w.head_norm,
          .own_weights = false,
          .is_sigmoid = false,
          .gate_first = false,
          .eps = spec_.norm_eps > 0 ? spec_.norm_eps : model_.norm_eps,
          .rows = rows,
          .groups = heads_.heads,
          .width = spec_.value_size,
          .out = at.gated};
}

// h = h + o(gated_norm(recurrence(conv(inputs(norm(h))), gates(norm(h)))))
void Recurrent::forward(const PartPass& p, const Weights& w, const Activations& at) const {
  const RecurrentMemory memory = heads_.begin(p);
  p.hooks.keep_hidden(at.stream);
  p.ops.norm(p.hidden, w.norm, at.normed);
  p.trace("attention_norm", at.normed, model_.hidden);
  const auto gate = [&] {
    p.ops.product("recurrent gates", at.normed, w.gates, nullptr, p.rows, at.gates, w.gates.n,
                  &w.o);
    heads_.gate(p, at.heads, gates_of(w, at));
  };
  const bool forks = p.ops.may_fork({&w.gates});
  if (forks) p.ops.fork(gate);
  p.ops.product("recurrent inputs", at.normed, w.inputs, nullptr, p.rows, at.inputs, w.inputs.n);
  if (!forks) gate();
  heads_.convolve(p, at.heads, memory, convolution_of(w, at));
  p.ops.join();
  heads_.recur(p, at.heads, memory);
  p.ops.run("gated norm", p.ops.kernels().gated_norm, norm_of(p.rows, w, at));
  p.trace("gated norm", at.gated, heads_.values());
  p.ops.add_product("o", at.gated, w.o, shard_.runs(recurrent_output_split_k(spec_)), nullptr,
                    nullptr, p.next);
  p.trace("o", p.hidden, model_.hidden);
}

void Recurrent::backward(BackwardPass& b, const Kept& kept) const {
  const Activations& at = kept.at;
  heads_.output_backward(
      b, layer_, at.gated,
      {kept.w.o, kept.transposed.o, shard_.runs(recurrent_output_split_k(spec_))});
  heads_.norm_backward(b, layer_, norm_of(b.rows(), kept.w, at));
  heads_.recur_backward(b, layer_, at.heads, gates_of(kept.w, at));
  heads_.conv_backward(b, layer_, convolution_of(kept.w, at));
  heads_.inputs_backward(b, layer_, at.normed, {kept.w.inputs, kept.transposed.inputs},
                         {kept.w.gates, kept.transposed.gates});
  b.norm({input_norm, layer_, kept.w.norm}, at.stream);
}

}  // namespace

std::unique_ptr<LayerPart> make_recurrent(const PartPlace& place) {
  return std::make_unique<Recurrent>(place);
}

}  // namespace invar
