// Hy3: experts behind some dense layers, scored by a logistic function and chosen with a bias,
// beside one that every row goes through.
#include <algorithm>

#include "base/error.h"
#include "model/families/hybrid.h"

namespace invar {

namespace {

constexpr Routing kRouting{
    .score = ExpertScore::sigmoid, .renormalised = true, .epsilon = 1e-20f, .scale = 2.826f};

void imply(DecoderSpec& spec) {
  imply_experts(spec, kRouting);
  change_layers(spec, [](LayerSpec& layer) {
    ExpertsSpec* experts = layer.experts();
    if (!experts || experts->has_choice_bias) return;
    experts->has_choice_bias = true;
    experts->shared_width = experts->width;
  });
}

void read(ConfigReader& reader, DecoderSpec& spec) {
  constexpr std::string_view kNetworks[] = {"dense", "sparse"};
  ExpertsSpec experts{.routing = kRouting, .has_choice_bias = true};
  const Routing numbers = read_routing(reader, "num_experts", 192, 8);
  experts.routing.experts = numbers.experts;
  experts.routing.chosen = numbers.chosen;
  experts.routing.scale =
      static_cast<float>(reader.number("router_scaling_factor", 1e-6, 1e6, 2.826));
  experts.width = read_size(reader, "moe_intermediate_size", kMaxWidth, 1536);
  experts.shared_width =
      experts.width * static_cast<int>(reader.integer("num_shared_experts", 0, 64, 1));
  const DenseFfnSpec dense{.width = read_size(reader, "intermediate_size", kMaxWidth, 1)};
  const int64_t first = reader.integer("first_k_dense_replace", 0, kMaxLayers, 1);
  const std::vector<size_t> kinds = read_kinds(reader, "mlp_layer_types", spec.layers, kNetworks);
  change_layers(spec, [&](LayerSpec& layer) { layer.put(dense); });
  set_experts(spec, experts, [&](int i) {
    return kinds.empty() ? i >= first : kinds[static_cast<size_t>(i)] == 1;
  });
  const std::string_view harmless[] = {"enable_moe_fp32_combine"};
  reader.ignore(harmless);
}

void write(const DecoderSpec& spec, json::Value& config) {
  const ExpertsSpec& experts = experts_of(spec);
  json::Array kinds;
  for (const LayerSpec& layer : spec.layer_specs)
    kinds.push_back(layer.experts() ? "sparse" : "dense");
  config.set("mlp_layer_types", std::move(kinds));
  config.set("num_experts", experts.routing.experts);
  config.set("num_experts_per_tok", experts.routing.chosen);
  config.set("router_scaling_factor", json::shortest(experts.routing.scale));
  config.set("moe_intermediate_size", experts.width);
  config.set("num_shared_experts", experts.width ? experts.shared_width / experts.width : 0);
}

StoredAt stored(const DecoderSpec&, const TensorSpec& tensor) {
  const std::string at = fmt::format("model.layers.{}.mlp.", tensor.layer);
  if (tensor.role == TensorRole::router) return {at + "router.gate.weight"};
  if (tensor.role == TensorRole::choice_bias) return {at + "expert_bias"};
  return {renamed(tensor.name, {{"shared_expert.", "shared_mlp."}})};
}

// As transformers keeps it in memory.
StoredAt stored_otherwise(const DecoderSpec&, const TensorSpec& tensor) {
  if (tensor.role == TensorRole::choice_bias)
    return {fmt::format("model.layers.{}.mlp.e_score_correction_bias", tensor.layer)};
  return {renamed(tensor.name, {{"shared_expert.", "shared_experts."}})};
}

}  // namespace

extern const Family kHunyuan3{.name = "hy_v3",
                              .architecture = "HYV3ForCausalLM",
                              .qk_norm = true,
                              .has_attention_bias = true,
                              .head_dim = 128,
                              .read = read,
                              .write = write,
                              .stored = stored,
                              .stored_otherwise = stored_otherwise,
                              .imply = imply};

}  // namespace invar
