// Families with experts whose attention is that of a family without: Mixtral, OLMoE, Qwen2-MoE,
// Qwen3-MoE, GLM 4.5.
#include "model/families/experts.h"

#include <algorithm>

#include "base/error.h"

namespace invar {

int read_size(ConfigReader& reader, std::string_view key, int64_t high, int64_t fallback) {
  return static_cast<int>(reader.integer(key, 1, high, fallback));
}

void read_usual_sizes(ConfigReader& reader, DecoderSpec& spec, const DecoderSpec& usual) {
  spec.hidden = read_size(reader, "hidden_size", kMaxWidth, usual.hidden);
  spec.layers = read_size(reader, "num_hidden_layers", kMaxLayers, usual.layers);
  spec.heads = read_size(reader, "num_attention_heads", kMaxHeads, usual.heads);
  spec.kv_heads = read_size(reader, "num_key_value_heads", kMaxHeads, usual.kv_heads);
  spec.head_dim = read_size(reader, "head_dim", kMaxWidth, usual.head_dim);
  spec.vocab = read_size(reader, "vocab_size", kMaxVocab, usual.vocab);
  spec.max_positions =
      read_size(reader, "max_position_embeddings", kMaxPositions, usual.max_positions);
}

Routing read_routing(ConfigReader& reader, std::string_view count_key, int count, int chosen) {
  const std::string_view of_training[] = {"router_aux_loss_coef",
                                          "output_router_logits",
                                          "router_jitter_noise",
                                          "aux_loss_alpha",
                                          "seq_aux",
                                          "ep_size"};
  reader.ignore(of_training);
  // Another library's name for the same.
  count = read_size(reader, "num_local_experts", Routing::kMaxExperts, count);
  return {.experts = read_size(reader, count_key, Routing::kMaxExperts, count),
          .chosen = read_size(reader, "num_experts_per_tok", Routing::kMaxChosen, chosen)};
}

Routing read_sigmoid_routing(ConfigReader& reader, int count, int chosen) {
  Routing how = read_routing(reader, "n_routed_experts", count, chosen);
  how.score = ExpertScore::sigmoid;
  how.groups = read_size(reader, "n_group", how.experts, 1);
  how.chosen_groups = read_size(reader, "topk_group", how.groups, 1);
  how.pair_score = how.groups > 1;
  how.renormalised = reader.boolean("norm_topk_prob", true);
  if (how.renormalised) how.epsilon = 1e-20f;
  how.scale = static_cast<float>(reader.number("routed_scaling_factor", 1e-6, 1e6, 1));
  return how;
}

StoredAt stacked_at(const DecoderSpec& spec, const TensorSpec& tensor, std::string gate_up,
                    std::string down) {
  const bool is_down = tensor.role == TensorRole::expert_down;
  const int64_t rows = tensor.shape[0], stacked = is_down ? rows : 2 * rows;
  const int64_t first = tensor.expert * stacked + (tensor.role == TensorRole::expert_up ? rows : 0);
  return {.tensor = is_down ? std::move(down) : std::move(gate_up),
          .row = [first](int64_t row) { return first + row; },
          .shape = {spec.layer(tensor.layer).experts()->routing.experts, stacked, tensor.shape[1]}};
}

StoredAt turned_stack_at(const DecoderSpec& spec, const TensorSpec& tensor,
                         const std::string& module) {
  const bool is_down = tensor.role == TensorRole::expert_down;
  const int64_t rows = tensor.shape[0], inputs = tensor.shape[1], first = tensor.expert * inputs;
  return {.tensor = module + (is_down ? "down_proj" : "gate_up_proj"),
          .row = [first](int64_t) { return first; },
          .shape = {spec.layer(tensor.layer).experts()->routing.experts, inputs,
                    is_down ? rows : 2 * rows},
          .is_transposed = true,
          .column = tensor.role == TensorRole::expert_up ? rows : 0};
}

void write_grouped_experts(const ExpertsSpec& experts, json::Value& config) {
  const Routing& how = experts.routing;
  config.set("n_routed_experts", how.experts);
  config.set("num_experts_per_tok", how.chosen);
  config.set("n_group", how.groups);
  config.set("topk_group", how.chosen_groups);
  config.set("norm_topk_prob", how.renormalised);
  config.set("routed_scaling_factor", json::shortest(how.scale));
  config.set("moe_intermediate_size", experts.width);
}

const ExpertsSpec& experts_of(const DecoderSpec& spec) {
  static const ExpertsSpec none;
  const ExpertsSpec* first = spec.first<ExpertsSpec>();
  return first ? *first : none;
}

namespace {

constexpr auto in_all = [](int) { return true; };

}  // namespace

void imply_experts(DecoderSpec& spec, const Routing& like) {
  const DenseFfnSpec* dense = spec.first<DenseFfnSpec>();
  if (spec.first<ExpertsSpec>() || !dense) return;
  ExpertsSpec experts{.routing = like, .width = dense->width};
  experts.routing.experts = 8;
  experts.routing.chosen = 2;
  set_experts(spec, experts, in_all);
}

namespace {

// ---- Qwen

// Layers that are listed, and all but every `decoder_sparse_step`-th, are dense.
void read_qwen(ConfigReader& reader, DecoderSpec& spec, ExpertsSpec experts) {
  const int width = read_size(reader, "intermediate_size", kMaxWidth, 1);
  const int64_t step = reader.integer("decoder_sparse_step", 1, kMaxLayers, 1);
  std::vector<bool> is_dense(static_cast<size_t>(spec.layers));
  for (size_t i = 0; i < is_dense.size(); ++i)
    is_dense[i] = (static_cast<int64_t>(i) + 1) % step != 0;
  if (const json::Value* listed = reader.take("mlp_only_layers")) {
    for (const json::Value& layer :
         listed->is_array() ? listed->as_array() : json::Array{*listed}) {
      const auto number = layer.to_integer();
      if (!number || *number < 0 || *number >= spec.layers)
        fail("{}: \"mlp_only_layers\": expected numbers of layers below {}, found {}",
             reader.where(), spec.layers, json::excerpt(layer));
      is_dense[static_cast<size_t>(*number)] = true;
    }
  }
  experts.routing.renormalised = reader.boolean("norm_topk_prob", experts.routing.renormalised);
  change_layers(spec, [&](LayerSpec& layer) { layer.put(DenseFfnSpec{.width = width}); });
  set_experts(spec, experts, [&](int i) { return !is_dense[static_cast<size_t>(i)]; });
}

void write_qwen(const DecoderSpec& spec, json::Value& config) {
  const ExpertsSpec& experts = experts_of(spec);
  json::Array dense;
  for (int i = 0; i < spec.layers; ++i)
    if (!spec.layer(i).experts()) dense.emplace_back(i);
  config.set("num_experts", experts.routing.experts);
  config.set("num_experts_per_tok", experts.routing.chosen);
  config.set("moe_intermediate_size", experts.width);
  config.set("norm_topk_prob", experts.routing.renormalised);
  config.set("decoder_sparse_step", 1);
  config.set("mlp_only_layers", std::move(dense));
}

void read_qwen3(ConfigReader& reader, DecoderSpec& spec) {
  ExpertsSpec experts{.routing = read_routing(reader, "num_experts", 128, 8)};
  experts.width = read_size(reader, "moe_intermediate_size", kMaxWidth, 768);
  read_qwen(reader, spec, experts);
}

}  // namespace

void read_gated_experts(ConfigReader& reader, DecoderSpec& spec, ExpertsSpec like) {
  const bool renormalised = like.routing.renormalised;
  like.routing = read_routing(reader, "num_experts", like.routing.experts, like.routing.chosen);
  like.routing.renormalised = renormalised;
  like.shared_gate = true;
  like.width = read_size(reader, "moe_intermediate_size", kMaxWidth, like.width);
  like.shared_width =
      read_size(reader, "shared_expert_intermediate_size", kMaxWidth, like.shared_width);
  read_qwen(reader, spec, like);
}

void write_gated_experts(const DecoderSpec& spec, json::Value& config) {
  write_qwen(spec, config);
  config.set("shared_expert_intermediate_size", experts_of(spec).shared_width);
}

void imply_gated_experts(DecoderSpec& spec, const Routing& like) {
  imply_experts(spec, like);
  change_layers(spec, [](LayerSpec& layer) {
    if (!layer.experts() || layer.experts()->shared_width > 0) return;
    layer.experts()->shared_width = layer.experts()->width;
    layer.experts()->shared_gate = true;
  });
}

namespace {

void read_qwen2(ConfigReader& reader, DecoderSpec& spec) {
  spec.qkv_bias = reader.boolean("qkv_bias", true);
  read_gated_experts(
      reader, spec, {.routing = {.experts = 60, .chosen = 4}, .width = 1408, .shared_width = 5632});
}

void write_qwen2(const DecoderSpec& spec, json::Value& config) {
  write_gated_experts(spec, config);
  config.set("qkv_bias", spec.qkv_bias);
}

// ---- Mixtral, OLMoE: every layer has experts, whose width is intermediate_size.

void read_plain(ConfigReader& reader, DecoderSpec& spec, ExpertsSpec experts) {
  experts.width = read_size(reader, "intermediate_size", kMaxWidth, 1);
  set_experts(spec, experts, in_all);
}

void read_mixtral(ConfigReader& reader, DecoderSpec& spec) {
  ExpertsSpec experts{.routing = read_routing(reader, "num_local_experts", 8, 2)};
  experts.routing.renormalised = true;
  read_plain(reader, spec, experts);
}

void write_mixtral(const DecoderSpec& spec, json::Value& config) {
  config.set("num_local_experts", experts_of(spec).routing.experts);
  config.set("num_experts_per_tok", experts_of(spec).routing.chosen);
}

StoredAt stored_mixtral(const DecoderSpec&, const TensorSpec& tensor) {
  return {renamed(renamed(tensor.name, {{"mlp.", "block_sparse_moe."}}),
                  {{"gate_proj", "w1"}, {"up_proj", "w3"}, {"down_proj", "w2"}})};
}

void read_olmoe(ConfigReader& reader, DecoderSpec& spec) {
  ExpertsSpec experts{.routing = read_routing(reader, "num_experts", 64, 8)};
  experts.routing.renormalised = reader.boolean("norm_topk_prob", false);
  check_neutral(reader, "clip_qkv", {});
  read_plain(reader, spec, experts);
}

void write_olmoe(const DecoderSpec& spec, json::Value& config) {
  config.set("num_experts", experts_of(spec).routing.experts);
  config.set("num_experts_per_tok", experts_of(spec).routing.chosen);
  config.set("norm_topk_prob", experts_of(spec).routing.renormalised);
}

void imply_olmoe(DecoderSpec& spec) {
  spec.joint_qk_norm = true;
  imply_experts(spec);
}

// ---- GLM 4.5: the first layers have no experts.

void read_glm(ConfigReader& reader, DecoderSpec& spec) {
  ExpertsSpec experts{.routing = read_sigmoid_routing(reader, 128, 8), .has_choice_bias = true};
  experts.width = read_size(reader, "moe_intermediate_size", kMaxWidth, 1408);
  experts.shared_width =
      experts.width * static_cast<int>(reader.integer("n_shared_experts", 0, 64, 1));
  const int64_t dense = reader.integer("first_k_dense_replace", 0, kMaxLayers, 1);
  const int width = read_size(reader, "intermediate_size", kMaxWidth, 1);
  change_layers(spec, [&](LayerSpec& layer) { layer.put(DenseFfnSpec{.width = width}); });
  set_experts(spec, experts, [&](int i) { return i >= dense; });
  spec.qkv_bias = reader.boolean("attention_bias", false);
  spec.qk_norm = reader.boolean("use_qk_norm", false);
}

void write_glm(const DecoderSpec& spec, json::Value& config) {
  const ExpertsSpec& experts = experts_of(spec);
  int dense = 0;
  while (dense < spec.layers && !spec.layer(dense).experts()) ++dense;
  write_grouped_experts(experts, config);
  config.set("n_shared_experts", experts.shared_width / experts.width);
  config.set("first_k_dense_replace", dense);
  config.set("attention_bias", spec.qkv_bias);
  config.set("use_qk_norm", spec.qk_norm);
}

StoredAt stored_glm(const DecoderSpec& spec, const TensorSpec& tensor) {
  using enum TensorRole;
  const bool turns = tensor.role == q || tensor.role == k || tensor.role == q_bias ||
                     tensor.role == k_bias || tensor.role == q_norm || tensor.role == k_norm;
  if (turns) return {tensor.name, rotation_rows(spec, false)};
  return {renamed(tensor.name, {{"shared_expert.", "shared_experts."}})};
}

void imply_glm(DecoderSpec& spec) {
  imply_experts(spec, {.score = ExpertScore::sigmoid, .renormalised = true, .epsilon = 1e-20f});
  change_layers(spec, [](LayerSpec& layer) {
    if (!layer.experts() || layer.experts()->has_choice_bias) return;
    layer.experts()->has_choice_bias = true;
    layer.experts()->shared_width = layer.experts()->width;
  });
}

// ---- The text of Qwen3-VL with experts, all of which stand in one tensor with inputs as rows,
// [experts][K][N], gates before ups.

void read_qwen3_vl(ConfigReader& reader, DecoderSpec& spec) {
  ExpertsSpec experts{.routing = read_routing(reader, "num_experts", 60, 4)};
  experts.routing.renormalised = true;
  experts.width = read_size(reader, "moe_intermediate_size", kMaxWidth, 1408);
  read_qwen(reader, spec, experts);
}

StoredAt stored_qwen3_vl(const DecoderSpec& spec, const TensorSpec& tensor) {
  if (tensor.expert < 0) return {tensor.name};
  return turned_stack_at(spec, tensor, fmt::format("model.layers.{}.mlp.experts.", tensor.layer));
}

}  // namespace

extern const Family kQwen3VlMoe{
    .name = "qwen3_vl_moe_text",
    .architecture = "Qwen3VLMoeTextModel",
    .qk_norm = true,
    .has_attention_bias = true,
    .has_image_positions = true,
    .read = read_qwen3_vl,
    .write = write_qwen,
    .stored_otherwise = stored_qwen3_vl,
    .imply = [](DecoderSpec& spec) { imply_experts(spec, {.renormalised = true}); }};

extern const Family kGlm4Moe{.name = "glm4_moe",
                             .architecture = "Glm4MoeForCausalLM",
                             .rotated_share = 0.5,
                             .has_rotated_share = true,
                             .module_reads_output = true,
                             .read = read_glm,
                             .write = write_glm,
                             .stored = stored_glm,
                             .imply = imply_glm};

extern const Family kQwen3Moe{
    .name = "qwen3_moe",
    .architecture = "Qwen3MoeForCausalLM",
    .qk_norm = true,
    .has_attention_bias = true,
    .windows = WindowRule::switched,
    .read = read_qwen3,
    .write = write_qwen,
    .imply = [](DecoderSpec& spec) { imply_experts(spec, {.renormalised = true}); }};

extern const Family kQwen2Moe{.name = "qwen2_moe",
                              .architecture = "Qwen2MoeForCausalLM",
                              .qkv_bias = true,
                              .windows = WindowRule::switched,
                              .read = read_qwen2,
                              .write = write_qwen2,
                              .imply = [](DecoderSpec& spec) { imply_gated_experts(spec); }};

extern const Family kMixtral{
    .name = "mixtral",
    .architecture = "MixtralForCausalLM",
    .windows = WindowRule::all_layers,
    .theta = 1e6,
    .read = read_mixtral,
    .write = write_mixtral,
    .stored = stored_mixtral,
    .imply = [](DecoderSpec& spec) { imply_experts(spec, {.renormalised = true}); }};

extern const Family kOlmoe{.name = "olmoe",
                           .architecture = "OlmoeForCausalLM",
                           .qk_norm = true,
                           .has_attention_bias = true,
                           .read = read_olmoe,
                           .write = write_olmoe,
                           .imply = imply_olmoe};

}  // namespace invar
