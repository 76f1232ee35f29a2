// Granite: Llama with four multipliers; its models with experts, which are all in one tensor;
// Granite 4, most of whose layers have a state space in the place of attention.
#include <fmt/format.h>

#include <cmath>

#include "base/error.h"
#include "model/families/hybrid.h"

namespace invar {

namespace {

void imply(DecoderSpec& spec) {
  change_layers(spec, [&](LayerSpec& layer) {
    if (layer.attention() && layer.attention()->score_scale == 0)
      layer.attention()->score_scale = 1 / std::sqrt(static_cast<double>(spec.head_dim));
  });
}

void read(ConfigReader& reader, DecoderSpec& spec) {
  const auto multiplier = [&](std::string_view key) { return reader.number(key, 1e-6, 1e6, 1); };
  spec.embedding_scale = static_cast<float>(multiplier("embedding_multiplier"));
  spec.residual_scale = static_cast<float>(multiplier("residual_multiplier"));
  spec.logits_divisor = static_cast<float>(multiplier("logits_scaling"));
  const double scale = multiplier("attention_multiplier");
  change_layers(spec, [&](LayerSpec& layer) {
    if (layer.attention()) layer.attention()->score_scale = scale;
  });
}

void write(const DecoderSpec& spec, json::Value& config) {
  config.set("embedding_multiplier", json::shortest(spec.embedding_scale));
  config.set("residual_multiplier", json::shortest(spec.residual_scale));
  config.set("logits_scaling", json::shortest(spec.logits_divisor));
  const AttentionSpec* attention = spec.first<AttentionSpec>();
  config.set("attention_multiplier", attention ? attention->score_scale : 1);
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

// ---- Granite 4: layers with a state space or attention, then experts beside a dense network, or
// that alone.

// Older names, then newer ones.
constexpr std::string_view kKinds[] = {"mamba", "attention", "linear_attention", "full_attention"};

StateSpaceSpec read_state_space(ConfigReader& reader, const DecoderSpec& spec) {
  StateSpaceSpec s{.groups = read_size(reader, "mamba_n_groups", kMaxHeads, 1),
                   .heads = read_size(reader, "mamba_n_heads", kMaxHeads, 128),
                   .state_size = read_size(reader, "mamba_d_state", kMaxWidth, 256),
                   .taps = read_size(reader, "mamba_d_conv", 64, 4),
                   .conv_bias = reader.boolean("mamba_conv_bias", true)};
  const double width = reader.number("mamba_expand", 1e-3, 1e3, 2) * spec.hidden;
  const json::Value* size = reader.take("mamba_d_head");
  const bool is_auto = !size || *size == json::Value("auto");
  s.head_size =
      is_auto ? static_cast<int>(width / s.heads) : read_size(reader, "mamba_d_head", kMaxWidth, 1);
  if (static_cast<double>(s.width()) != width)
    fail(
        "{}: expected mamba_n_heads * mamba_d_head to be mamba_expand * hidden_size, found {} and "
        "{}",
        reader.where(), s.width(), width);
  s.norm_groups = s.groups;
  read_step_limits(reader, s);
  check_neutral(reader, "mamba_proj_bias", false);
  const std::string_view harmless[] = {"mamba_chunk_size", "time_step_min", "time_step_max",
                                       "time_step_floor"};
  reader.ignore(harmless);
  return s;
}

void read_hybrid(ConfigReader& reader, DecoderSpec& spec) {
  read(reader, spec);
  const int shared = read_size(reader, "shared_intermediate_size", kMaxWidth, 1024);
  const int64_t count = reader.integer("num_local_experts", 0, Routing::kMaxExperts, 8);
  ExpertsSpec experts{.width = read_size(reader, "intermediate_size", kMaxWidth, 1),
                      .shared_width = shared};
  if (count > 0) experts.routing = read_routing(reader, "num_local_experts", 8, 2);
  experts.routing.score = ExpertScore::softmax_of_chosen;
  const std::string_view of_experts[] = {"num_experts_per_tok", "router_aux_loss_coef",
                                         "output_router_logits"};
  reader.ignore(of_experts);
  const StateSpaceSpec state_space = read_state_space(reader, spec);
  const bool turns = reader.text("position_embedding_type", "nope") == "rope";
  const std::vector<size_t> kinds = read_kinds(reader, "layer_types", spec.layers, kKinds);
  for (size_t i = 0; i < spec.layer_specs.size(); ++i) {
    LayerSpec& layer = spec.layer_specs[i];
    if (count > 0)
      layer.put(experts);
    else
      layer.put(DenseFfnSpec{.width = shared});
    if (!turns) layer.attention()->rope = std::nullopt;
    if (kinds.empty() || kinds[i] % 2 == 0) layer.put(state_space);
  }
  check_neutral(reader, "normalization_function", "rmsnorm");
  const std::string_view harmless[] = {"init_method"};
  reader.ignore(harmless);
}

void write_hybrid(const DecoderSpec& spec, json::Value& config) {
  write(spec, config);
  json::Array types;
  for (const LayerSpec& layer : spec.layer_specs)
    types.push_back(kKinds[layer.attention() ? 1 : 0]);
  config.set("layer_types", std::move(types));
  const AttentionSpec* attention = spec.first<AttentionSpec>();
  config.set("position_embedding_type", attention && attention->rope ? "rope" : "nope");
  const ExpertsSpec* experts = spec.first<ExpertsSpec>();
  config.set("num_local_experts", experts ? experts->routing.experts : 0);
  config.set("num_experts_per_tok", experts ? experts->routing.chosen : 0);
  config.set("shared_intermediate_size",
             experts ? experts->shared_width : spec.first<DenseFfnSpec>()->width);
  const StateSpaceSpec* s = spec.first<StateSpaceSpec>();
  if (!s) return;
  config.set("mamba_n_groups", s->groups);
  config.set("mamba_n_heads", s->heads);
  config.set("mamba_d_head", s->head_size);
  config.set("mamba_d_state", s->state_size);
  config.set("mamba_d_conv", s->taps);
  config.set("mamba_conv_bias", s->conv_bias);
  if (s->width() % spec.hidden == 0)
    config.set("mamba_expand", s->width() / spec.hidden);
  else
    config.set("mamba_expand", static_cast<double>(s->width()) / spec.hidden);
  write_step_limits(*s, config);
}

// A preset's layers: every fourth attends, without a rotation.
void shape_hybrid(DecoderSpec& spec) {
  imply_experts(spec, {.score = ExpertScore::softmax_of_chosen});
  for (size_t i = 0; i < spec.layer_specs.size(); ++i) {
    LayerSpec& layer = spec.layer_specs[i];
    if (layer.experts()) layer.experts()->shared_width = layer.experts()->width;
    layer.attention()->rope = std::nullopt;
    if (i % 4 != 3)
      layer.put(StateSpaceSpec{.groups = 1,
                               .heads = spec.heads,
                               .state_size = spec.head_dim,
                               .head_size = spec.head_dim,
                               .taps = 4,
                               .conv_bias = true});
  }
}

StoredAt stored_hybrid(const DecoderSpec& spec, const TensorSpec& tensor) {
  using enum TensorRole;
  const std::string at = fmt::format("model.layers.{}.", tensor.layer);
  const LayerSpec layer = tensor.layer < 0 ? LayerSpec{} : spec.layer(tensor.layer);
  const int64_t shared = layer.experts() ? layer.experts()->shared_width : layer.ffn_width();
  switch (tensor.role) {
    case gate:
    case shared_gate:
      return {at + "shared_mlp.input_linear.weight", behind(0)};
    case up:
    case shared_up:
      return {at + "shared_mlp.input_linear.weight", behind(shared)};
    case down:
    case shared_down:
      return {at + "shared_mlp.output_linear.weight"};
    case router:
    case expert_gate:
    case expert_up:
    case expert_down:
      return stored_moe(spec, tensor);
    default:
      break;
  }
  const StateSpaceSpec* s = layer.find<StateSpaceSpec>();
  return s && tensor.name.starts_with(at + "mamba.") ? stored_state_space(*s, tensor, at + "mamba.")
                                                     : StoredAt{tensor.name};
}

}  // namespace

extern const Family kGraniteMoe{.name = "granitemoe",
                                .architecture = "GraniteMoeForCausalLM",
                                .has_attention_bias = true,
                                .read = read_moe,
                                .write = write_moe,
                                .stored = stored_moe,
                                .imply = imply_moe};

extern const Family kGraniteHybrid{.name = "granitemoehybrid",
                                   .architecture = "GraniteMoeHybridForCausalLM",
                                   .has_attention_bias = true,
                                   .has_dense_layers = false,
                                   .has_states = true,
                                   .read = read_hybrid,
                                   .write = write_hybrid,
                                   .stored = stored_hybrid,
                                   .imply = imply,
                                   .shape = shape_hybrid};

extern const Family kGranite{.name = "granite",
                             .architecture = "GraniteForCausalLM",
                             .has_attention_bias = true,
                             .has_mlp_bias = true,
                             .read = read,
                             .write = write,
                             .imply = imply};

}  // namespace invar
