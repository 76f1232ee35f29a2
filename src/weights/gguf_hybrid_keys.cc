#include "weights/gguf_hybrid_keys.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "weights/gguf_expert_keys.h"

namespace invar {

namespace {

constexpr std::string_view kKeyHeads = "attention.head_count_kv";
constexpr int64_t kSigmoid = 2;  // of expert_gating_func

// The key under another name.
void rename(json::Value& config, std::string_view from, std::string_view to) {
  for (json::Member& member : config.as_object())
    if (member.first == from) member.first = to;
}

// A name for each layer: `with` where the number is above 0, else `without`.
json::Array kinds_of(const std::vector<int64_t>& numbers, const char* with, const char* without) {
  json::Array kinds;
  for (const int64_t number : numbers) kinds.emplace_back(number > 0 ? with : without);
  return kinds;
}

// The number of a layer without attention.
std::optional<size_t> first_without(const std::vector<int64_t>& key_heads) {
  const auto found = std::ranges::find(key_heads, 0);
  if (found == key_heads.end()) return std::nullopt;
  return static_cast<size_t>(found - key_heads.begin());
}

bool has_conv_bias(const GgufKeys& in, const std::vector<int64_t>& key_heads) {
  for (size_t i = 0; i < key_heads.size(); ++i)
    if (in.tensor(fmt::format("blk.{}.ssm_conv1d.bias", i))) return true;
  return false;
}

int64_t head_size(const GgufKeys& in) {
  const int64_t heads = in.integer("ssm.time_step_rank"), width = in.integer("ssm.inner_size");
  if (heads < 1 || width % heads)
    fail("{}: {}: expected a number that divides {}, found {}", in.file().path(),
         in.key("ssm.time_step_rank"), width, heads);
  return width / heads;
}

}  // namespace

int64_t largest_of_layers(const GgufKeys& in, std::string_view name) {
  return std::ranges::max(in.integers(name));
}

void add_lfm2(const GgufKeys& in, json::Value& config) {
  rename(config, "rms_norm_eps", "norm_eps");
  config.set("layer_types", kinds_of(in.integers(kKeyHeads), "full_attention", "conv"));
  config.set("conv_L_cache", in.integer("shortconv.l_cache"));
  config.set("block_auto_adjust_ff_dim", false);
}

void add_lfm2_experts(const GgufKeys& in, json::Value& config) {
  add_lfm2(in, config);
  std::erase_if(config.as_object(), [](const json::Member& member) {
    return member.first == "block_auto_adjust_ff_dim";
  });
  const int64_t dense = in.find_integer("leading_dense_block_count").value_or(0);
  add_expert_counts(in, config, "num_experts", {dense, in.integer("block_count") - 1});
  config.set("num_dense_layers", dense);
  config.set("moe_intermediate_size", in.integer("expert_feed_forward_length"));
  config.set("use_expert_bias",
             in.tensor(fmt::format("blk.{}.exp_probs_b.bias", dense)) != nullptr);
  config.set("norm_topk_prob", true);
  in.ignore_if("expert_gating_func", kSigmoid);
  in.ignore_if("expert_weights_norm", true);
}

void add_granite_states(const GgufKeys& in, json::Value& config) {
  const std::vector<int64_t> key_heads = in.integers(kKeyHeads);
  config.set("layer_types", kinds_of(key_heads, "attention", "mamba"));
  config.set(
      "position_embedding_type",
      in.find("rope.scaling.finetuned") && *in.find("rope.scaling.finetuned") == json::Value(true)
          ? "rope"
          : "nope");
  if (in.find_integer("expert_count").value_or(0) > 0)
    add_granite_experts(in, config);
  else
    config.set("num_local_experts", 0);
  config.set("shared_intermediate_size",
             in.find_integer("expert_shared_feed_forward_length")
                 .value_or(config.find("intermediate_size")->as_integer()));
  if (!first_without(key_heads)) return;
  config.set("mamba_n_groups", in.integer("ssm.group_count"));
  config.set("mamba_n_heads", in.integer("ssm.time_step_rank"));
  config.set("mamba_d_head", head_size(in));
  config.set("mamba_d_state", in.integer("ssm.state_size"));
  config.set("mamba_d_conv", in.integer("ssm.conv_kernel"));
  config.set("mamba_conv_bias", has_conv_bias(in, key_heads));
  config.set("mamba_expand", static_cast<double>(in.integer("ssm.inner_size")) /
                                 static_cast<double>(in.integer("embedding_length")));
}

namespace {

// A layer is one part: attention, a network of the kind that the architecture has, or a state
// space.
void add_nemotron_layers(const GgufKeys& in, json::Value& config, const char* network) {
  const std::vector<int64_t> key_heads = in.integers(kKeyHeads);
  const std::vector<int64_t> widths = in.integers("feed_forward_length");
  json::Array kinds;
  for (size_t i = 0; i < key_heads.size(); ++i)
    kinds.emplace_back(key_heads[i] > 0 ? "attention" : widths[i] > 0 ? network : "mamba");
  config.set("layers_block_type", std::move(kinds));
  config.set("layer_norm_epsilon", *config.find("rms_norm_eps"));
  config.set("n_groups", in.integer("ssm.group_count"));
  config.set("mamba_num_heads", in.integer("ssm.time_step_rank"));
  config.set("mamba_head_dim", head_size(in));
  config.set("ssm_state_size", in.integer("ssm.state_size"));
  config.set("conv_kernel", in.integer("ssm.conv_kernel"));
  config.set("use_conv_bias", has_conv_bias(in, key_heads));
}

}  // namespace

void add_nemotron(const GgufKeys& in, json::Value& config) {
  add_nemotron_layers(in, config, "mlp");
}

void add_nemotron_experts(const GgufKeys& in, json::Value& config) {
  add_nemotron_layers(in, config, "moe");
  const std::vector<int64_t> widths = in.integers("feed_forward_length");
  std::vector<int64_t> layers;
  for (size_t i = 0; i < widths.size(); ++i)
    if (widths[i] > 0) layers.push_back(static_cast<int64_t>(i));
  add_expert_counts(in, config, "n_routed_experts", layers);
  config.set("moe_intermediate_size", in.integer("expert_feed_forward_length"));
  config.set("moe_shared_expert_intermediate_size",
             in.integer("expert_shared_feed_forward_length"));
  config.set("n_shared_experts", in.find_integer("expert_shared_count").value_or(0));
  add_expert_weights(in, config);
  in.ignore_if("expert_gating_func", kSigmoid);
}

namespace {

void add_delta_states(const GgufKeys& in, json::Value& config) {
  config.set("full_attention_interval", in.find_integer("full_attention_interval").value_or(4));
  config.set("linear_num_key_heads", in.integer("ssm.group_count"));
  config.set("linear_num_value_heads", in.integer("ssm.time_step_rank"));
  config.set("linear_key_head_dim", in.integer("ssm.state_size"));
  config.set("linear_value_head_dim", head_size(in));
  config.set("linear_conv_kernel_dim", in.integer("ssm.conv_kernel"));
}

constexpr const char* kSections = "rope.dimension_sections";

// How many pairs turn by each of a picture's positions, in turn. A text's positions are all the
// same, so that they say nothing of it where every pair has one.
void check_sections(const GgufKeys& in) {
  const json::Value* found = in.find(kSections);
  if (!found) return;
  const int64_t pairs = in.integer("rope.dimension_count") / 2;
  // Pair p turns by position p modulo 3 where that has more than p / 3 pairs.
  const auto has_its_pairs = [&](int64_t position) {
    const json::Array& numbers = found->as_array();
    const size_t of = static_cast<size_t>(position);
    return of < numbers.size() && numbers[of].is_integer() &&
           numbers[of].as_integer() >= (pairs - position + 2) / 3;
  };
  for (int64_t position = 0; position < 3; ++position)
    if (!found->is_array() || !has_its_pairs(position))
      fail("{}: {}: expected the numbers of {} pairs that turn, found {}", in.file().path(),
           in.key(kSections), pairs, json::excerpt(*found));
}

}  // namespace

void add_qwen3_next(const GgufKeys& in, json::Value& config) {
  add_qwen3_experts(in, config);
  config.set("shared_expert_intermediate_size",
             in.find_integer("expert_shared_feed_forward_length")
                 .value_or(config.find("intermediate_size")->as_integer()));
  add_delta_states(in, config);
}

void add_qwen3_5(const GgufKeys& in, json::Value& config) {
  add_delta_states(in, config);
  check_sections(in);
}

void add_qwen3_5_experts(const GgufKeys& in, json::Value& config) {
  add_qwen3_next(in, config);
  check_sections(in);
}

double folded(const GgufKeys& in, const char* name) {
  const double by = in.find_number(name).value_or(1);
  if (!(by >= 1e-6 && by <= 1e6))
    fail("{}: {}: expected a number from 1e-6 to 1e6, found {}", in.file().path(), in.key(name),
         by);
  return by;
}

// Files hold matrices times the family's multipliers. Those that are written here say what the
// embedding and the head were multiplied by.
void add_falcon(const GgufKeys& in, json::Value& config) {
  config.set("attention_bias", in.tensor("blk.0.attn_q.bias") != nullptr);
  config.set("mlp_bias", in.tensor("blk.0.ffn_gate.bias") != nullptr);
  config.set("rope_theta", json::shortest(static_cast<float>(in.number("rope.freq_base"))));
  config.set("mamba_n_groups", in.integer("ssm.group_count"));
  config.set("mamba_n_heads", in.integer("ssm.time_step_rank"));
  config.set("mamba_d_head", head_size(in));
  config.set("mamba_d_ssm", in.integer("ssm.inner_size"));
  config.set("mamba_d_state", in.integer("ssm.state_size"));
  config.set("mamba_d_conv", in.integer("ssm.conv_kernel"));
  config.set("mamba_conv_bias", in.tensor("blk.0.ssm_conv1d.bias") != nullptr);
  config.set("mamba_rms_norm", in.tensor("blk.0.ssm_norm.weight") != nullptr);
  config.set("mamba_norm_before_gate", false);
  config.set("embedding_multiplier", folded(in, kFoldedEmbeddingScale));
  config.set("lm_head_multiplier", 1 / folded(in, kFoldedLogitsDivisor));
}

// Keys of a head have the latent's length in files. Their length of values may be anything.
void add_kimi(const GgufKeys& in, json::Value& config) {
  const std::vector<int64_t> key_heads = in.integers(kKeyHeads);
  config.set("layer_types", kinds_of(key_heads, "full_attention", "linear_attention"));
  config.set("linear_num_heads", in.integer("attention.head_count"));
  config.set("linear_head_dim", in.integer("kda.head_dim"));
  config.set("linear_conv_kernel_dim", in.integer("ssm.conv_kernel"));
  add_latent(in, config, "_mla");
  in.ignore("attention.key_length");
  in.ignore("attention.value_length");
  const int64_t dense = in.find_integer("leading_dense_block_count").value_or(0);
  add_expert_counts(in, config, "num_experts", {dense, in.integer("block_count") - 1});
  config.set("first_k_dense_replace", dense);
  config.set("moe_intermediate_size", in.integer("expert_feed_forward_length"));
  config.set("num_shared_experts", in.integer("expert_shared_count"));
  add_expert_weights(in, config);
  config.set("norm_topk_prob", true);  // whatever a file says
  in.ignore_if("expert_gating_func", kSigmoid);
}

// ---- Back

namespace {

using Number = GgufKey::Number;

class HybridKeys {
 public:
  HybridKeys(const json::Value& config, const std::string& name, std::vector<GgufKey>& keys)
      : config_(config), name_(name), keys_(keys) {}

