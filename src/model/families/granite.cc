// Granite: Llama with four multipliers.
#include <cmath>

#include "model/families/family.h"

namespace invar {

namespace {

void imply(DecoderSpec& spec) {
  change_layers(spec, [&](LayerSpec& layer) {
    if (layer.attention.score_scale == 0)
      layer.attention.score_scale = 1 / std::sqrt(static_cast<double>(spec.head_dim));
  });
}

void read(ConfigReader& reader, DecoderSpec& spec) {
  const auto multiplier = [&](std::string_view key) { return reader.number(key, 1e-6, 1e6, 1); };
  spec.embedding_scale = static_cast<float>(multiplier("embedding_multiplier"));
  spec.residual_scale = static_cast<float>(multiplier("residual_multiplier"));
  spec.logits_divisor = static_cast<float>(multiplier("logits_scaling"));
  const double scale = multiplier("attention_multiplier");
  change_layers(spec, [&](LayerSpec& layer) { layer.attention.score_scale = scale; });
}

void write(const DecoderSpec& spec, json::Value& config) {
  config.set("embedding_multiplier", static_cast<double>(spec.embedding_scale));
  config.set("residual_multiplier", static_cast<double>(spec.residual_scale));
  config.set("logits_scaling", static_cast<double>(spec.logits_divisor));
  config.set("attention_multiplier", spec.layer(0).attention.score_scale);
}

}  // namespace

extern const Family kGranite{.name = "granite",
                             .architecture = "GraniteForCausalLM",
                             .has_attention_bias = true,
                             .has_mlp_bias = true,
                             .read = read,
                             .write = write,
                             .imply = imply};

}  // namespace invar
