// MiniMax M2: experts in every layer, scored by a logistic function and chosen with a bias; one
// norm of all of a row's queries, another of its keys; half of a head turns.
#include "base/error.h"
#include "model/families/experts.h"

namespace invar {

namespace {

constexpr Routing kRouting{.score = ExpertScore::sigmoid, .renormalised = true};

void imply(DecoderSpec& spec) {
  spec.joint_qk_norm = true;
  imply_experts(spec, kRouting);
  change_layers(spec, [](LayerSpec& layer) {
    if (layer.experts()) layer.experts()->has_choice_bias = true;
  });
}

void read(ConfigReader& reader, DecoderSpec& spec) {
  ExpertsSpec experts{.routing = read_routing(reader, "num_local_experts", 256, 8),
                      .width = read_size(reader, "intermediate_size", kMaxWidth, 1536),
                      .has_choice_bias = true};
  experts.routing.score = kRouting.score;
  experts.routing.renormalised = kRouting.renormalised;
  set_experts(spec, experts, [](int) { return true; });
  if (reader.has("rotary_dim")) {
    const int rotated = read_size(reader, "rotary_dim", spec.head_dim, spec.head_dim);
    change_layers(spec, [&](LayerSpec& layer) {
      layer.attention()->rope->rotated = rotated == spec.head_dim ? 0 : rotated;
    });
  }
  check_neutral(reader, "use_qk_norm", true);
  check_neutral(reader, "qk_norm_type", "per_layer");
  check_neutral(reader, "scoring_func", "sigmoid");
  check_neutral(reader, "use_routing_bias", true);
  check_neutral(reader, "shared_intermediate_size", 0);
  if (const json::Value* kinds = reader.take("attn_type_list"))
    for (const json::Value& kind : kinds->is_array() ? kinds->as_array() : json::Array{*kinds})
      if (kind != json::Value(1))
        fail("{}: \"attn_type_list\": only 1, attention to all, is implemented, found {}",
             reader.where(), json::excerpt(kind));
  const std::string_view harmless[] = {"num_mtp_modules", "mtp_transformer_layers", "use_mtp"};
  reader.ignore(harmless);
}

void write(const DecoderSpec& spec, json::Value& config) {
  config.set("num_local_experts", experts_of(spec).routing.experts);
  config.set("num_experts_per_tok", experts_of(spec).routing.chosen);
}

StoredAt stored(const DecoderSpec& spec, const TensorSpec& tensor) {
  using enum TensorRole;
  const std::string at = fmt::format("model.layers.{}.block_sparse_moe.", tensor.layer);
  switch (tensor.role) {
    case q:
    case k:
    case q_norm:
    case k_norm:
      return {tensor.name, rotation_rows(spec, false)};
    case router:
      return {at + "gate.weight"};
    case choice_bias:
      return {at + "e_score_correction_bias"};
    case expert_gate:
      return {fmt::format("{}experts.{}.w1.weight", at, tensor.expert)};
    case expert_down:
      return {fmt::format("{}experts.{}.w2.weight", at, tensor.expert)};
    case expert_up:
      return {fmt::format("{}experts.{}.w3.weight", at, tensor.expert)};
    default:
      return {tensor.name};
  }
}

// As transformers keeps it in memory.
StoredAt stored_otherwise(const DecoderSpec& spec, const TensorSpec& tensor) {
  if (tensor.role == TensorRole::choice_bias)
    return {fmt::format("model.layers.{}.mlp.e_score_correction_bias", tensor.layer)};
  return stored(spec, tensor);
}

}  // namespace

extern const Family kMiniMaxM2{.name = "minimax_m2",
                               .architecture = "MiniMaxM2ForCausalLM",
                               .qk_norm = true,
                               .head_dim = 128,
                               .has_rotated_share = true,
                               .read = read,
                               .write = write,
                               .stored = stored,
                               .stored_otherwise = stored_otherwise,
                               .imply = imply};

}  // namespace invar
