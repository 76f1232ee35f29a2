// What a layer begins with that goes on from hidden states: a module that predicts one token
// further (DeepSeek-V3, section 2.2), and the layers of EAGLE. Every row has the token that follows
// and a hidden state.
#include "model/activation_memory.h"
#include "model/backward_pass.h"
#include "model/parts/layer_part.h"
#include "model/parts/layer_pass.h"

namespace invar {

namespace {

using enum TensorRole;
using E = Extent;
using M = LayerMatrices;
using W = LayerWeights;

constexpr TensorPlace kLayer = TensorPlace::layer;
constexpr Axis kWhole = Axis::none;

using Model = const DecoderSpec&;
using Layer = const LayerSpec&;
constexpr auto is_fused = [](Model, Layer layer) { return layer.join->features > 1; };
constexpr auto with_fuse_bias = [](Model, Layer layer) { return layer.join->fuse_bias; };
constexpr auto is_normed = [](Model, Layer layer) { return layer.join->features == 1; };
constexpr auto with_embedding_norm = [](Model, Layer layer) { return layer.join->embedding_norm; };
constexpr auto with_hidden_norm = [](Model, Layer layer) { return layer.join->hidden_norm; };
constexpr auto is_projected = [](Model, Layer layer) { return layer.join->is_projected; };
constexpr auto with_bias = [](Model, Layer layer) { return layer.join->projection_bias; };

// The module's are named as in DeepSeek's checkpoints. Every rank has all of them.
// clang-format off
constexpr TensorRow kTensors[] = {
    {fuse, "fuse.weight", kLayer, E::hidden, E::features, kWhole, is_fused, &M::fuse},
    {fuse_bias, "fuse.bias", kLayer, E::hidden, E::none, kWhole, with_fuse_bias, nullptr, &W::fuse_bias},
    {feature_norm, "feature_norm.weight", kLayer, E::hidden, E::none, kWhole, is_normed, nullptr, &W::feature_norm},
    {embedding_norm, "enorm.weight", kLayer, E::hidden, E::none, kWhole, with_embedding_norm, nullptr, &W::embedding_norm},
    {hidden_norm, "hnorm.weight", kLayer, E::hidden, E::none, kWhole, with_hidden_norm, nullptr, &W::hidden_norm},
    {projection, "eh_proj.weight", kLayer, E::hidden, E::twice_hidden, kWhole, is_projected, &M::projection},
    {projection_bias, "eh_proj.bias", kLayer, E::hidden, E::none, kWhole, with_bias, nullptr, &W::projection_bias},
};
// clang-format on

bool is_in(const LayerSpec& layer) {
  return layer.join.has_value();
}

void place(ActivationMemory& memory, const Decoder& decoder, int layer, LayerActivations& at) {
  const JoinSpec join = *decoder.spec.layer(layer).join;
  if (join.features > 1)
    at.features = memory.activation(join.features * int64_t{join.feature_width});
  at.embedded = memory.array<float>(decoder.spec.hidden);
  at.joined = memory.activation(2 * int64_t{decoder.spec.hidden});
}

// h = fuse(features), or norm(feature), where the rows come with hidden states of another decoder
// joined = [norm(rows of the embedding), norm(h)]
// h = projection(joined); or attention reads joined, and h stays as it is or is normed
void forward(const LayerPass& p) {
  const JoinSpec& join = *p.spec.join;
  const int64_t d = p.model.hidden;
  if (p.features && join.features > 1) {
    p.ops.round(p.features, join.features * int64_t{join.feature_width}, p.at.features);
    p.ops.product("fuse", p.at.features, p.w.fuse, p.w.fuse_bias, p.rows, p.hidden, d);
  } else if (p.features) {
    p.ops.norm(p.features, p.w.feature_norm, {p.hidden, DType::f32, d});
  }
  const Activation first = p.at.joined;
  Activation second = first;
  second.data = static_cast<std::byte*>(first.data) + d * size_of(first.type);
  p.ops.embed(p.at.embedded);
  p.ops.norm(p.at.embedded, p.w.embedding_norm, first);
  p.ops.norm(p.hidden, p.w.hidden_norm, second);
  if (join.is_projected)
    p.ops.product("join", first, p.w.projection, p.w.projection_bias, p.rows, p.hidden, d);
  else if (join.stream_is_normed)
    p.ops.norm(p.hidden, p.w.hidden_norm, {p.hidden, DType::f32, d});
  p.ops.round_residual();
  p.trace("join", p.hidden, d);
}

// Leaves the gradient of h, the residual stream after the model's last layer.
void backward(BackwardPass& b, int layer) {
  const LayerActivations& at = b.activations(layer);
  const LayerWeights& w = b.weights(layer);
  const BackwardWorkspace& ws = b.workspace();
  const int64_t d = b.spec().hidden;
  const Activation d_out = b.round(b.d_hidden(), d, ws.out);
  b.pack_inputs(at.joined, 2 * d);
  b.weight_gradient("join dW", b.gradient(projection, layer), d_out, {0, d}, 2 * d);
  b.clear_hidden();
  b.matmul("join dX", d_out, b.join_to_embedding(), ws.normed.data());
  b.norm({embedding_norm, layer, w.embedding_norm}, at.embedded);
  b.embed(b.module().embedding);
  b.clear_hidden();
  b.matmul("join dX", d_out, b.join_to_hidden(), ws.normed.data());
  b.norm({hidden_norm, layer, w.hidden_norm}, b.output());
}

const char* refusal(const DecoderSpec&, const LayerSpec& layer) {
  return layer.join == JoinSpec{} ? nullptr : "it goes on from hidden states of another model";
}

}  // namespace

const LayerPart kJoin{.is_in = is_in,
                      .tensors = kTensors,
                      .place = place,
                      .forward = forward,
                      .backward = backward,
                      .refusal = refusal};

}  // namespace invar
