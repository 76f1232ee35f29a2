// A layer of Medusa (Cai et al., 2024): one matrix beside the residual stream.
#include "model/activation_memory.h"
#include "model/parts/layer_part.h"
#include "model/parts/layer_pass.h"

namespace invar {

namespace {

using enum TensorRole;
using E = Extent;

constexpr TensorPlace kLayer = TensorPlace::layer;
constexpr auto with_bias = [](const DecoderSpec&, const LayerSpec& layer) {
  return layer.block->has_bias;
};
constexpr auto reads_feature = [](const DecoderSpec&, const LayerSpec& layer) {
  return layer.block->reads_feature;
};

// Every rank has all of it.
// clang-format off
constexpr TensorRow kTensors[] = {
    {feature_norm, "feature_norm.weight", kLayer, E::hidden, E::none, Axis::none, reads_feature, nullptr, &LayerWeights::feature_norm},
    {block, "block.weight", kLayer, E::hidden, E::hidden, Axis::none, nullptr, &LayerMatrices::block},
    {block_bias, "block.bias", kLayer, E::hidden, E::none, Axis::none, with_bias, nullptr, &LayerWeights::block_bias},
};
// clang-format on

bool is_in(const LayerSpec& layer) {
  return layer.block.has_value();
}

void place(ActivationMemory& memory, const Decoder& decoder, int, LayerActivations& at) {
  at.normed = memory.activation(decoder.spec.hidden);
  at.products = memory.array<float>(decoder.spec.hidden);
}

// h = norm(feature), where the rows come with another decoder's last hidden state
// h = h + silu(block(h))
void forward(const LayerPass& p) {
  const int64_t d = p.model.hidden;
  if (p.spec.block->reads_feature)
    p.ops.norm(p.features, p.w.feature_norm, {p.hidden, DType::f32, d});
  p.ops.round(p.hidden, d, p.at.normed);
  p.ops.product("block", p.at.normed, p.w.block, p.w.block_bias, p.rows, p.at.products, d);
  p.ops.add_silu(p.at.products);
  p.trace("block", p.hidden, d);
}

const char* refusal(const DecoderSpec&, const LayerSpec&) {
  return "it is a drafter's, which `invar train` trains by a recipe of its own";
}

}  // namespace

const LayerPart kResidualBlock{.is_in = is_in,
                               .tensors = kTensors,
                               .place = place,
                               .forward = forward,
                               .backward = nullptr,
                               .refusal = refusal};

}  // namespace invar
