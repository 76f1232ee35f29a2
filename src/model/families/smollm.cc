// SmolLM3: some layers do not rotate.
#include "base/error.h"
#include "model/families/family.h"

namespace invar {

void read_still_layers(ConfigReader& reader, DecoderSpec& spec) {
  const int64_t interval = reader.integer("no_rope_layer_interval", 1, kMaxLayers, 4);
  const json::Value* list = reader.take("no_rope_layers");
  const size_t layers = static_cast<size_t>(spec.layers);
  if (list && *list == json::Value(json::Array{})) list = nullptr;  // Llama 4's
  if (list && (!list->is_array() || list->as_array().size() < layers))
    fail("{}: \"no_rope_layers\": expected an array of {} numbers 0 or 1, found {}", reader.where(),
         layers, json::excerpt(*list));
  for (size_t i = 0; i < layers; ++i) {
    bool rotates = static_cast<int64_t>(i + 1) % interval != 0;
    if (list) rotates = list->as_array()[i] != json::Value(0);
    if (!rotates) spec.layer_specs[i].attention()->rope = std::nullopt;
  }
}

void write_still_layers(const DecoderSpec& spec, json::Value& config) {
  json::Array rotates;
  for (const LayerSpec& layer : spec.layer_specs)
    rotates.push_back(layer.attention()->rope ? 1 : 0);
  config.set("no_rope_layers", std::move(rotates));
}

extern const Family kSmolLm3{.name = "smollm3",
                             .architecture = "SmolLM3ForCausalLM",
                             .has_attention_bias = true,
                             .has_mlp_bias = true,
                             .is_tied = true,
                             .theta = 2e6,
                             .read = read_still_layers,
                             .write = write_still_layers};

}  // namespace invar
