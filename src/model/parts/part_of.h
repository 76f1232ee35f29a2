// The tools that the files of parts are written with.
#pragma once

#include <string_view>

#include "base/check.h"
#include "model/activation_memory.h"
#include "model/backward_pass.h"
#include "model/hooks.h"
#include "model/operations.h"
#include "model/parts/part.h"

namespace invar {

// The operands of a part's forward in one step.
struct PartPass {
  int layer;
  const PartWeights& weights;
  const PartActivations& activations;
  const PartActivations& in_turn;  // the same without a tape; else memory that all layers use
  const KvLayer& kv;
  Cells chunks, states;   // where the layer has such; StepTables::cells says who has which
  float* hidden;          // [T][D], the residual stream
  const float* features;  // [T][features] of another decoder, or null
  int64_t rows;
  Operations& ops;
  const Hooks& hooks;
  const Matrix* next;  // what the next part multiplies with first: is read meanwhile; or null

  template <typename Values>
  void trace(std::string_view name, const Values& x, int64_t width) const {
    hooks.trace(name, layer, x, width, rows);
  }
};

// The operands of a part's backward for one batch.
struct PartBackward {
  int layer;
  const PartWeights& weights;
  const PartWeights& transposed;  // of the matrices alone: inputs as outputs
  const PartActivations& activations;
  const KvLayer& kv;
  BackwardPass& pass;
};

// A part whose weights and activations are of these types.
template <typename OwnWeights, typename OwnActivations>
class PartOf : public LayerPart {
 public:
  using Weights = OwnWeights;
  using Activations = OwnActivations;

  explicit PartOf(const PartPlace& place)
      : model_(place.model),
        shard_(place.shard),
        layer_(place.layer),
        layer_spec_(place.model.layer(place.layer)) {}

  std::unique_ptr<PartWeights> make_weights() const final { return std::make_unique<Weights>(); }
  void visit_tensors(PartWeights& weights, TensorVisitor& visitor) const final {
    visit(static_cast<Weights&>(weights), visitor);
  }
  const Matrix* first_matrix(const PartWeights& weights) const final { return first(of(weights)); }
  std::unique_ptr<PartActivations> place(ActivationMemory& memory) const final {
    auto at = std::make_unique<Activations>();
    place(memory, *at);
    return at;
  }
  void begin(const PartPass& p) const final { begin(p, of(p.weights), of(p.activations)); }
  void forward(const PartPass& p) const final { forward(p, of(p.weights), of(p.activations)); }
  void backward(const PartBackward& p) const final {
    backward(p.pass, {of(p.weights), of(p.transposed), of(p.activations), p.kv});
  }

 protected:
  static const Weights& of(const PartWeights& weights) {
    return static_cast<const Weights&>(weights);
  }
  static const Activations& of(const PartActivations& at) {
    return static_cast<const Activations&>(at);
  }

  struct Kept {
    const Weights& w;
    const Weights& transposed;
    const Activations& at;
    const KvLayer& kv;
  };

  virtual void visit(Weights& w, TensorVisitor& visitor) const = 0;
  virtual const Matrix* first(const Weights&) const { return nullptr; }
  virtual void place(ActivationMemory& memory, Activations& at) const = 0;
  virtual void begin(const PartPass&, const Weights&, const Activations&) const {}
  virtual void forward(const PartPass& p, const Weights& w, const Activations& at) const = 0;
  // A part that refuses training has none.
  virtual void backward(BackwardPass&, const Kept&) const {
    CHECK(false, "a backward of a part that is not trained");
  }

  const DecoderSpec& model_;
  const Shard& shard_;
  const int layer_;
  const LayerSpec layer_spec_;
};

}  // namespace invar
