#include "weights/gguf_expert_keys.h"

#include <algorithm>

#include "base/error.h"
#include "numerics/routing.h"

namespace invar {

namespace {

// Of expert_gating_func.
constexpr int64_t kSoftmax = 1, kSoftmaxOfChosen = 3;

void check_size(const GgufKeys& in, std::string_view name, int64_t value, int64_t most) {
  if (value < 1 || value > most)
    fail("{}: {}: expected 1 to {}, found {}", in.file().path(), in.key(name), most, value);
}

// The routers of the first and of the last layer say that the file holds as much as its numbers ask
// for, before anything is made of them.
void check_routers(const GgufKeys& in, int64_t experts) {
  for (const int64_t layer : {int64_t{0}, in.integer("block_count") - 1}) {
    const std::string name = fmt::format("blk.{}.ffn_gate_inp.weight", layer);
    const GgufTensor* router = in.tensor(name);
    if (!router) fail("{}: tensor {} is missing", in.file().path(), json::quoted(name));
    if (router->shape[0] != experts)
      fail("{}: tensor {}: expected a row for each of {} experts, found {}", in.file().path(),
           json::quoted(name), experts, router->shape[0]);
  }
}

// How many there are and how many a token has, under the name that the family has for the former.
void add_counts(const GgufKeys& in, json::Value& config, const char* name) {
  const int64_t experts = in.integer("expert_count"), chosen = in.integer("expert_used_count");
  check_size(in, "expert_count", experts, Routing::kMaxExperts);
  check_size(in, "expert_used_count", chosen, std::min<int64_t>(experts, Routing::kMaxChosen));
  check_routers(in, experts);
  config.set(name, experts);
  config.set("num_experts_per_tok", chosen);
}

// Of experts that are as wide as a dense layer of the same model would be.
void add_plain(const GgufKeys& in, json::Value& config, const char* name, bool are_renormalised) {
  add_counts(in, config, name);
  in.ignore_if("expert_gating_func", kSoftmax);
  in.ignore_if("expert_weights_norm", are_renormalised);
  in.ignore_if("expert_feed_forward_length", *config.find("intermediate_size"));
}

// Qwen's layers all have experts in files. What an expert's width is where no key says so, too.
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

}  // namespace

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

}  // namespace invar
