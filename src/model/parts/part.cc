#include "model/parts/part.h"

#include <algorithm>

#include "base/error.h"
#include "model/parts/makers.h"

namespace invar {

LayerParts parts_of(const PartPlace& place) {
  const LayerSpec layer = place.model.layer(place.layer);
  LayerParts parts;
  if (layer.join) parts.push_back(make_join(place));
  if (layer.block)
    parts.push_back(make_residual_block(place));
  else if (layer.recurrent)
    parts.push_back(make_recurrent(place));
  else if (layer.attention.latent)
    parts.push_back(make_latent_attention(place));
  else
    parts.push_back(make_attention(place));
  if (layer.ffn.width > 0) parts.push_back(make_dense_ffn(place));
  if (layer.experts) parts.push_back(make_experts(place));
  return parts;
}

namespace {

// A layer has one part with keys and values at most.
StateShape sum_of(const LayerParts& parts) {
  StateShape sum;
  for (const auto& part : parts) {
    const StateShape state = part->state();
    if (state.kv_heads > 0) sum.kv_heads = state.kv_heads, sum.head_dim = state.head_dim;
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
