// Mamba 2 (Dao and Gu, 2024): heads whose state a row adds its value to, weighted by its key, and
// decays by a factor of its own; queries and keys are those of groups of heads (numerics 4.4).
#include "model/parts/makers.h"
#include "model/parts/recurrent_heads.h"

namespace invar {

namespace {

using enum TensorRole;

struct StateSpaceWeights : PartWeights {
  Matrix inputs;                      // [2 K R + 2 H V][D]: queries, keys, values, gates
  Matrix steps;                       // [H][D]
  Matrix o;                           // [D][H V]
  const float* norm = nullptr;        // [D]
  const float* conv = nullptr;        // [taps][2 K R + H V]
  const float* conv_bias = nullptr;   // [2 K R + H V] or null
  const float* bias = nullptr;        // [H], of steps
  const float* log_rate = nullptr;    // [H]
  const float* skips = nullptr;       // [H]
  const float* group_norm = nullptr;  // [H V]
};

struct StateSpaceActivations : PartActivations {
  float* stream = nullptr;  // [T][D] the residual stream before it, or null
  Activation normed;        // [T][D]
  float* inputs = nullptr;  // [T][2 K R + 2 H V]
  float* steps = nullptr;   // [T][H]
  RecurrentArrays heads;
  Activation gated;  // [T][H V]
};

class StateSpace final : public PartWithState<StateSpaceWeights, StateSpaceActivations> {
 public:
  explicit StateSpace(const PartPlace& place)
      : PartWithState(place),
        spec_(*layer_spec_.find<StateSpaceSpec>()),
        heads_{.kind = Recurrence::state_space,
               .key_heads = spec_.groups / shard_.size,
               .heads = spec_.heads / shard_.size,
               .key_size = spec_.state_size,
               .value_size = spec_.head_size,
               .taps = spec_.taps} {}

  StateShape state() const override { return heads_.state(); }
  const char* refusal() const override {
    if (spec_.is_beside)
      return "its state space reads what attention beside it reads, and the gradient of that is "
             "not implemented";
    return PartWithState::refusal();
  }

 private:
  void visit(Weights& w, TensorVisitor& tensors) const override;
  const Matrix* first(const Weights& w) const override { return &w.inputs; }
  void place(ActivationMemory& memory, Activations& at) const override;
  void begin(const PartPass& p, const Weights& w, const Activations& at) const override;
  void forward(const PartPass& p, const Weights& w, const Activations& at) const override;
  void backward(BackwardPass& b, const Kept& kept) const override;

  RecurrentHeads::Convolution convolution_of(const Weights& w, const Activations& at) const {
    return {.x = at.inputs, .x_stride = w.inputs.n, .weight = w.conv, .bias = w.conv_bias};
  }
  RecurrentHeads::Gates gates_of(const Weights& w, const Activations& at) const;
  GatedNormParams norm_of(int64_t rows, const Weights& w, const Activations& at) const;

