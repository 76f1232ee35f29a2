// A short convolution in the place of attention (LFM2): a row reads its last few ancestors' inputs,
// each times a factor, and its sum goes through a gate (numerics 4.4, step 1).
#include "kernels/recurrent_backward.h"
#include "model/parts/cells.h"
#include "model/parts/makers.h"

namespace invar {

namespace {

using enum TensorRole;

struct ShortConvWeights : PartWeights {
  Matrix inputs;                // [3 D][D]: factors, gates, inputs
  Matrix o;                     // [D][D]
  const float* norm = nullptr;  // [D]
  const float* taps = nullptr;  // [taps][D]
};

struct ShortConvActivations : PartActivations {
  float* stream = nullptr;  // [T][D] the residual stream before it, or null
  Activation normed;        // [T][D]
  float* inputs = nullptr;  // [T][3 D]
  Activation mixed;         // [T][D]
};

struct ConvMemory {
  Cells inputs, before;
};

class ShortConv final : public PartWithState<ShortConvWeights, ShortConvActivations> {
 public:
  explicit ShortConv(const PartPlace& place)
      : PartWithState(place),
        spec_(*layer_spec_.find<ShortConvSpec>()),
        channels_(model_.hidden / shard_.size) {}

  StateShape state() const override {
    return cells_of([&](CellArrays& chunks, CellArrays& states, DType type) {
      memory_of(chunks, states, type);
    });
  }

 private:
  void visit(Weights& w, TensorVisitor& tensors) const override;
  const Matrix* first(const Weights& w) const override { return &w.inputs; }
  void place(ActivationMemory& memory, Activations& at) const override;
  void forward(const PartPass& p, const Weights& w, const Activations& at) const override;
  void backward(BackwardPass& b, const Kept& kept) const override;
  void conv_backward(BackwardPass& b, const Kept& kept) const;

  ConvMemory memory_of(CellArrays& chunks, CellArrays& states, DType type) const {
    return {chunks.take(kChunkSlots * channels_ * size_of(type)),
            states.take((spec_.taps - 1) * channels_ * size_of(type))};
  }

