// Kimi Linear: three layers of Kimi Delta Attention, then one of latent attention without a
// rotation; experts as DeepSeek-V3's behind a dense layer.
#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "model/families/hybrid.h"
#include "model/families/latent.h"

namespace invar {

namespace {

constexpr std::string_view kKinds[] = {"linear_attention", "full_attention"};
constexpr int kFullInterval = 4;

// A key by the name of the published files, or that of transformers.
int read_either(ConfigReader& reader, std::string_view key, std::string_view other, int64_t high,
                int64_t fallback) {
  return read_size(reader, key, high, read_size(reader, other, high, fallback));
}

LatentSpec read_latent(ConfigReader& reader) {
  return {.rank = read_size(reader, "kv_lora_rank", kMaxHeadDim, 512),
          .rope = read_size(reader, "qk_rope_head_dim", kMaxHeadDim, 64),
          .nope = read_size(reader, "qk_nope_head_dim", kMaxWidth, 128),
          .value = read_size(reader, "v_head_dim", kMaxWidth, 128),
          .query_rank = read_size(reader, "q_lora_rank", kMaxWidth, 0),
          .norm_eps = 1e-6f};
}

// Numbers of layers from 1 on, as linear_attn_config has them.
bool lists(const json::Value& object, std::string_view key, int layer) {
  const json::Value* listed = object.find(key);
  return listed && listed->is_array() &&
         std::ranges::count(listed->as_array(), json::Value(layer + 1)) > 0;
}

void read_linear_layers(ConfigReader& reader, DecoderSpec& spec, const AttentionSpec& attention) {
  ChannelDeltaSpec delta{.heads = read_size(reader, "linear_num_heads", kMaxHeads, 32),
                         .size = read_size(reader, "linear_head_dim", kMaxWidth, 128),
                         .taps = read_size(reader, "linear_conv_kernel_dim", 64, 4)};
  const std::vector<size_t> kinds = read_kinds(reader, "layer_types", spec.layers, kKinds);
  const json::Value none = json::Object{};
  const json::Value* stored = reader.take("linear_attn_config");
  if (!stored) stored = &none;
  ConfigReader inner(*stored, reader.where() + ": \"linear_attn_config\"");
  delta.heads = read_size(inner, "num_heads", kMaxHeads, delta.heads);
  delta.size = read_size(inner, "head_dim", kMaxWidth, delta.size);
  delta.taps = read_size(inner, "short_conv_kernel_size", 64, delta.taps);
  const bool is_listed = inner.take("full_attn_layers") && inner.take("kda_layers");
  inner.refuse_others();
  for (int i = 0; i < spec.layers; ++i) {
    bool is_full = i > 0 && i % kFullInterval == 0;
    if (!kinds.empty()) is_full = kinds[static_cast<size_t>(i)] == 1;
    if (is_listed) is_full = lists(*stored, "full_attn_layers", i);
    if (is_listed && is_full == lists(*stored, "kda_layers", i))
      fail(
          "{}: \"linear_attn_config\": expected layer {} in one of full_attn_layers and kda_layers",
          reader.where(), i + 1);
    LayerSpec& layer = spec.layer_specs[static_cast<size_t>(i)];
    if (is_full)
      layer.put(attention);
    else
      layer.put(delta);
  }
}

void read_sizes(ConfigReader& reader, DecoderSpec& spec) {
  spec.hidden = read_size(reader, "hidden_size", kMaxWidth, 2304);
  spec.layers = read_size(reader, "num_hidden_layers", kMaxLayers, 27);
  spec.heads = read_size(reader, "num_attention_heads", kMaxHeads, 32);
  spec.kv_heads = 1;  // the latent is all heads' key and value
  const LatentSpec latent = read_latent(reader);
  spec.head_dim = latent.rank + latent.rope;
  spec.vocab = read_size(reader, "vocab_size", kMaxVocab, 163840);
  spec.max_positions = read_size(reader, "max_position_embeddings", kMaxPositions, 1 << 20);
  spec.max_positions = read_size(reader, "model_max_length", kMaxPositions, spec.max_positions);
  spec.norm_eps = static_cast<float>(reader.number("rms_norm_eps", 1e-20, 1, 1e-5));
  const double width = latent.nope + latent.rope;
  const AttentionSpec attention{
      .rope = std::nullopt, .score_scale = 1 / std::sqrt(width), .latent = latent};
  const int ffn = read_size(reader, "intermediate_size", kMaxWidth, 9216);
  spec.set_layers({.parts = {attention, DenseFfnSpec{.width = ffn}}});
  read_linear_layers(reader, spec, attention);
  if (!spec.first<AttentionSpec>()) spec.head_dim = spec.first<ChannelDeltaSpec>()->size;
  const std::string_view implied[] = {"num_key_value_heads", "head_dim", "qk_head_dim"};
  reader.ignore(implied);
}

int64_t read_dense(ConfigReader& reader, int layers) {
  constexpr std::string_view kNetworks[] = {"dense", "sparse"};
  const auto kinds = read_kinds(reader, "mlp_layer_types", layers, kNetworks);
  int64_t dense = reader.integer("first_k_dense_replace", 0, kMaxLayers, 1);
  if (kinds.empty()) return dense;
  dense = std::ranges::find(kinds, 1u) - kinds.begin();
  if (std::find(kinds.begin() + dense, kinds.end(), 0u) != kinds.end())
    fail("{}: \"mlp_layer_types\": expected dense layers before those with experts",
         reader.where());
  return dense;
}

void read(ConfigReader& reader, DecoderSpec& spec) {
  change_layers(spec, [](LayerSpec& layer) {
    if (layer.attention()) layer.attention()->rope = std::nullopt;
  });
  Routing how = read_routing(reader, "num_experts", 256, 8);
  how.chosen = read_size(reader, "num_experts_per_token", Routing::kMaxChosen, how.chosen);
  how.score = ExpertScore::sigmoid;
  how.groups = read_either(reader, "num_expert_group", "n_group", how.experts, 1);
  how.chosen_groups = read_size(reader, "topk_group", how.groups, 1);
  how.pair_score = how.groups > 1;
  how.renormalised = reader.boolean("moe_renormalize", reader.boolean("norm_topk_prob", true));
  if (how.renormalised) how.epsilon = 1e-20f;
  how.scale = static_cast<float>(reader.number("routed_scaling_factor", 1e-6, 1e6, 2.446));
  ExpertsSpec experts{.routing = how, .has_choice_bias = true};
  experts.width = read_size(reader, "moe_intermediate_size", kMaxWidth, 1024);
  experts.shared_width =
      experts.width * read_either(reader, "num_shared_experts", "n_shared_experts", 64, 1);
  const int64_t dense = read_dense(reader, spec.layers);
  set_experts(spec, experts, [&](int i) { return i >= dense; });
  check_neutral(reader, "moe_layer_freq", 1);
  check_neutral(reader, "mla_use_nope", true);
  check_neutral(reader, "moe_router_activation_func", "sigmoid");
  const std::string_view harmless[] = {"use_grouped_topk", "num_nextn_predict_layers"};
  reader.ignore(harmless);
}

void write_experts(const ExpertsSpec& experts, json::Value& config) {
  const Routing& how = experts.routing;
  config.set("num_experts", how.experts);
  config.set("num_experts_per_token", how.chosen);
  config.set("num_expert_group", how.groups);
  config.set("topk_group", how.chosen_groups);
  config.set("moe_renormalize", how.renormalised);
  config.set("routed_scaling_factor", json::shortest(how.scale));
  config.set("moe_intermediate_size", experts.width);
  config.set("num_shared_experts", experts.shared_width / experts.width);
}

void write(const DecoderSpec& spec, json::Value& config) {
  json::Array types;
  int dense = 0;
  while (dense < spec.layers && !spec.layer(dense).experts()) ++dense;
  for (const LayerSpec& layer : spec.layer_specs)
    types.push_back(kKinds[layer.attention() ? 1 : 0]);
  config.set("layer_types", std::move(types));
  config.set("rms_norm_eps", json::shortest(spec.norm_eps));
  if (const AttentionSpec* attention = spec.first<AttentionSpec>()) {
    const LatentSpec& latent = *attention->latent;
    config.set("kv_lora_rank", latent.rank);
    config.set("q_lora_rank", latent.query_rank ? json::Value(latent.query_rank) : json::Value());
    config.set("qk_rope_head_dim", latent.rope);
    config.set("qk_nope_head_dim", latent.nope);
    config.set("v_head_dim", latent.value);
  }
  if (const ChannelDeltaSpec* delta = spec.first<ChannelDeltaSpec>()) {
    config.set("linear_num_heads", delta->heads);
    config.set("linear_head_dim", delta->size);
    config.set("linear_conv_kernel_dim", delta->taps);
  }
  const ExpertsSpec* experts = spec.first<ExpertsSpec>();
  config.set("intermediate_size", dense > 0 ? spec.layer(0).ffn_width() : experts->width);
  if (experts) write_experts(*experts, config);
  config.set("first_k_dense_replace", dense);
}

// A preset's layers: every fourth has a latent, the others a state; experts.
void shape(DecoderSpec& spec) {
  const ChannelDeltaSpec delta{.heads = spec.heads, .size = spec.head_dim, .taps = 4};
  const LatentSpec latent{.rank = 64, .rope = 16, .nope = 32, .value = 32, .norm_eps = 1e-6f};
  spec.kv_heads = 1;
  spec.head_dim = latent.rank + latent.rope;
  imply_experts(spec, {.score = ExpertScore::sigmoid, .renormalised = true, .epsilon = 1e-20f});
  for (size_t i = 0; i < spec.layer_specs.size(); ++i) {
    LayerSpec& layer = spec.layer_specs[i];
    if (ExpertsSpec* experts = layer.experts()) {
      experts->has_choice_bias = true;
      experts->shared_width = experts->width;
    }
    if (i % kFullInterval == kFullInterval - 1)
      layer.put(AttentionSpec{
          .rope = std::nullopt,
          .score_scale = 1 / std::sqrt(static_cast<double>(latent.nope + latent.rope)),
          .latent = latent});
    else
      layer.put(delta);
  }
  if (!spec.first<AttentionSpec>()) spec.head_dim = delta.size;
}

// ---- Tensors

StoredAt stored_delta(const TensorSpec& tensor, const ChannelDeltaSpec& delta) {
  using enum TensorRole;
  const std::string at = fmt::format("model.layers.{}.self_attn.", tensor.layer);
  const auto tap = [&](const char* name) {
    return stored_tap(tensor, at + name, delta.width(), 0, delta.taps);
  };
  switch (tensor.role) {
    case conv_q:
      return tap("q_conv1d.weight");
    case conv_k:
      return tap("k_conv1d.weight");
    case conv_v:
      return tap("v_conv1d.weight");
    case decay_rate:
      return {.tensor = tensor.name, .row = behind(0), .shape = {1, 1, delta.heads, 1}};
    default:
      return {tensor.name};
  }
}

StoredAt stored(const DecoderSpec& spec, const TensorSpec& tensor) {
  using enum TensorRole;
  if (tensor.layer < 0) return {tensor.name};
  const LayerSpec layer = spec.layer(tensor.layer);
  const std::string at = fmt::format("model.layers.{}.", tensor.layer);
  if (tensor.name.starts_with(at + "self_attn.")) {
    if (const ChannelDeltaSpec* delta = layer.find<ChannelDeltaSpec>())
      return stored_delta(tensor, *delta);
    return stored_latent(spec, tensor, /*in_pairs=*/false);
  }
  if (!layer.experts()) return {tensor.name};
  std::string name = renamed(renamed(tensor.name, {{"mlp.", "block_sparse_moe."}}),
                             {{"shared_expert.", "shared_experts."}});
  if (tensor.expert >= 0)
    name = renamed(name, {{"gate_proj", "w1"}, {"up_proj", "w3"}, {"down_proj", "w2"}});
  return {name};
}

// As transformers keeps it in memory.
StoredAt stored_otherwise(const DecoderSpec& spec, const TensorSpec& tensor) {
  using enum TensorRole;
  StoredAt at = stored(spec, tensor);
  const LayerSpec layer = tensor.layer < 0 ? LayerSpec{} : spec.layer(tensor.layer);
  // It saves dense networks, too, under the name of experts.
  at.tensor = layer.experts() ? renamed(at.tensor, {{"block_sparse_moe.", "mlp."}})
                              : renamed(at.tensor, {{".mlp.", ".block_sparse_moe."}});
  const ChannelDeltaSpec* delta = layer.find<ChannelDeltaSpec>();
  if (!delta) return at;
  const int64_t width = delta->width();
  const auto tap = [&](int64_t first) {
    const std::string name = fmt::format("model.layers.{}.self_attn.conv1d.weight", tensor.layer);
    return stored_tap(tensor, name, 3 * width, first, delta->taps);
  };
  if (tensor.role == conv_q) return tap(0);
  if (tensor.role == conv_k) return tap(width);
  if (tensor.role == conv_v) return tap(2 * width);
  for (const char* name : {"f_a_proj.", "f_b_proj.", "dt_bias", "A_log"})
    if (const size_t place = at.tensor.find(name); place != std::string::npos)
      at.tensor.insert(place, "forget_gate.");
  return at;
}

}  // namespace

extern const Family kKimiLinear{.name = "kimi_linear",
                                .architecture = "KimiLinearForCausalLM",
                                .has_states = true,
                                .read_sizes = read_sizes,
                                .read = read,
                                .write = write,
                                .stored = stored,
                                .stored_otherwise = stored_otherwise,
                                .shape = shape};

}  // namespace invar
