// Nemotron-H and Nemotron 3: every layer is one part, a state space, attention without a rotation,
// or a network, dense or of experts, whose curve is relu(x)^2 and has no gate.
#include <algorithm>

#include "base/error.h"
#include "model/families/hybrid.h"

namespace invar {

namespace {

// Older names, then newer ones of the first two.
constexpr std::string_view kKinds[] = {"mamba", "attention",        "mlp",
                                       "moe",   "linear_attention", "full_attention"};
constexpr std::string_view kLetters = "M*-E";

// As a word of one letter a layer says, or a list of names, older ones or newer.
std::vector<size_t> read_layers(ConfigReader& reader) {
  const std::string word = reader.text("hybrid_override_pattern", "");
  std::vector<size_t> kinds;
  for (const char letter : word) kinds.push_back(kLetters.find(letter));
  if (std::ranges::count(kinds, std::string_view::npos))
    fail("{}: \"hybrid_override_pattern\": expected a word of the letters {}, found {}",
         reader.where(), kLetters, json::quoted(word));
  for (const char* key : {"layers_block_type", "layer_types"}) {
    const json::Value* listed = reader.take(key);
    if (!kinds.empty() || !listed || !listed->is_array()) continue;
    const json::Array& names = listed->as_array();
    kinds = read_kinds(reader, key, static_cast<int>(names.size()), kKinds);
    for (size_t& kind : kinds) kind %= 4;
  }
  if (kinds.empty())
    fail("{}: expected \"hybrid_override_pattern\" or \"layers_block_type\" to say what layers are",
         reader.where());
  check_neutral(reader, "num_hidden_layers", std::ssize(kinds));
  return kinds;
}

StateSpaceSpec read_state_space(ConfigReader& reader) {
  StateSpaceSpec s{.groups = read_size(reader, "n_groups", kMaxHeads, 8),
                   .heads = read_size(reader, "mamba_num_heads", kMaxHeads, 128),
                   .state_size = read_size(reader, "ssm_state_size", kMaxWidth, 128),
                   .head_size = read_size(reader, "mamba_head_dim", kMaxWidth, 64),
                   .taps = read_size(reader, "conv_kernel", 64, 4)};
  s.norm_groups = s.groups;
  s.conv_bias = reader.boolean("use_conv_bias", true);
  s.least_step = static_cast<float>(reader.number("time_step_min", 0, 1e6, 0.001));
  for (const char* key : {"use_bias", "mamba_proj_bias"}) check_neutral(reader, key, false);
  check_neutral(reader, "mamba_hidden_act", "silu");
  const std::string_view harmless[] = {"chunk_size",
                                       "expand",
                                       "time_step_limit",
                                       "time_step_max",
                                       "time_step_floor",
                                       "time_step_rank",
                                       "mamba_ssm_cache_dtype",
                                       "use_mamba_kernels",
                                       "residual_in_fp32",
                                       "num_logits_to_keep",
                                       "rescale_prenorm_residual",
                                       "num_nextn_predict_layers",
                                       "mtp_layers_block_type",
                                       "mtp_hybrid_override_pattern",
                                       "moe_shared_expert_overlap"};
  reader.ignore(harmless);
  return s;
}

ExpertsSpec read_experts(ConfigReader& reader) {
  const Routing how = read_sigmoid_routing(reader, 8, 2);
  const bool has_shared = reader.integer("n_shared_experts", 0, 1, 1) == 1;
  const int shared = read_size(reader, "moe_shared_expert_intermediate_size", kMaxWidth, 7688);
  return {.routing = how,
          .width = read_size(reader, "moe_intermediate_size", kMaxWidth, 7688),
          .latent = read_size(reader, "moe_latent_size", kMaxWidth, 0),
          .has_choice_bias = true,
          .shared_width = has_shared ? shared : 0,
          .curve = Nonlinearity::relu_squared,
          .is_gated = false};
}

void read_sizes(ConfigReader& reader, DecoderSpec& spec) {
  const std::vector<size_t> kinds = read_layers(reader);
  const PartSpec parts[] = {
      read_state_space(reader), AttentionSpec{},
      DenseFfnSpec{.width = read_size(reader, "intermediate_size", kMaxWidth, 21504),
                   .is_gated = false},
      read_experts(reader)};
  spec.layers = static_cast<int>(kinds.size());
  for (const size_t kind : kinds) spec.layer_specs.push_back({.parts = {parts[kind]}});
  spec.hidden = read_size(reader, "hidden_size", kMaxWidth, 4096);
  spec.heads = read_size(reader, "num_attention_heads", kMaxHeads, 32);
  spec.kv_heads = read_size(reader, "num_key_value_heads", kMaxHeads, 8);
  const int64_t head_dim = reader.integer("attention_head_dim", 1, kMaxWidth, 128);
  spec.head_dim = static_cast<int>(reader.integer("head_dim", 1, kMaxWidth, head_dim));
  spec.vocab = read_size(reader, "vocab_size", kMaxVocab, 131072);
  spec.max_positions = read_size(reader, "max_position_embeddings", kMaxPositions, 4096);
  const double eps = reader.number("layer_norm_epsilon", 1e-20, 1, 1e-5);
  for (const char* key : {"norm_eps", "rms_norm_eps"}) check_neutral(reader, key, eps);
  spec.norm_eps = static_cast<float>(eps);
}

void read(ConfigReader&, DecoderSpec& spec) {
  change_layers(spec, [](LayerSpec& layer) {
    if (layer.attention()) layer.attention()->rope = std::nullopt;
  });
}

void write(const DecoderSpec& spec, json::Value& config) {
  json::Array types;
  for (const LayerSpec& layer : spec.layer_specs) {
    const size_t kind = layer.find<StateSpaceSpec>() ? 0
                        : layer.attention()          ? 1
                        : layer.ffn()                ? 2
                                                     : 3;
    types.push_back(kKinds[kind]);
  }
  config.set("layers_block_type", std::move(types));
  config.set("num_key_value_heads", spec.kv_heads);
  config.set("head_dim", spec.head_dim);
  config.set("layer_norm_epsilon", json::shortest(spec.norm_eps));
  if (const DenseFfnSpec* dense = spec.first<DenseFfnSpec>())
    config.set("intermediate_size", dense->width);
  if (const StateSpaceSpec* s = spec.first<StateSpaceSpec>()) {
    config.set("n_groups", s->groups);
    config.set("mamba_num_heads", s->heads);
    config.set("mamba_head_dim", s->head_size);
    config.set("ssm_state_size", s->state_size);
    config.set("conv_kernel", s->taps);
    config.set("use_conv_bias", s->conv_bias);
    config.set("time_step_min", json::shortest(s->least_step));
  }
  const ExpertsSpec* experts = spec.first<ExpertsSpec>();
  if (!experts) return;
  write_grouped_experts(*experts, config);
  if (experts->latent > 0) config.set("moe_latent_size", experts->latent);
  config.set("n_shared_experts", experts->shared_width > 0 ? 1 : 0);
  if (experts->shared_width > 0)
    config.set("moe_shared_expert_intermediate_size", experts->shared_width);
}

// A preset's layers: one of each kind in turn.
void shape(DecoderSpec& spec) {
  for (size_t i = 0; i < spec.layer_specs.size(); ++i) {
    const int width = spec.layer_specs[i].ffn_width();
    const PartSpec parts[] = {
        StateSpaceSpec{.groups = spec.kv_heads,
                       .heads = spec.heads,
                       .state_size = spec.head_dim,
                       .head_size = spec.head_dim,
                       .taps = 4,
                       .norm_groups = spec.kv_heads,
                       .conv_bias = true,
                       .least_step = 0.001f},
        DenseFfnSpec{.width = width, .curve = Nonlinearity::relu_squared, .is_gated = false},
        AttentionSpec{.rope = std::nullopt},
        ExpertsSpec{.routing = {.experts = 8,
                                .chosen = 2,
                                .score = ExpertScore::sigmoid,
                                .renormalised = true,
                                .epsilon = 1e-20f},
                    .width = width,
                    .has_choice_bias = true,
                    .shared_width = width,
                    .curve = Nonlinearity::relu_squared,
                    .is_gated = false}};
    spec.layer_specs[i].parts = {parts[i % 4]};
  }
}

// ---- Tensors

StoredAt stored(const DecoderSpec& spec, const TensorSpec& tensor) {
  using enum TensorRole;
  if (tensor.role == embedding) return {"backbone.embeddings.weight"};
  if (tensor.role == final_norm) return {"backbone.norm_f.weight"};
  if (tensor.layer < 0) return {tensor.name};
  const std::string at = fmt::format("backbone.layers.{}.", tensor.layer);
  const LayerSpec layer = spec.layer(tensor.layer);
  if (tensor.role == input_norm || tensor.role == post_norm) return {at + "norm.weight"};
  if (const StateSpaceSpec* s = layer.find<StateSpaceSpec>())
    return stored_state_space(*s, tensor, at + "mixer.");
  const std::string ours =
      fmt::format("model.layers.{}.{}.", tensor.layer, layer.attention() ? "self_attn" : "mlp");
  return {renamed(renamed(tensor.name, {{ours, at + "mixer."}}),
                  {{"shared_expert.", "shared_experts."}})};
}

// As transformers keeps it in memory.
StoredAt stored_otherwise(const DecoderSpec& spec, const TensorSpec& tensor) {
  StoredAt at = stored(spec, tensor);
  at.tensor = renamed(at.tensor, {{"backbone.", "model."}});
  const bool is_down = tensor.role == TensorRole::expert_down;
  if (!is_down && tensor.role != TensorRole::expert_up) return at;
  const int64_t rows = tensor.shape[0], first = tensor.expert * rows;
  const int64_t experts = spec.layer(tensor.layer).experts()->routing.experts;
  return {.tensor = fmt::format("model.layers.{}.mixer.experts.{}", tensor.layer,
                                is_down ? "down_proj" : "up_proj"),
          .row = [first](int64_t row) { return first + row; },
          .shape = {experts, rows, tensor.shape[1]}};
}

}  // namespace

extern const Family kNemotronH{.name = "nemotron_h",
                               .architecture = "NemotronHForCausalLM",
                               .has_states = true,
                               .activation_key = "mlp_hidden_act",
                               .curve = Nonlinearity::relu_squared,
                               .read_sizes = read_sizes,
                               .read = read,
                               .write = write,
                               .stored = stored,
                               .stored_otherwise = stored_otherwise,
                               .shape = shape};

}  // namespace invar
