#include "weights/gguf_gemma_keys.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "weights/gguf_expert_keys.h"

namespace invar {

namespace {

constexpr const char* kFactors = "rope_freqs.weight";
constexpr float kStill = 1e30f;  // as a file has it where a pair does not turn

std::vector<bool> read_full_layers(const json::Value& config) {
  std::vector<bool> is_full;
  for (const json::Value& type : config.find("layer_types")->as_array())
    is_full.push_back(type == json::Value("full_attention"));
  return is_full;
}

// The one number that a list has for the layers of a kind; `otherwise` where there is none.
int64_t number_of(const GgufKeys& in, std::string_view name, const std::vector<bool>& is_full,
                  bool kind, int64_t otherwise) {
  const std::vector<int64_t> numbers = in.integers(name);
  std::optional<int64_t> found;
  for (size_t i = 0; i < std::min(numbers.size(), is_full.size()); ++i) {
    if (is_full[i] != kind) continue;
    if (found && *found != numbers[i])
      fail("{}: {}: expected one number for all layers {} a window, found {} and {}",
           in.file().path(), in.key(name), kind ? "without" : "with", *found, numbers[i]);
    found = numbers[i];
  }
  return found.value_or(otherwise);
}

int64_t head_size(const GgufKeys& in, const std::string& ending) {
  const int64_t keys = in.integer("attention.key_length" + ending);
  const int64_t values = in.find_integer("attention.value_length" + ending).value_or(keys);
  if (keys != values)
    fail("{}: expected keys as long as values, found {} and {}", in.file().path(), keys, values);
  const int64_t turning = in.find_integer("rope.dimension_count" + ending).value_or(keys);
  if (turning != keys)
    fail("{}: {}: expected the {} elements of a head, found {}", in.file().path(),
         in.key("rope.dimension_count" + ending), keys, turning);
  return keys;
}

// The share of a head that turns in layers without a window, halfway between two numbers of pairs.
double read_turning_share(const GgufKeys& in, int64_t head_dim) {
  const auto source = open_gguf_tensors(std::make_shared<GgufFile>(in.file().path()));
  if (!source->has(kFactors))
    fail("{}: the tensor {} is missing", in.file().path(), json::quoted(kFactors));
  const int64_t pairs = source->info(kFactors).elements();
  if (pairs != head_dim / 2)
    fail("{}: expected {} factors, found {}", source->where(kFactors), head_dim / 2, pairs);
  std::vector<float> factors(static_cast<size_t>(pairs));
  source->read(kFactors, 0, pairs, DType::f32, factors.data());
  const int64_t turning =
      std::ranges::find_if(factors, [](float f) { return f != 1; }) - factors.begin();
  const auto is_still = [](float f) { return f >= kStill; };
  const auto other = std::find_if_not(factors.begin() + turning, factors.end(), is_still);
  if (other != factors.end())
    fail("{}: expected 1 and then numbers from 1e30 on, found {}", source->where(kFactors), *other);
  if (turning == 0) fail("{}: expected a pair that turns, found none", source->where(kFactors));
  return turning == pairs
             ? 1
             : (2 * static_cast<double>(turning) + 0.5) / static_cast<double>(head_dim);
}

void add_ropes(const GgufKeys& in, json::Value& config, int64_t full_size) {
  json::Object sliding{{"rope_type", "default"},
                       {"rope_theta", in.find_number("rope.freq_base_swa").value_or(1e4)}};
  json::Object full{{"rope_type", "proportional"},
                    {"rope_theta", in.find_number("rope.freq_base").value_or(1e6)},
                    {"partial_rotary_factor", read_turning_share(in, full_size)}};
  const bool has_windows = !config.find("sliding_window")->is_null();
  json::Value ropes = json::Object{{"full_attention", std::move(full)}};
  if (has_windows) ropes.set("sliding_attention", std::move(sliding));
  config.set("rope_parameters", std::move(ropes));
}

// Late layers share keys, and may be twice as wide as the others.
void add_sharing(const GgufKeys& in, json::Value& config, int64_t layers) {
  constexpr const char* kShared = "attention.shared_kv_layers";
  const int64_t shared = in.find_integer(kShared).value_or(0);
  if (shared < 0 || shared >= layers)
    fail("{}: {}: expected 0 to {}, found {}", in.file().path(), in.key(kShared), layers - 1,
         shared);
  const std::vector<int64_t> widths = in.integers("feed_forward_length");
  const int64_t width = widths.front();
  const bool is_wide = shared > 0 && widths.back() == 2 * width;
  for (int64_t i = 0; i < layers; ++i) {
    const int64_t expected = is_wide && i >= layers - shared ? 2 * width : width;
    if (widths[static_cast<size_t>(i)] != expected)
      fail("{}: {}: expected {} for layer {}, found {}", in.file().path(),
           in.key("feed_forward_length"), expected, i, widths[static_cast<size_t>(i)]);
  }
  config.set("intermediate_size", width);
  config.set("num_kv_shared_layers", shared);
  config.set("use_double_wide_mlp", is_wide);
}

// Whether layers without a window have no values of their own, as the first of them says.
bool are_keys_values(const GgufKeys& in, const std::vector<bool>& is_full) {
  const auto first = std::ranges::find(is_full, true) - is_full.begin();
  return first < std::ssize(is_full) && in.tensor(fmt::format("blk.{}.attn_k.weight", first)) &&
         !in.tensor(fmt::format("blk.{}.attn_v.weight", first));
}

void add_experts(const GgufKeys& in, json::Value& config) {
  const bool has_experts = in.find_integer("expert_count").value_or(0) > 0;
  config.set("enable_moe_block", has_experts);
  if (!has_experts) return in.ignore("expert_feed_forward_length");
  add_expert_counts(in, config, "num_experts", {0, in.integer("block_count") - 1});
  config.set("top_k_experts", *config.find("num_experts_per_tok"));
  std::erase_if(config.as_object(),
                [](const json::Member& member) { return member.first == "num_experts_per_tok"; });
  config.set("moe_intermediate_size", in.integer("expert_feed_forward_length"));
}

}  // namespace

void add_gemma4(const GgufKeys& in, json::Value& config) {
  const std::vector<bool> is_full = read_full_layers(config);
  const int64_t full_size = head_size(in, "");
  const bool has_windows = std::ranges::find(is_full, false) != is_full.end();
  const int64_t size =
      has_windows || in.find("attention.key_length_swa") ? head_size(in, "_swa") : full_size;
  constexpr const char* kHeads = "attention.head_count_kv";
  const int64_t full_heads = number_of(in, kHeads, is_full, true, 1);
  const json::Object full{{"head_dim", full_size}, {"num_key_value_heads", full_heads}};
  json::Value listed = json::Object{};
  for (size_t i = 0; i < is_full.size(); ++i)
    if (is_full[i]) listed.set(std::to_string(i), full);
  config.set("head_dim", size);
  config.set("num_key_value_heads", number_of(in, kHeads, is_full, false, full_heads));
  config.set("per_layer_config", std::move(listed));
  config.set("attention_k_eq_v", are_keys_values(in, is_full));
  add_ropes(in, config, full_size);
  add_sharing(in, config, std::ssize(is_full));
  config.set("hidden_size_per_layer_input",
             in.find_integer("embedding_length_per_layer_input").value_or(0));
  config.set("vocab_size_per_layer_input", *config.find("vocab_size"));
  if (const auto cap = in.find_number("final_logit_softcapping"))
    config.set("final_logit_softcapping", *cap);
  add_experts(in, config);
}

namespace {

using Number = GgufKey::Number;

// The first layer of a kind says its numbers.
struct Kinds {
  json::Array has_window, key_heads, widths;
  int64_t full_size = 0;
};

Kinds kinds_of(const json::Value& config) {
  const auto size = [&](const char* key) { return config.find(key)->as_integer(); };
  const json::Value& listed = *config.find("per_layer_config");
  const json::Array& types = config.find("layer_types")->as_array();
  const bool is_wide = *config.find("use_double_wide_mlp") == json::Value(true);
  const int64_t shared_from = std::ssize(types) - size("num_kv_shared_layers");
  Kinds kinds;
  for (int64_t i = 0; i < std::ssize(types); ++i) {
    const json::Value* own = listed.find(std::to_string(i));
    kinds.has_window.emplace_back(own == nullptr);
    kinds.key_heads.push_back(own ? *own->find("num_key_value_heads")
                                  : *config.find("num_key_value_heads"));
    kinds.widths.emplace_back(size("intermediate_size") * (is_wide && i >= shared_from ? 2 : 1));
    if (own) kinds.full_size = own->find("head_dim")->as_integer();
  }
  return kinds;
}

}  // namespace

void add_gemma4_keys(const json::Value& config, const std::string& name,
                     std::vector<GgufKey>& keys) {
  const auto add = [&](const std::string& key, json::Value value, Number number = Number::u32) {
    const std::string whole = name + "." + key;
    std::erase_if(keys, [&](const GgufKey& other) { return other.name == whole; });
    keys.push_back({whole, std::move(value), number});
  };
  Kinds kinds = kinds_of(config);
  for (const char* what :
       {"attention.key_length", "attention.value_length", "rope.dimension_count"}) {
    add(what, kinds.full_size);
    add(std::string(what) + "_swa", *config.find("head_dim"));
  }
  add("attention.sliding_window_pattern", std::move(kinds.has_window));
  add("attention.head_count_kv", std::move(kinds.key_heads));
  add("feed_forward_length", std::move(kinds.widths));
  add("attention.shared_kv_layers", *config.find("num_kv_shared_layers"));
  add("embedding_length_per_layer_input", *config.find("hidden_size_per_layer_input"));
  const json::Value& ropes = *config.find("rope_parameters");
  for (const auto& [kind, key] :
       {std::pair("full_attention", "rope.freq_base"), {"sliding_attention", "rope.freq_base_swa"}})
    if (const json::Value* rope = ropes.find(kind))
      add(key, *rope->find("rope_theta"), Number::f32);
  if (const json::Value* cap = config.find("final_logit_softcapping"); cap && !cap->is_null())
    add("final_logit_softcapping", *cap, Number::f32);
  if (const json::Value* chosen = config.find("top_k_experts")) add("expert_used_count", *chosen);
}

std::vector<float> gemma4_rope_factors(int head_dim, int rotated) {
  std::vector<float> factors(static_cast<size_t>(head_dim / 2), kStill);
  std::fill_n(factors.begin(), (rotated ? rotated : head_dim) / 2, 1.0f);
  return factors;
}

}  // namespace invar
