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
  const char* refusal() const override {
    return "each channel of its keys has a decay, whose gradient is not implemented";
  }

 private:
  void visit(Weights& w, TensorVisitor& tensors) const override;
  const Matrix* first(const Weights& w) const override { return &w.inputs; }
  void place(ActivationMemory& memory, Activations& at) const override;
  void forward(const PartPass& p, const Weights& w, const Activations& at) const override;

  void widen(const PartPass& p, const Weights& w, const Activations& at) const;

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

// h = h + o(gated_norm(recurrence(conv(inputs(norm(h))), decays(norm(h))), gates(norm(h))))
void ChannelDelta::forward(const PartPass& p, const Weights& w, const Activations& at) const {
  const RecurrentMemory memory = heads_.begin(p);
  const int64_t width = heads_.values();
  p.ops.norm(p.hidden, w.norm, at.normed);
  p.trace("attention_norm", at.normed, model_.hidden);
  p.ops.product("recurrent inputs", at.normed, w.inputs, nullptr, p.rows, at.inputs, w.inputs.n);
  widen(p, w, at);
  heads_.convolve(p, at.heads, memory, {.x = at.inputs, .x_stride = w.inputs.n, .weight = w.conv});
  heads_.gate(p, at.heads,
              {.a = at.decays,
               .a_stride = width,
               .z = at.narrow + 2 * spec_.size,
               .z_stride = w.narrow.n,
               .log_rate = w.log_rate,
               .bias = w.bias});
  heads_.recur(p, at.heads, memory);
  p.ops.run("gated norm", p.ops.kernels().gated_norm,
            GatedNormParams{.x = at.heads.out,
                            .x_stride = width,
                            .gate = at.gates,
                            .gate_stride = width,
                            .weight = w.head_norm,
                            .own_weights = false,
                            .is_sigmoid = true,
                            .gate_first = false,
                            .eps = model_.norm_eps,
                            .rows = p.rows,
                            .groups = heads_.heads,
                            .width = spec_.size,
                            .out = at.gated});
  p.trace("gated norm", at.gated, width);
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

}  // namespace

std::unique_ptr<LayerPart> make_channel_delta(const PartPlace& place) {
  return std::make_unique<ChannelDelta>(place);
}

}  // namespace invar