  const ShortConvSpec spec_;
  const int64_t channels_;  // of this rank
};

// Ranks share out channels.
void ShortConv::visit(Weights& w, TensorVisitor& tensors) const {
  const TensorAxis d = whole(model_.hidden),
                   channels = shared(model_.hidden, shard_.rank, shard_.size);
  const Each taps = every_tap(spec_.taps);
  tensors.vector(w.norm, {{input_norm, "input_layernorm.weight", d}});
  tensors.matrix(w.inputs,
                 {{conv_factor, "conv.factor_proj.weight", channels, d},
                  {conv_gate, "conv.gate_proj.weight", channels, d},
                  {conv_input, "conv.input_proj.weight", channels, d}},
                 {.takes_quantised = true});
  tensors.vector(w.taps, {{conv_tap, "conv.tap.{}.weight", channels}}, &taps);
  tensors.matrix(w.o, {{conv_o, "conv.out_proj.weight", d, channels}}, {.takes_quantised = true});
}

void ShortConv::place(ActivationMemory& memory, Activations& at) const {
  at.stream = memory.stream(model_.hidden);
  at.normed = memory.activation(model_.hidden);
  at.inputs = memory.array<float>(3 * channels_);
  at.mixed = memory.activation(channels_);
}

// h = h + o(conv(x * factor) * gate), all three of norm(h)
void ShortConv::forward(const PartPass& p, const Weights& w, const Activations& at) const {
  const DType type = p.ops.arithmetic().heads();
  const CellTables& cells = p.ops.tables().cells;
  CellArrays chunks(p.chunks), states(p.states);
  const ConvMemory memory = memory_of(chunks, states, type);
  copy_chunks(p);
  p.hooks.keep_hidden(at.stream);
  p.ops.norm(p.hidden, w.norm, at.normed);
  p.trace("attention_norm", at.normed, model_.hidden);
  p.ops.product("conv inputs", at.normed, w.inputs, nullptr, p.rows, at.inputs, w.inputs.n, &w.o);
  p.ops.run("short conv", p.ops.kernels().short_conv,
            ShortConvParams{.x = at.inputs + 2 * channels_,
                            .x_stride = w.inputs.n,
                            .factor = at.inputs,
                            .factor_stride = w.inputs.n,
                            .places = places_of(p),
                            .sequences = cells.sequences,
                            .channels = channels_,
                            .taps = spec_.taps,
                            .weight = w.taps,
                            .bias = nullptr,
                            .silu = false,
                            .gate = at.inputs + channels_,
                            .gate_stride = w.inputs.n,
                            .inputs = memory.inputs,
                            .before = memory.before,
                            .type = type,
                            .before_of = cells.before_of,
                            .next_state = cells.next_state,
                            .out = at.mixed,
                            .non_finite = p.ops.non_finite()});
  p.trace("short conv", at.mixed, channels_);
  p.ops.add_product("o", at.mixed, w.o, shard_.runs(conv_output_split_k(model_)), nullptr, nullptr,
                    p.next);
  p.trace("o", p.hidden, model_.hidden);
}

// The gradients of factors, gates and inputs, side by side as the forward has these.
void ShortConv::conv_backward(BackwardPass& b, const Kept& kept) const {
  const Activations& at = kept.at;
  const BackwardWorkspace& ws = b.workspace();
  const int64_t stride = 3 * channels_;
  b.run("short conv backward", b.kernels().short_conv_backward,
        ShortConvBackwardParams{.x = at.inputs + 2 * channels_,
                                .x_stride = stride,
                                .factor = at.inputs,
                                .factor_stride = stride,
                                .positions = b.tables().positions,
                                .rows = b.rows(),
                                .channels = channels_,
                                .taps = spec_.taps,
                                .weight = kept.w.taps,
                                .weight_stride = channels_,
                                .bias = nullptr,
                                .silu = false,
                                .gate = at.inputs + channels_,
                                .gate_stride = stride,
                                .d_out = ws.mixed.data(),
                                .d_out_stride = channels_,
                                .d_sum = ws.sums.data(),
                                .d_sum_stride = channels_,
                                .dx = ws.inputs.data() + 2 * channels_,
                                .d_factor = ws.inputs.data(),
                                .d_gate = ws.inputs.data() + channels_,
                                .dx_stride = stride,
                                .d_weight = b.gradient(conv_tap, layer_),
                                .d_weight_stride = tap_step(channels_),
                                .d_bias = nullptr});
}

void ShortConv::backward(BackwardPass& b, const Kept& kept) const {
  const Activations& at = kept.at;
  const BackwardWorkspace& ws = b.workspace();
  const int64_t d = model_.hidden;
  const Activation d_out = b.round(b.d_hidden(), d, ws.out);
  b.matmul("o dX", d_out, kept.transposed.o, ws.mixed.data());
  b.adapter(kept.w.o, at.mixed, shard_.runs(conv_output_split_k(model_)), d_out, ws.mixed.data());
  b.pack_inputs(at.mixed, channels_);
  b.weight_gradient("o dW", b.gradient(conv_o, layer_), d_out, {0, d}, channels_);

  conv_backward(b, kept);
  const Activation d_inputs = b.round(ws.inputs.data(), 3 * channels_, ws.wide);
  b.matmul("conv inputs dX", d_inputs, kept.transposed.inputs, ws.normed.data());
  b.adapter(kept.w.inputs, at.normed, 1, d_inputs, ws.normed.data());
  b.pack_inputs(at.normed, d);
  int64_t first = 0;
  for (const TensorRole role : {conv_factor, conv_gate, conv_input}) {
    b.weight_gradient("conv inputs dW", b.gradient(role, layer_), d_inputs, {first, channels_}, d);
    first += channels_;
  }
  b.norm({input_norm, layer_, kept.w.norm}, at.stream);
}

}  // namespace

std::unique_ptr<LayerPart> make_short_conv(const PartPlace& place) {
  return std::make_unique<ShortConv>(place);
}

}  // namespace invar