  const StateSpaceSpec spec_;
  const RecurrentHeads heads_;  // of this rank
};

// Ranks share out groups, each with its heads.
void StateSpace::visit(Weights& w, TensorVisitor& tensors) const {
  const TensorAxis d = whole(model_.hidden);
  const auto of_ranks = [&](int64_t size) { return shared(size, shard_.rank, shard_.size); };
  const TensorAxis keys = of_ranks(int64_t{spec_.groups} * spec_.state_size),
                   values = of_ranks(spec_.width()), heads = of_ranks(spec_.heads);
  const Each taps = every_tap(spec_.taps);
  tensors.vector(
      w.norm,
      {{input_norm, spec_.is_beside ? "beside_layernorm.weight" : "input_layernorm.weight", d}});
  tensors.matrix(w.inputs,
                 {{recurrent_q, "mamba.c_proj.weight", keys, d},
                  {recurrent_k, "mamba.b_proj.weight", keys, d},
                  {recurrent_v, "mamba.x_proj.weight", values, d},
                  {recurrent_gate, "mamba.z_proj.weight", values, d}},
                 {.takes_quantised = true});
  tensors.matrix(w.steps, {{recurrent_decay, "mamba.dt_proj.weight", heads, d}});
  tensors.vector(w.conv,
                 {{conv_q, "mamba.conv.{}.c.weight", keys},
                  {conv_k, "mamba.conv.{}.b.weight", keys},
                  {conv_v, "mamba.conv.{}.x.weight", values}},
                 &taps);
  if (spec_.conv_bias)
    tensors.vector(w.conv_bias, {{conv_q_bias, "mamba.conv.c.bias", keys},
                                 {conv_k_bias, "mamba.conv.b.bias", keys},
                                 {conv_v_bias, "mamba.conv.x.bias", values}});
  tensors.vector(w.bias, {{decay_bias, "mamba.dt_bias", heads}});
  tensors.vector(w.log_rate, {{decay_rate, "mamba.A_log", heads}});
  tensors.vector(w.skips, {{skip, "mamba.D", heads}});
  if (spec_.norm_groups > 0)
    tensors.vector(w.group_norm, {{head_norm, "mamba.norm.weight", values}});
  tensors.matrix(w.o, {{recurrent_o, "mamba.out_proj.weight", d, values}},
                 {.takes_quantised = true});
}

void StateSpace::place(ActivationMemory& memory, Activations& at) const {
  at.stream = memory.stream(model_.hidden);
  at.normed = memory.activation(model_.hidden);
  at.inputs = memory.array<float>(heads_.mixed() + heads_.values());
  at.steps = memory.array<float>(heads_.heads);
  at.heads = heads_.place(memory);
  at.gated = memory.activation(heads_.values());
}

RecurrentHeads::Gates StateSpace::gates_of(const Weights& w, const Activations& at) const {
  return {.a = at.steps,
          .a_stride = w.steps.n,
          .log_rate = w.log_rate,
          .bias = w.bias,
          .least = spec_.least_step,
          .most = spec_.most_step};
}

GatedNormParams StateSpace::norm_of(int64_t rows, const Weights& w, const Activations& at) const {
  // This rank's; without a norm the gates' rounding goes by the groups of keys.
  const int64_t groups = spec_.norm_groups > 0 ? spec_.norm_groups / shard_.size : heads_.key_heads;
  return {.x = at.heads.out,
          .x_stride = heads_.values(),
          .gate = at.inputs + heads_.mixed(),
          .gate_stride = w.inputs.n,
          .weight = w.group_norm,
          .own_weights = true,
          .is_sigmoid = false,
          .gate_first = !spec_.norm_first,
          .eps = model_.norm_eps,
          .rows = rows,
          .groups = groups,
          .width = heads_.values() / groups,
          .out = at.gated};
}

// Beside attention it reads what attention reads.
void StateSpace::begin(const PartPass& p, const Weights& w, const Activations& at) const {
  if (spec_.is_beside) p.ops.norm(p.hidden, w.norm, at.normed);
}

// h = h + o(norm(recurrence(conv(inputs(norm(h))), steps(norm(h))) * silu(gates)))
void StateSpace::forward(const PartPass& p, const Weights& w, const Activations& at) const {
  const RecurrentMemory memory = heads_.begin(p);
  p.hooks.keep_hidden(at.stream);
  if (!spec_.is_beside) p.ops.norm(p.hidden, w.norm, at.normed);
  p.trace("attention_norm", at.normed, model_.hidden);
  p.ops.product("recurrent inputs", at.normed, w.inputs, nullptr, p.rows, at.inputs, w.inputs.n);
  p.ops.product("recurrent gates", at.normed, w.steps, nullptr, p.rows, at.steps, w.steps.n, &w.o);
  heads_.convolve(p, at.heads, memory, convolution_of(w, at));
  heads_.gate(p, at.heads, gates_of(w, at));
  heads_.recur(p, at.heads, memory, w.skips);
  p.ops.run("gated norm", p.ops.kernels().gated_norm, norm_of(p.rows, w, at));
  p.trace("gated norm", at.gated, heads_.values());
  p.ops.add_product("o", at.gated, w.o, shard_.runs(state_space_output_split_k(spec_)), nullptr,
                    nullptr, p.next);
  p.trace("o", p.hidden, model_.hidden);
}

void StateSpace::backward(BackwardPass& b, const Kept& kept) const {
  const Activations& at = kept.at;
  heads_.output_backward(
      b, layer_, at.gated,
      {kept.w.o, kept.transposed.o, shard_.runs(state_space_output_split_k(spec_))});
  heads_.norm_backward(b, layer_, norm_of(b.rows(), kept.w, at));
  heads_.recur_backward(b, layer_, at.heads, gates_of(kept.w, at), kept.w.skips);
  heads_.conv_backward(b, layer_, convolution_of(kept.w, at));
  heads_.inputs_backward(b, layer_, at.normed, {kept.w.inputs, kept.transposed.inputs},
                         {kept.w.steps, kept.transposed.steps});
  b.norm({input_norm, layer_, kept.w.norm}, at.stream);
}

}  // namespace

std::unique_ptr<LayerPart> make_state_space(const PartPlace& place) {
  return std::make_unique<StateSpace>(place);
}

}  // namespace invar
