// Granite: Llama with four multipliers; its models with experts, which are all in one tensor.
#include <fmt/format.h>

#include <cmath>

#include "model/families/experts.h"

namespace invar {

namespace {

void imply(DecoderSpec& spec) {
  change_layers(spec, [&](LayerSpec& layer) {
    if (layer.attention()->score_scale == 0)
      layer.attention()->score_scale = 1 / std::sqrt(static_cast<double>(spec.head_dim));
  });
}

void read(ConfigReader& reader, DecoderSpec& spec) {
  const auto multiplier = [&](std::string_view key) { return reader.number(key, 1e-6, 1e6, 1); };
  spec.embedding_scale = static_cast<float>(multiplier("embedding_multiplier"));
  spec.residual_scale = static_cast<float>(multiplier("residual_multiplier"));
  spec.logits_divisor = static_cast<float>(multiplier("logits_scaling"));
  const double scale = multiplier("attention_multiplier");
  change_layers(spec, [&](LayerSpec& layer) { layer.attention()->score_scale = scale; });
}

void write(const DecoderSpec& spec, json::Value& config) {
  config.set("embedding_multiplier", json::shortest(spec.embedding_scale));
  config.set("residual_multiplier", json::shortest(spec.residual_scale));
  config.set("logits_scaling", json::shortest(spec.logits_divisor));
  config.set("attention_multiplier", spec.first<AttentionSpec>()->score_scale);
}

void imply_moe(DecoderSpec& spec) {
  imply(spec);
  imply_experts(spec, {.score = ExpertScore::softmax_of_chosen});
}

void read_moe(ConfigReader& reader, DecoderSpec& spec) {
  read(reader, spec);
  ExpertsSpec experts{.routing = read_routing(reader, "num_local_experts", 8, 2)};
  experts.routing.score = ExpertScore::softmax_of_chosen;
  experts.width = read_size(reader, "intermediate_size", kMaxWidth, 1);
  set_experts(spec, experts, [](int) { return true; });
}

void write_moe(const DecoderSpec& spec, json::Value& config) {
  write(spec, config);
  config.set("num_local_experts", experts_of(spec).routing.experts);
  config.set("num_experts_per_tok", experts_of(spec).routing.chosen);
}

StoredAt stored_moe(const DecoderSpec& spec, const TensorSpec& tensor) {
  const std::string at = fmt::format("model.layers.{}.block_sparse_moe.", tensor.layer);
  if (tensor.role == TensorRole::router) return {at + "router.layer.weight"};
  if (tensor.expert < 0) return {tensor.name};
  return stacked_at(spec, tensor, at + "input_linear.weight", at + "output_linear.weight");
}

}  // namespace

extern const Family kGraniteMoe{.name = "granitemoe",
                                .architecture = "GraniteMoeForCausalLM",
                                .has_attention_bias = true,
                                .read = read_moe,
                                .write = write_moe,
                                .stored = stored_moe,
                                .imply = imply_moe};

extern const Family kGranite{.name = "granite",
                             .architecture = "GraniteForCausalLM",
                             .has_attention_bias = true,
                             .has_mlp_bias = true,
                             .read = read,
                             .write = write,
                             .imply = imply};

}  // namespace invar