  int64_t size(const char* key) const { return config_.find(key)->as_integer(); }
  void add(const std::string& key, json::Value value) {
    leave_out(key);
    keys_.push_back({name_ + "." + key, std::move(value)});
  }
  void leave_out(const std::string& key) {
    std::erase_if(keys_, [&](const GgufKey& other) { return other.name == name_ + "." + key; });
  }
  // The numbers of layers whose kind is among `kinds`; the others' are 0.
  json::Array of_layers(const char* list, std::initializer_list<std::string_view> kinds,
                        int64_t number) const {
    json::Array numbers;
    for (const json::Value& kind : config_.find(list)->as_array())
      numbers.emplace_back(
          std::ranges::find(kinds, std::string_view(kind.as_string())) != kinds.end() ? number : 0);
    return numbers;
  }
  // Where the three positions of pictures turn the elements of a head in turn.
  void add_sections() {
    const std::string turning = name_ + ".rope.dimension_count";
    const auto found = std::ranges::find(keys_, turning, &GgufKey::name);
    const int64_t pairs = found->value.as_integer() / 2;
    add(kSections, json::Array{(pairs + 2) / 3, (pairs + 1) / 3, pairs / 3, 0});
  }
  void add_state_space(const char* groups, const char* heads, int64_t head_size, const char* state,
                       const char* taps) {
    add("ssm.group_count", size(groups));
    add("ssm.time_step_rank", size(heads));
    add("ssm.inner_size", size(heads) * head_size);
    add("ssm.state_size", size(state));
    add("ssm.conv_kernel", size(taps));
  }

