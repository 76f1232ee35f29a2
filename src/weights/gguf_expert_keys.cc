#include "weights/gguf_expert_keys.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "numerics/routing.h"

namespace invar {

namespace {

// Values of expert_gating_func.
constexpr int64_t kSoftmax = 1, kSigmoid = 2, kSoftmaxOfChosen = 3;

void check_size(const GgufKeys& in, std::string_view name, int64_t value, int64_t most) {
  if (value < 1 || value > most)
    fail("{}: {}: expected 1 to {}, found {}", in.file().path(), in.key(name), most, value);
}

// The routers of some layers say that the file holds as much as its numbers ask for, before
// anything is made of them.
void check_routers(const GgufKeys& in, int64_t experts, const std::vector<int64_t>& layers) {
  for (const int64_t layer : layers) {
    const std::string name = fmt::format("blk.{}.ffn_gate_inp.weight", layer);
    const GgufTensor* router = in.tensor(name);
    if (!router) fail("{}: tensor {} is missing", in.file().path(), json::quoted(name));
    if (router->shape[0] != experts)
      fail("{}: tensor {}: expected a row for each of {} experts, found {}", in.file().path(),
           json::quoted(name), experts, router->shape[0]);
  }
}

// In the layers from one on.
void add_counts(const GgufKeys& in, json::Value& config, const char* name, int64_t first = 0) {
  add_expert_counts(in, config, name, {first, in.integer("block_count") - 1});
}

// Adds experts that are as wide as a dense layer of the same model would be.
void add_plain(const GgufKeys& in, json::Value& config, const char* name, bool are_renormalised) {
  add_counts(in, config, name);
  in.ignore_if("expert_gating_func", kSoftmax);
  in.ignore_if("expert_weights_norm", are_renormalised);
  in.ignore_if("expert_feed_forward_length", *config.find("intermediate_size"));
}

// Qwen's layers all have experts in files. An expert's width follows from the dense one where no
// key says it.
void add_qwen(const GgufKeys& in, json::Value& config, bool are_renormalised) {
  add_counts(in, config, "num_experts");
  const int64_t dense = config.find("intermediate_size")->as_integer();
  config.set("moe_intermediate_size",
             in.find_integer("expert_feed_forward_length")
                 .value_or(dense / config.find("num_experts_per_tok")->as_integer()));
  config.set("norm_topk_prob", are_renormalised);
  in.ignore_if("expert_gating_func", kSoftmax);
  in.ignore_if("expert_weights_norm", are_renormalised);
}

// Groups of experts; a scale behind the choice.
void add_choice(const GgufKeys& in, json::Value& config) {
  const double scale = in.find_number("expert_weights_scale").value_or(0);
  config.set("routed_scaling_factor", scale == 0 ? 1 : scale);
  config.set("n_group", std::max<int64_t>(in.find_integer("expert_group_count").value_or(1), 1));
  config.set("topk_group",
             std::max<int64_t>(in.find_integer("expert_group_used_count").value_or(1), 1));
}

// Layers with experts behind some without.
void add_scaled(const GgufKeys& in, json::Value& config) {
  const int64_t dense = in.find_integer("leading_dense_block_count").value_or(0);
  add_counts(in, config, "n_routed_experts", dense);
  config.set("first_k_dense_replace", dense);
  config.set("moe_intermediate_size", in.integer("expert_feed_forward_length"));
  config.set("n_shared_experts", in.find_integer("expert_shared_count").value_or(0));
  add_choice(in, config);
}

// A flag that is false where nothing says so.
bool flag(const GgufKeys& in, std::string_view name) {
  const json::Value* found = in.find(name);
  if (found && !found->is_bool())
    fail("{}: {}: expected true or false, found {}", in.file().path(), in.key(name),
         json::excerpt(*found));
  return found && found->as_bool();
}

// Whether an expert is chosen by a sigmoid: as a key says, or by the bias that only such have.
bool has_sigmoids(const GgufKeys& in) {
  if (const auto function = in.find_integer("expert_gating_func"); function && *function != 0)
    return *function == kSigmoid;
  const int64_t first = in.find_integer("leading_dense_block_count").value_or(0);
  return in.tensor(fmt::format("blk.{}.exp_probs_b.bias", first));
}

// Scores grow with yarn's length by the same number by which turned elements would shrink, so that
// one number is both of config.json's. It is a decimal one there and an f32 in files.
void add_mscale(const GgufKeys& in, json::Value& config) {
  const json::Value* found = config.find("rope_scaling");
  if (!found || *found->find("rope_type") != json::Value("yarn")) {
    in.ignore("rope.scaling.yarn_log_multiplier");
    return;
  }
  json::Value scaling = *found;
  const double mscale = std::round(in.number("rope.scaling.yarn_log_multiplier") * 1e7) / 1e6;
  scaling.set("mscale", mscale);
  scaling.set("mscale_all_dim", mscale);
  config.set("rope_scaling", std::move(scaling));
}

void check_length(const GgufKeys& in, std::string_view name, int64_t expected) {
  if (const auto found = in.find_integer(name); found && *found != expected)
    fail("{}: {}: expected {}, found {}", in.file().path(), in.key(name), expected, *found);
}

// Attention to a latent. Older files have the lengths of a head where newer ones have the latent's,
// as of one key/value head.
void add_latents(const GgufKeys& in, json::Value& config) {
  const int64_t rank = in.integer("attention.kv_lora_rank");
  const int64_t turning = in.integer("rope.dimension_count");
  const bool is_new = in.find("attention.key_length_mla") != nullptr;
  const int64_t heads = config.find("num_attention_heads")->as_integer();
  const char* ending = is_new ? "_mla" : "";
  if (is_new) {
    check_length(in, "attention.key_length", rank + turning);
    check_length(in, "attention.value_length", rank);
  }
  check_length(in, "attention.head_count_kv", is_new ? 1 : heads);
  config.set("num_key_value_heads", heads);  // as others read it
  add_latent(in, config, ending);
}

}  // namespace

void add_expert_counts(const GgufKeys& in, json::Value& config, const char* name,
                       const std::vector<int64_t>& layers) {
  const int64_t experts = in.integer("expert_count"), chosen = in.integer("expert_used_count");
  check_size(in, "expert_count", experts, Routing::kMaxExperts);
  check_size(in, "expert_used_count", chosen, std::min<int64_t>(experts, Routing::kMaxChosen));
  check_routers(in, experts, layers);
  config.set(name, experts);
  config.set("num_experts_per_tok", chosen);
}

void add_latent(const GgufKeys& in, json::Value& config, std::string_view ending) {
  const auto query_rank = in.find_integer("attention.q_lora_rank");
  const int64_t turning = in.integer("rope.dimension_count");
  config.set("kv_lora_rank", in.integer("attention.kv_lora_rank"));
  config.set("q_lora_rank",
             query_rank && *query_rank > 0 ? json::Value(*query_rank) : json::Value());
  config.set("qk_rope_head_dim", turning);
  config.set("qk_nope_head_dim",
             in.integer(fmt::format("attention.key_length{}", ending)) - turning);
  config.set("v_head_dim", in.integer(fmt::format("attention.value_length{}", ending)));
}

void add_expert_weights(const GgufKeys& in, json::Value& config) {
  add_choice(in, config);
  config.set("norm_topk_prob", flag(in, "expert_weights_norm"));
}

void add_mixtral_experts(const GgufKeys& in, json::Value& config) {
  add_plain(in, config, "num_local_experts", true);
  config.set("sliding_window", json::Value());
}

void add_qwen2_experts(const GgufKeys& in, json::Value& config) {
  add_qwen(in, config, false);
  config.set("shared_expert_intermediate_size",
             in.find_integer("expert_shared_feed_forward_length")
                 .value_or(config.find("intermediate_size")->as_integer()));
  config.set("qkv_bias", in.tensor("blk.0.attn_q.bias") || in.tensor("blk.0.attn_qkv.bias"));
}

void add_qwen3_experts(const GgufKeys& in, json::Value& config) {
  add_qwen(in, config, true);
}

void add_olmoe_experts(const GgufKeys& in, json::Value& config) {
  add_plain(in, config, "num_experts", false);
  config.set("norm_topk_prob", false);
}

// A softmax over those that are chosen is one over all, made to sum to 1.
void add_granite_experts(const GgufKeys& in, json::Value& config) {
  add_plain(in, config, "num_local_experts", true);
}

void add_gpt_oss_experts(const GgufKeys& in, json::Value& config) {
  add_plain(in, config, "num_local_experts", true);
  in.ignore_if("expert_gating_func", kSoftmaxOfChosen);
}

void add_glm_experts(const GgufKeys& in, json::Value& config) {
  add_scaled(in, config);
  config.set("norm_topk_prob", flag(in, "expert_weights_norm"));
  config.set("attention_bias", in.tensor("blk.0.attn_q.bias") || in.tensor("blk.0.attn_qkv.bias"));
  config.set("use_qk_norm", in.tensor("blk.0.attn_q_norm.weight") != nullptr);
  in.ignore_if("expert_gating_func", 0);
  in.ignore_if("expert_gating_func", kSigmoid);
}

void add_deepseek(const GgufKeys& in, json::Value& config) {
  add_scaled(in, config);
  const bool is_v3 = has_sigmoids(in);
  if (is_v3)
    config.set("norm_topk_prob", flag(in, "expert_weights_norm"));
  else
    config.set("topk_method",
               config.find("n_group")->as_integer() > 1 ? "group_limited_greedy" : "greedy");
  if (!is_v3) in.ignore_if("expert_weights_norm", false);
  add_latents(in, config);
  add_mscale(in, config);
}

bool gguf_is_second(const GgufKeys& in) {
  const auto experts = in.file().find(in.key("expert_count"));
  if (in.key("") != "deepseek2.") return experts && *experts != json::Value(0);
  return !has_sigmoids(in);
}

}  // namespace invar
