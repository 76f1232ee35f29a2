#include "model/parts/part.h"

#include "base/error.h"
#include "model/parts/makers.h"

namespace invar {

LayerParts parts_of(const PartPlace& place) {
  const LayerSpec layer = place.model.layer(place.layer);
  LayerParts parts;
  if (layer.join) parts.push_back(make_join(place));
  if (layer.block)
    parts.push_back(make_residual_block(place));
  else if (layer.attention.latent)
    parts.push_back(make_latent_attention(place));
  else
    parts.push_back(make_attention(place));
  if (layer.ffn.width > 0) parts.push_back(make_dense_ffn(place));
  if (layer.experts) parts.push_back(make_experts(place));
  return parts;
}

void expect_backward(const DecoderSpec& spec) {
  const Shard whole{};
  for (int layer = 0; layer < spec.all_layers(); ++layer)
    for (const auto& part : parts_of({spec, layer, whole}))
      if (const char* why = part->refusal())
        fail("layer {} of the model cannot be trained: {}", layer, why);
}

}  // namespace invar
