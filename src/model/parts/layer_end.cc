// The end of a layer of Gemma 4 (numerics 4.5): the vector that the token itself brings, gated by
// the stream, is added, and then the stream is multiplied by a number of the layer.
#include "model/parts/makers.h"
#include "model/parts/part_of.h"

namespace invar {

namespace {

using enum TensorRole;

struct LayerEndWeights : PartWeights {
  Matrix gate;                      // [P][D], or none, as the next two
  Matrix projection;                // [D][P]
  const float* out_norm = nullptr;  // [D]
  const float* scalar = nullptr;    // [1]
};

struct LayerEndActivations : PartActivations {
  Activation read;         // [T][D], or none, as the others
  float* gates = nullptr;  // [T][P]
  Activation gated;        // [T][P]
  float* added = nullptr;  // [T][round_up(D, 32)]
};

class LayerEnd final : public PartOf<LayerEndWeights, LayerEndActivations> {
 public:
  explicit LayerEnd(const PartPlace& place)
      : PartOf(place), spec_(*layer_spec_.find<LayerEndSpec>()) {}

  const char* refusal() const override {
    return "its stream is multiplied by a number of each layer, whose gradient is not implemented";
  }

 private:
  void visit(Weights& w, TensorVisitor& tensors) const override;
  const Matrix* first(const Weights& w) const override {
    return spec_.input_width > 0 ? &w.gate : nullptr;
  }
  void place(ActivationMemory& memory, Activations& at) const override;
  void forward(const PartPass& p, const Weights& w, const Activations& at) const override;
  void add_input(const PartPass& p, const Weights& w, const Activations& at) const;

  const LayerEndSpec spec_;
};

// Every rank has all of it, and adds the same.
void LayerEnd::visit(Weights& w, TensorVisitor& tensors) const {
  const TensorAxis d = whole(model_.hidden), width = whole(spec_.input_width);
  if (spec_.input_width > 0) {
    tensors.matrix(w.gate, {{own_input_gate, "per_layer_input_gate.weight", width, d}});
    tensors.matrix(w.projection, {{own_input_projection, "per_layer_projection.weight", d, width}});
    tensors.vector(w.out_norm, {{own_input_out_norm, "post_per_layer_input_norm.weight", d}});
  }
  tensors.vector(w.scalar, {{layer_scalar, "layer_scalar", whole(1)}});
}

void LayerEnd::place(ActivationMemory& memory, Activations& at) const {
  if (spec_.input_width == 0) return;
  at.read = memory.activation(model_.hidden);
  at.gates = memory.array<float>(spec_.input_width);
  at.gated = memory.activation(spec_.input_width);
  at.added = memory.array<float>(round_up(model_.hidden, kLeafPad));
}

// h = (h + norm(projection(curve(gate(h)) * input))) * scalar
void LayerEnd::forward(const PartPass& p, const Weights& w, const Activations& at) const {
  if (spec_.input_width > 0) add_input(p, w, at);
  p.ops.scale_stream(w.scalar);
  p.trace("layer_end", p.hidden, model_.hidden);
}

void LayerEnd::add_input(const PartPass& p, const Weights& w, const Activations& at) const {
  p.ops.norm(p.hidden, nullptr, at.read);
  p.ops.product("input gate", at.read, w.gate, nullptr, p.rows, at.gates, spec_.input_width,
                &w.projection);
  p.ops.run("gate input", p.ops.kernels().gate_inputs,
            GateInputsParams{.x = at.gates,
                             .inputs = p.ops.layer_inputs(layer_),
                             .inputs_stride = p.ops.layer_inputs_stride(),
                             .rows = p.rows,
                             .width = spec_.input_width,
                             .curve = spec_.curve,
                             .out = at.gated});
  p.trace("input_gate", at.gated, spec_.input_width);
  const int64_t stride = round_up(model_.hidden, kLeafPad);
  p.ops.product("input", at.gated, w.projection, nullptr, p.rows, at.added, stride, p.next);
  p.ops.add_normed(at.added, stride, w.out_norm);
}

}  // namespace

std::unique_ptr<LayerPart> make_layer_end(const PartPlace& place) {
  return std::make_unique<LayerEnd>(place);
}

}  // namespace invar
