// A layer of Medusa (Cai et al., 2024): one matrix beside the residual stream.
#include "model/parts/makers.h"
#include "model/parts/part_of.h"

namespace invar {

namespace {

using enum TensorRole;

struct BlockWeights : PartWeights {
  Matrix block;                         // [D][D]
  const float* bias = nullptr;          // [D] or null
  const float* feature_norm = nullptr;  // [D] or null
};

struct BlockActivations : PartActivations {
  Activation rounded;         // [T][D]
  float* products = nullptr;  // [T][D]
};

class ResidualBlock final : public PartOf<BlockWeights, BlockActivations> {
 public:
  explicit ResidualBlock(const PartPlace& place)
      : PartOf(place), spec_(*layer_spec_.find<ResidualBlockSpec>()) {}

  const char* refusal() const override {
    return "it is a drafter's, which `invar train` trains by a recipe of its own";
  }

 private:
  // Every rank has all of it.
  void visit(Weights& w, TensorVisitor& tensors) const override {
    const TensorAxis d = whole(model_.hidden);
    if (spec_.reads_feature)
      tensors.vector(w.feature_norm, {{feature_norm, "feature_norm.weight", d}});
    tensors.matrix(w.block, {{block, "block.weight", d, d}});
    if (spec_.has_bias) tensors.vector(w.bias, {{block_bias, "block.bias", d}});
  }

  void place(ActivationMemory& memory, Activations& at) const override {
    at.rounded = memory.activation(model_.hidden);
    at.products = memory.array<float>(model_.hidden);
  }

  // h = norm(feature), where the rows come with another decoder's last hidden state
  // h = h + silu(block(h))
  void forward(const PartPass& p, const Weights& w, const Activations& at) const override {
    const int64_t d = model_.hidden;
    if (spec_.reads_feature) p.ops.norm(p.features, w.feature_norm, {p.hidden, DType::f32, d});
    p.ops.round(p.hidden, d, at.rounded);
    p.ops.product("block", at.rounded, w.block, w.bias, p.rows, at.products, d);
    p.ops.add_silu(at.products);
    p.trace("block", p.hidden, d);
  }

  const ResidualBlockSpec spec_;
};

}  // namespace

std::unique_ptr<LayerPart> make_residual_block(const PartPlace& place) {
  return std::make_unique<ResidualBlock>(place);
}

}  // namespace invar
