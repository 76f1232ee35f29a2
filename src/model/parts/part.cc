#include "model/parts/part.h"

#include <algorithm>

#include "base/error.h"
#include "model/parts/makers.h"

namespace invar {

namespace {

struct Maker {
  const PartPlace& place;

  auto operator()(const JoinSpec&) const { return make_join(place); }
  auto operator()(const ResidualBlockSpec&) const { return make_residual_block(place); }
  auto operator()(const AttentionSpec& spec) const {
    return spec.latent ? make_latent_attention(place) : make_attention(place);
  }
  auto operator()(const RecurrentSpec&) const { return make_recurrent(place); }
  auto operator()(const ChannelDeltaSpec&) const { return make_channel_delta(place); }
  auto operator()(const ShortConvSpec&) const { return make_short_conv(place); }
  auto operator()(const StateSpaceSpec&) const { return make_state_space(place); }
  auto operator()(const DenseFfnSpec&) const { return make_dense_ffn(place); }
  auto operator()(const ExpertsSpec&) const { return make_experts(place); }
  auto operator()(const LayerEndSpec&) const { return make_layer_end(place); }
};

}  // namespace

LayerParts parts_of(const PartPlace& place) {
  const LayerSpec layer = place.model.layer(place.layer);
  LayerParts parts;
  for (const PartSpec& part : layer.parts) parts.push_back(std::visit(Maker{place}, part));
  return parts;
}

namespace {

// A layer has one part with keys and values at most.
StateShape sum_of(const LayerParts& parts) {
  StateShape sum;
  for (const auto& part : parts) {
    const StateShape state = part->state();
    if (state.kv_heads > 0) {
      sum.kv_heads = state.kv_heads;
      sum.head_dim = state.head_dim;
      sum.index_dim = state.index_dim;
    }
    sum.chunk_bytes += state.chunk_bytes;
    sum.state_bytes += state.state_bytes;
    sum.f32_chunk_bytes += state.f32_chunk_bytes;
    sum.f32_state_bytes += state.f32_state_bytes;
  }
  return sum;
}

}  // namespace

std::vector<StateShape> states_of(const DecoderSpec& spec, const Shard& shard, LayerRange layers) {
  std::vector<StateShape> states;
  for (int layer = layers.begin; layer < layers.end; ++layer)
    states.push_back(sum_of(parts_of({spec, layer, shard})));
  return states;
}

std::vector<StateShape> states_of(const DecoderSpec& spec) {
  return states_of(spec, {}, {0, spec.layers});
}

bool has_states(const DecoderSpec& spec) {
  return std::ranges::any_of(states_of(spec),
                             [](const StateShape& s) { return s.chunk_bytes + s.state_bytes > 0; });
}

void expect_backward(const DecoderSpec& spec) {
  const Shard whole{};
  for (int layer = 0; layer < spec.all_layers(); ++layer)
    for (const auto& part : parts_of({spec, layer, whole}))
      if (const char* why = part->refusal())
        fail("layer {} of the model cannot be trained: {}", layer, why);
}

}  // namespace invar
