#include "model/parts/layer_part.h"

#include "base/error.h"
#include "model/families/family_source.h"

namespace invar {

namespace {

constexpr const LayerPart* kParts[] = {&kJoin,     &kResidualBlock, &kAttention, &kLatentAttention,
                                       &kDenseFfn, &kExperts};

}  // namespace

std::vector<const LayerPart*> parts_of(const LayerSpec& layer) {
  std::vector<const LayerPart*> parts;
  for (const LayerPart* part : kParts)
    if (part->is_in(layer)) parts.push_back(part);
  return parts;
}

void expect_trainable(const DecoderSpec& spec) {
  if (stores_otherwise(spec) && !stores_offsets(spec))
    fail(
        "a {} model cannot be trained: its checkpoints hold other tensors than the decoder's, and "
        "writing them is not implemented",
        spec.family);
  expect_backward(spec);
}

void expect_backward(const DecoderSpec& spec) {
  for (int layer = 0; layer < spec.all_layers(); ++layer)
    for (const LayerPart* part : parts_of(spec.layer(layer)))
      if (const char* why = part->refusal(spec, spec.layer(layer)))
        fail("layer {} of the model cannot be trained: {}", layer, why);
}

}  // namespace invar
