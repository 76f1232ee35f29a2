// DeepSeek-V2 and V3: latent attention; experts in groups behind some dense layers.
#include <cmath>

#include "base/error.h"
#include "model/families/hybrid.h"
#include "model/families/latent.h"
#include "numerics/math.h"

namespace invar {

StoredAt stored_latent(const DecoderSpec& spec, const TensorSpec& tensor, bool in_pairs) {
  using enum TensorRole;
  const LatentSpec l = *spec.layer(tensor.layer).attention()->latent;
  const std::string at = fmt::format("model.layers.{}.self_attn.", tensor.layer);
  const std::string query = at + (l.query_rank ? "q_b_proj.weight" : "q_proj.weight");
  const int64_t each = l.nope + l.rope, both = l.nope + l.value, half = l.rope / 2;
  const auto turning = [=](int64_t i) {
    if (!in_pairs) return i;
    return i < half ? 2 * i : 2 * (i - half) + 1;
  };
  switch (tensor.role) {
    case still_query:
      return {query, [=](int64_t row) { return row / l.nope * each + row % l.nope; }};
    case turning_query:
      return {query,
              [=](int64_t row) { return row / l.rope * each + l.nope + turning(row % l.rope); }};
    case latent_down:
      return {tensor.name,
              [=](int64_t row) { return row < l.rank ? row : l.rank + turning(row - l.rank); }};
    case key_up:
      return {.tensor = at + "kv_b_proj.weight",
              .row = [=, h = tensor.expert](int64_t row) { return h * both + row; },
              .shape = {spec.heads * both, l.rank},
              .is_transposed = true};
    case value_up:
      return {.tensor = at + "kv_b_proj.weight",
              .row = [=, h = tensor.expert](int64_t row) { return h * both + l.nope + row; },
              .shape = {spec.heads * both, l.rank}};
    case index_query:
    case index_key:
    case index_key_norm:
    case index_key_norm_bias:
      return {tensor.name, rotation_rows(l.indexer->size, l.rope / 2, l.indexer->is_interleaved)};
    default:
      return {tensor.name};
  }
}

namespace {

constexpr std::string_view kRopeKeys[] = {"rope_parameters", "rope_scaling"};

void read_sizes(ConfigReader& reader, DecoderSpec& spec) {
  const auto size = [&](std::string_view key, int64_t low, int64_t high) {
    return static_cast<int>(reader.integer(key, low, high));
  };
  spec.hidden = size("hidden_size", 1, kMaxWidth);
  spec.layers = size("num_hidden_layers", 1, kMaxLayers);
  spec.mtp_layers = static_cast<int>(reader.integer("num_nextn_predict_layers", 0, 1, 0));
  spec.heads = size("num_attention_heads", 1, kMaxHeads);
  spec.kv_heads = 1;  // the latent is all heads' key and value
  LatentSpec latent{.rank = size("kv_lora_rank", 32, kMaxHeadDim),
                    .rope = size("qk_rope_head_dim", 2, kMaxHeadDim),
                    .nope = size("qk_nope_head_dim", 1, kMaxWidth),
                    .value = size("v_head_dim", 1, kMaxWidth),
                    .query_rank = read_size(reader, "q_lora_rank", kMaxWidth, 0)};
  spec.head_dim = latent.rank + latent.rope;
  spec.vocab = size("vocab_size", 1, kMaxVocab);
  spec.max_positions = size("max_position_embeddings", 1, kMaxPositions);
  spec.norm_eps = static_cast<float>(reader.number("rms_norm_eps", 1e-20, 1, 1e-6));
  spec.set_layers({.parts = {AttentionSpec{.latent = latent},
                             DenseFfnSpec{.width = size("intermediate_size", 1, kMaxWidth)}}});
  const std::string_view implied[] = {"num_key_value_heads", "head_dim", "qk_head_dim"};
  reader.ignore(implied);
}

// The factor of scores: with yarn they grow with the length (mscale_all_dim).
double score_scale(const LatentSpec& latent, const RopeSpec& rope) {
  double m = 1;
  if (rope.scaling == RopeSpec::Scaling::yarn && latent.mscale > 0 && rope.factor > 1)
    m = 0.1 * latent.mscale * math::log(rope.factor) + 1;
  return m * m / std::sqrt(static_cast<double>(latent.nope + latent.rope));
}

void set_attention(ConfigReader& reader, DecoderSpec& spec) {
  double mscale = 0;
  for (const std::string_view key : kRopeKeys)
    if (const json::Value* rope = reader.take(key); rope && rope->is_object())
      if (const json::Value* m = rope->find("mscale_all_dim"); m && m->is_number())
        mscale = m->as_number();
  change_layers(spec, [&](LayerSpec& layer) {
    LatentSpec& latent = *layer.attention()->latent;
    latent.mscale = mscale;
    layer.attention()->rope->rotated = latent.rope;
    layer.attention()->score_scale = score_scale(latent, *layer.attention()->rope);
  });
  check_neutral(reader, "attention_bias", false);
}

// The experts' numbers that both have.
ExpertsSpec read_experts(ConfigReader& reader, const Routing& how) {
  ExpertsSpec experts{.routing = how};
  Routing& r = experts.routing;
  r.groups = read_size(reader, "n_group", r.experts, 1);
  r.chosen_groups = read_size(reader, "topk_group", r.groups, 1);
  r.scale = static_cast<float>(reader.number("routed_scaling_factor", 1e-6, 1e6, 1));
  experts.width = read_size(reader, "moe_intermediate_size", kMaxWidth, 1);
  experts.shared_width =
      experts.width * static_cast<int>(reader.integer("n_shared_experts", 0, 64, 0));
  check_neutral(reader, "moe_layer_freq", 1);
  return experts;
}

void set_layers(ConfigReader& reader, DecoderSpec& spec, const ExpertsSpec& experts) {
  const int64_t dense = reader.integer("first_k_dense_replace", 0, kMaxLayers, 0);
  const int width = read_size(reader, "intermediate_size", kMaxWidth, 1);
  change_layers(spec, [&](LayerSpec& layer) { layer.put(DenseFfnSpec{.width = width}); });
  set_experts(spec, experts, [&](int i) { return i >= dense; });
}

void read_v3(ConfigReader& reader, DecoderSpec& spec) {
  set_attention(reader, spec);
  Routing how = read_routing(reader, "n_routed_experts", 256, 8);
  how.score = ExpertScore::sigmoid;
  how.renormalised = reader.boolean("norm_topk_prob", true);
  if (how.renormalised) how.epsilon = 1e-20f;
  ExpertsSpec experts = read_experts(reader, how);
  experts.routing.pair_score = experts.routing.groups > 1;
  experts.has_choice_bias = true;
  check_neutral(reader, "scoring_func", "sigmoid");
  check_neutral(reader, "topk_method", "noaux_tc");
  check_neutral(reader, "rope_interleave", true);
  set_layers(reader, spec, experts);
}

// Groups count by their best expert, where experts stand in groups at all.
void read_v2(ConfigReader& reader, DecoderSpec& spec) {
  set_attention(reader, spec);
  ExpertsSpec experts = read_experts(reader, read_routing(reader, "n_routed_experts", 64, 6));
  const std::string method = reader.text("topk_method", "greedy");
  if (method == "greedy")
    experts.routing.groups = experts.routing.chosen_groups = 1;
  else if (method != "group_limited_greedy")
    fail("{}: \"topk_method\": expected greedy or group_limited_greedy, found {}", reader.where(),
         json::quoted(method));
  check_neutral(reader, "scoring_func", "softmax");
  check_neutral(reader, "norm_topk_prob", false);
  set_layers(reader, spec, experts);
}

void write_latent(const DecoderSpec& spec, json::Value& config) {
  const LatentSpec latent = *spec.first<AttentionSpec>()->latent;
  config.set("kv_lora_rank", latent.rank);
  config.set("q_lora_rank", latent.query_rank ? json::Value(latent.query_rank) : json::Value());
  config.set("qk_rope_head_dim", latent.rope);
  config.set("qk_nope_head_dim", latent.nope);
  config.set("v_head_dim", latent.value);
  config.set("rms_norm_eps", json::shortest(spec.norm_eps));
  if (const json::Value* rope = config.find("rope_scaling"); rope && rope->is_object()) {
    json::Value scaling = *rope;
    scaling.set("mscale_all_dim", latent.mscale);
    config.set("rope_scaling", std::move(scaling));
  }
}

void write_experts(const DecoderSpec& spec, json::Value& config) {
  write_latent(spec, config);
  const ExpertsSpec& experts = experts_of(spec);
  const Routing& how = experts.routing;
  int dense = 0, width = experts.width;
  while (dense < spec.layers && !spec.layer(dense).experts()) ++dense;
  if (dense > 0) width = spec.layer(0).ffn_width();
  config.set("intermediate_size", width);
  config.set("n_routed_experts", how.experts);
  config.set("num_experts_per_tok", how.chosen);
  config.set("n_group", how.groups);
  config.set("topk_group", how.chosen_groups);
  config.set("routed_scaling_factor", json::shortest(how.scale));
  config.set("moe_intermediate_size", experts.width);
  config.set("n_shared_experts", experts.width ? experts.shared_width / experts.width : 0);
  config.set("first_k_dense_replace", dense);
}

void write_v2(const DecoderSpec& spec, json::Value& config) {
  write_experts(spec, config);
  config.set("topk_method",
             experts_of(spec).routing.groups > 1 ? "group_limited_greedy" : "greedy");
}

void write_v3(const DecoderSpec& spec, json::Value& config) {
  write_experts(spec, config);
  config.set("norm_topk_prob", experts_of(spec).routing.renormalised);
}

// A latent attention of the same sizes, and experts, where a spec of another family becomes this.
void imply_latent(DecoderSpec& spec) {
  const bool is_new = !spec.layer_specs.empty() && !spec.layer(0).attention()->latent;
  if (!is_new) return;
  LatentSpec latent{.rank = 64, .rope = 16, .nope = 32, .value = 32, .query_rank = 96};
  spec.kv_heads = 1;
  spec.head_dim = latent.rank + latent.rope;
  change_layers(spec, [&](LayerSpec& layer) {
    layer.attention()->latent = latent;
    if (!layer.attention()->rope) layer.attention()->rope = RopeSpec{};
    layer.attention()->rope->rotated = latent.rope;
    layer.attention()->score_scale = score_scale(latent, *layer.attention()->rope);
  });
}

void imply_v2(DecoderSpec& spec) {
  imply_latent(spec);
  imply_experts(spec);
}

void imply_v3(DecoderSpec& spec) {
  imply_latent(spec);
  imply_experts(spec, {.score = ExpertScore::sigmoid, .renormalised = true, .epsilon = 1e-20f});
  change_layers(spec, [](LayerSpec& layer) {
    if (layer.experts()) layer.experts()->has_choice_bias = true;
  });
}

StoredAt stored(const DecoderSpec& spec, const TensorSpec& tensor) {
  if (tensor.layer < 0 || !spec.layer(tensor.layer).attention()->latent) return {tensor.name};
  StoredAt at = stored_latent(spec, tensor, /*in_pairs=*/true);
  at.tensor = renamed(at.tensor, {{"shared_expert.", "shared_experts."}});
  return at;
}

constexpr float kLatentEps = 1e-6f;  // of GLM 4.7, Kimi K2 and Mistral 4, whatever the model's is

void set_latent_eps(DecoderSpec& spec) {
  change_layers(spec, [](LayerSpec& layer) { layer.attention()->latent->norm_eps = kLatentEps; });
}

// ---- Mistral Small 4: a softmax over all experts, groups by their best two.

void read_mistral(ConfigReader& reader, DecoderSpec& spec) {
  set_attention(reader, spec);
  Routing how = read_routing(reader, "n_routed_experts", 128, 4);
  how.renormalised = reader.boolean("norm_topk_prob", true);
  if (how.renormalised) how.epsilon = 1e-20f;
  ExpertsSpec experts = read_experts(reader, how);
  experts.routing.pair_score = experts.routing.groups > 1;
  check_neutral(reader, "rope_interleave", true);
  set_layers(reader, spec, experts);
  set_latent_eps(spec);
  limit_positions(reader, spec);
}

void imply_mistral(DecoderSpec& spec) {
  imply_latent(spec);
  imply_experts(spec, {.renormalised = true, .epsilon = 1e-20f});
  set_latent_eps(spec);
}

// ---- GLM 4.7 Flash

void read_glm_lite(ConfigReader& reader, DecoderSpec& spec) {
  constexpr std::string_view kNetworks[] = {"dense", "sparse"};
  const std::vector<size_t> kinds = read_kinds(reader, "mlp_layer_types", spec.layers, kNetworks);
  read_v3(reader, spec);
  const ExpertsSpec experts = experts_of(spec);
  const DenseFfnSpec dense{.width = read_size(reader, "intermediate_size", kMaxWidth, 1)};
  for (int i = 0; i < spec.layers; ++i) {
    LayerSpec& layer = spec.layer_specs[static_cast<size_t>(i)];
    layer.attention()->latent->norm_eps = kLatentEps;
    if (kinds.empty()) continue;
    if (kinds[static_cast<size_t>(i)] == 1)
      layer.put(experts);
    else
      layer.put(dense);
  }
}

// ---- Kimi K2: V3, whose norms of latents have that eps where the model's is another one.

void read_kimi(ConfigReader& reader, DecoderSpec& spec) {
  read_v3(reader, spec);
  set_latent_eps(spec);
}

void imply_kimi(DecoderSpec& spec) {
  imply_v3(spec);
  set_latent_eps(spec);
}

}  // namespace

void read_latent_sizes(ConfigReader& reader, DecoderSpec& spec) {
  read_sizes(reader, spec);
}

void read_latent_experts(ConfigReader& reader, DecoderSpec& spec) {
  read_glm_lite(reader, spec);
}

void write_latent_experts(const DecoderSpec& spec, json::Value& config) {
  write_v3(spec, config);
}

StoredAt stored_latent_experts(const DecoderSpec& spec, const TensorSpec& tensor) {
  return stored(spec, tensor);
}

void imply_latent_experts(DecoderSpec& spec) {
  imply_kimi(spec);
}

extern const Family kMistral4{.name = "mistral4",
                              .architecture = "Mistral4ForCausalLM",
                              .read_sizes = read_sizes,
                              .read = read_mistral,
                              .write = write_v3,
                              .stored = stored,
                              .imply = imply_mistral};

extern const Family kGlm4MoeLite{.name = "glm4_moe_lite",
                                 .architecture = "Glm4MoeLiteForCausalLM",
                                 .module_reads_output = true,
                                 .read_sizes = read_sizes,
                                 .read = read_glm_lite,
                                 .write = write_v3,
                                 .stored = stored,
                                 .imply = imply_kimi};

// Kimi K2: DeepSeek-V3's class, as its config.json says.
extern const Family kKimiK2{.name = "kimi_k2",
                            .architecture = "DeepseekV3ForCausalLM",
                            .other_architecture = "DeepseekV3ForCausalLM",
                            .module_reads_output = true,
                            .read_sizes = read_sizes,
                            .read = read_kimi,
                            .write = write_v3,
                            .stored = stored,
                            .imply = imply_kimi};

extern const Family kDeepseekV2{.name = "deepseek_v2",
                                .architecture = "DeepseekV2ForCausalLM",
                                .read_sizes = read_sizes,
                                .read = read_v2,
                                .write = write_v2,
                                .stored = stored,
                                .imply = imply_v2};

extern const Family kDeepseekV3{.name = "deepseek_v3",
                                .architecture = "DeepseekV3ForCausalLM",
                                .module_reads_output = true,
                                .read_sizes = read_sizes,
                                .read = read_v3,
                                .write = write_v3,
                                .stored = stored,
                                .imply = imply_v3};

}  // namespace invar