 private:
  const json::Value& config_;
  const std::string& name_;
  std::vector<GgufKey>& keys_;
};

void add_nemotron_keys(const json::Value& config, HybridKeys& keys) {
  constexpr const char* kLayers = "layers_block_type";
  const bool has_experts = config.find("n_routed_experts") != nullptr;
  const char* width = has_experts ? "moe_intermediate_size" : "intermediate_size";
  const json::Value* found = config.find(width);
  keys.add(std::string(kKeyHeads),
           keys.of_layers(kLayers, {"attention"}, keys.size("num_key_value_heads")));
  keys.add("feed_forward_length",
           keys.of_layers(kLayers, {has_experts ? "moe" : "mlp"}, found ? found->as_integer() : 0));
  if (config.find("mamba_num_heads"))
    keys.add_state_space("n_groups", "mamba_num_heads", keys.size("mamba_head_dim"),
                         "ssm_state_size", "conv_kernel");
  if (has_experts)
    keys.add("expert_shared_feed_forward_length",
             config.find("moe_shared_expert_intermediate_size")
                 ? keys.size("moe_shared_expert_intermediate_size")
                 : 0);
}

void add_kimi_keys(const json::Value& config, HybridKeys& keys) {
  keys.add(std::string(kKeyHeads), keys.of_layers("layer_types", {"full_attention"}, 1));
  if (config.find("linear_head_dim")) {
    keys.add("kda.head_dim", keys.size("linear_head_dim"));
    keys.add("ssm.conv_kernel", keys.size("linear_conv_kernel_dim"));
  }
  if (!config.find("num_experts")) return;
  keys.add("expert_used_count", keys.size("num_experts_per_token"));
  keys.add("expert_shared_count", keys.size("num_shared_experts"));
  keys.add("expert_group_count", keys.size("num_expert_group"));
  keys.add("expert_gating_func", kSigmoid);
  keys.add("expert_weights_norm", *config.find("moe_renormalize"));
}

}  // namespace

void add_hybrid_keys(const json::Value& config, const std::string& name,
                     std::vector<GgufKey>& keys) {
  const std::string& type = config.find("model_type")->as_string();
  HybridKeys hybrid(config, name, keys);
  const auto kv = [&](const char* list, std::string_view kind) {
    return hybrid.of_layers(list, {kind}, hybrid.size("num_key_value_heads"));
  };
  if (type == "lfm2" || type == "lfm2_moe") {
    hybrid.add(std::string(kKeyHeads), kv("layer_types", "full_attention"));
    if (config.find("conv_L_cache")) hybrid.add("shortconv.l_cache", hybrid.size("conv_L_cache"));
    if (type == "lfm2_moe") {
      hybrid.add("leading_dense_block_count", hybrid.size("num_dense_layers"));
      hybrid.add("expert_gating_func", kSigmoid);
    }
  } else if (type == "granitemoehybrid") {
    hybrid.add(std::string(kKeyHeads), kv("layer_types", "attention"));
    hybrid.add("rope.scaling.finetuned",
               *config.find("position_embedding_type") == json::Value("rope"));
    hybrid.add("expert_shared_feed_forward_length", hybrid.size("shared_intermediate_size"));
    if (config.find("mamba_n_heads"))
      hybrid.add_state_space("mamba_n_groups", "mamba_n_heads", hybrid.size("mamba_d_head"),
                             "mamba_d_state", "mamba_d_conv");
  } else if (type == "nemotron_h") {
    add_nemotron_keys(config, hybrid);
  } else if (type == "falcon_h1") {
    hybrid.leave_out("embedding_scale");  // it is in the embedding
    hybrid.add_state_space("mamba_n_groups", "mamba_n_heads", hybrid.size("mamba_d_head"),
                           "mamba_d_state", "mamba_d_conv");
  } else if (type == "kimi_linear") {
    add_kimi_keys(config, hybrid);
  } else if (type == "qwen3_next" || type.starts_with("qwen3_5")) {
    hybrid.add("full_attention_interval", 4);
    if (type != "qwen3_next") hybrid.add_sections();
    if (config.find("linear_num_value_heads"))
      hybrid.add_state_space("linear_num_key_heads", "linear_num_value_heads",
                             hybrid.size("linear_value_head_dim"), "linear_key_head_dim",
                             "linear_conv_kernel_dim");
  }
}

}  // namespace invar
