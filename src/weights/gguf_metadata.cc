#include "weights/gguf_metadata.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "weights/gguf_gemma_keys.h"
#include "weights/gguf_hybrid_keys.h"
#include "weights/gguf_texts.h"

namespace invar {

namespace {

using Number = GgufKey::Number;

// As tokenizer.ggml.token_type numbers them.
constexpr int kNormal = 1, kControl = 3, kUserDefined = 4, kUnused = 5;
constexpr int64_t kMaxTokens = 1 << 22;

class TokenizerKeys {
 public:
  TokenizerKeys(const json::Value& tokenizer, int64_t vocabulary, const std::string& where)
      : tokenizer_(tokenizer), where_(where) {
    const json::Value* model = tokenizer.find("model");
    if (!model || !model->find("vocab") || !model->find("merges") ||
        *model->find("type") != json::Value("BPE"))
      fail("{}: expected a tokenizer of byte pairs (BPE), found {}", where,
           json::excerpt(model && model->find("type") ? *model->find("type") : json::Value()));
    add_tokens(model->find("vocab")->as_object(), vocabulary);
    add_merges(model->find("merges")->as_array());
  }

  std::vector<GgufKey> keys() && {
    return {{"tokenizer.ggml.model", "gpt2"},
            {"tokenizer.ggml.pre", pre_tokenizer()},
            {"tokenizer.ggml.tokens", std::move(tokens_)},
            {"tokenizer.ggml.token_type", std::move(types_), Number::i32},
            {"tokenizer.ggml.merges", std::move(merges_)},
            {"tokenizer.ggml.add_bos_token", adds_bos(tokenizer_.find("post_processor"))}};
  }

 private:
  void add_tokens(const json::Object& vocab, int64_t vocabulary) {
    if (vocabulary < 1 || vocabulary > kMaxTokens)
      fail("{}: expected a vocabulary of 1 to {} tokens, found {}", where_, kMaxTokens, vocabulary);
    for (int64_t i = 0; i < vocabulary; ++i) {
      tokens_.push_back(fmt::format("[PAD{}]", i));
      types_.push_back(kUnused);
    }
    for (const auto& [token, id] : vocab) set_token(id, token, kNormal);
    const json::Value* added = tokenizer_.find("added_tokens");
    if (!added) return;
    for (const json::Value& token : added->as_array()) {
      const json::Value *id = token.find("id"), *content = token.find("content");
      const json::Value* special = token.find("special");
      if (!id || !content) fail("{}: an added token without an id or its content", where_);
      set_token(*id, content->as_string(), special && special->as_bool() ? kControl : kUserDefined);
    }
  }
  void set_token(const json::Value& id, const std::string& token, int type) {
    const auto at = id.to_integer();
    if (!at || *at < 0 || *at >= std::ssize(tokens_))
      fail("{}: token {}: expected an id below {}, found {}", where_, json::quoted(token),
           tokens_.size(), json::excerpt(id));
    tokens_[static_cast<size_t>(*at)] = token;
    types_[static_cast<size_t>(*at)] = type;
  }

  // As "a b".
  void add_merges(const json::Array& merges) {
    for (const json::Value& merge : merges)
      merges_.push_back(merge.is_array() && merge.as_array().size() == 2
                            ? merge.as_array()[0].as_string() + " " +
                                  merge.as_array()[1].as_string()
                            : merge.as_string());
  }

  // The tokenizer's steps before the merges, as far as GGUF's names tell them apart.
  struct Steps {
    std::vector<std::string> patterns;
    bool splits_digits = false, has_gpt2_pattern = false, is_byte_level = false;
  };
  void take_step(const json::Value& step, Steps& steps) const {
    const json::Value* type = step.find("type");
    const std::string name = type && type->is_string() ? type->as_string() : "";
    if (name == "Sequence") {
      for (const json::Value& one : step.find("pretokenizers")->as_array()) take_step(one, steps);
    } else if (name == "Split" && step.find("pattern") && step.find("pattern")->find("Regex")) {
      steps.patterns.push_back(step.find("pattern")->find("Regex")->as_string());
    } else if (name == "Digits") {
      steps.splits_digits = true;
    } else if (name == "ByteLevel") {
      const json::Value* use_regex = step.find("use_regex");
      steps.is_byte_level = true;
      steps.has_gpt2_pattern = !use_regex || use_regex->as_bool();
    } else {
      fail("{}: a pre-tokenizer {} has no name in GGUF files", where_, json::excerpt(step));
    }
  }
  std::string pre_tokenizer() const {
    Steps steps;
    if (const json::Value* pre = tokenizer_.find("pre_tokenizer"); pre && !pre->is_null())
      take_step(*pre, steps);
    const json::Value* ignores = tokenizer_.find("model")->find("ignore_merges");
    for (const GgufPreTokenizer& one : gguf_pre_tokenizers())
      if (steps.is_byte_level && std::ranges::equal(one.patterns, steps.patterns) &&
          one.splits_digits == steps.splits_digits &&
          one.has_gpt2_pattern == steps.has_gpt2_pattern &&
          one.ignores_merges == (ignores && ignores->is_bool() && ignores->as_bool()))
        return std::string(one.names).substr(0, std::string_view(one.names).find(' '));
    fail("{}: expected a pre-tokenizer that GGUF files have a name for, found {}", where_,
         json::excerpt(tokenizer_.find("pre_tokenizer") ? *tokenizer_.find("pre_tokenizer")
                                                        : json::Value()));
  }

  // Whether a text begins with a token of the template.
  static bool adds_bos(const json::Value* step) {
    if (!step) return false;
    if (const json::Value* all = step->find("processors"); all && all->is_array())
      return std::ranges::any_of(all->as_array(),
                                 [](const json::Value& one) { return adds_bos(&one); });
    const json::Value* single = step->find("single");
    return single && single->is_array() && !single->as_array().empty() &&
           single->as_array()[0].find("SpecialToken");
  }

  const json::Value& tokenizer_;
  const std::string& where_;
  json::Array tokens_, types_, merges_;
};

// The chat template that stands in a file of its own, or in tokenizer_config.json.
json::Value chat_template(const std::map<std::string, std::string>& texts) {
  if (const auto own = texts.find("chat_template.jinja"); own != texts.end()) return own->second;
  const auto found = texts.find("tokenizer_config.json");
  if (found == texts.end()) return {};
  const json::Value config = json::parse(found->second, "tokenizer_config.json");
  const json::Value* text = config.find("chat_template");
  return text && text->is_string() ? *text : json::Value();
}

}  // namespace

std::vector<GgufKey> gguf_tokenizer_keys(const std::map<std::string, std::string>& texts,
                                         const json::Value& config, const std::string& where) {
  const auto found = texts.find("tokenizer.json");
  if (found == texts.end()) {
    if (texts.empty()) return {};
    fail("{}: expected a tokenizer.json, found {}", where, texts.begin()->first);
  }
  const json::Value tokenizer = json::parse(found->second, "tokenizer.json");
  auto keys = TokenizerKeys(tokenizer, config.find("vocab_size")->as_integer(), where).keys();
  // Readers that know this key have every detail; the others have those above.
  keys.push_back({"tokenizer.huggingface.json", found->second});
  if (const json::Value* bos = config.find("bos_token_id"); bos && bos->is_integer())
    keys.push_back({"tokenizer.ggml.bos_token_id", *bos});
  if (const json::Value* eos = config.find("eos_token_id"); eos && eos->is_integer()) {
    keys.push_back({"tokenizer.ggml.eos_token_id", *eos});
  } else if (eos && eos->is_array()) {
    constexpr const char* kNames[] = {"eos", "eot", "eom"};
    for (size_t i = 0; i < std::min(std::size(kNames), eos->as_array().size()); ++i)
      keys.push_back({fmt::format("tokenizer.ggml.{}_token_id", kNames[i]), eos->as_array()[i]});
  }
  if (json::Value text = chat_template(texts); !text.is_null())
    keys.push_back({"tokenizer.chat_template", std::move(text)});
  return keys;
}

std::vector<GgufKey> gguf_sampling_keys(const json::Value& generation_config) {
  if (generation_config.is_null()) return {};
  const auto said = [&](const char* name, double otherwise) {
    const json::Value* value = generation_config.find(name);
    return value && value->is_number() ? value->as_number() : otherwise;
  };
  return {{"general.sampling.temp", said("temperature", 1), GgufKey::Number::f32},
          {"general.sampling.top_k", static_cast<int64_t>(said("top_k", 0)), GgufKey::Number::i32},
          {"general.sampling.top_p", said("top_p", 1), GgufKey::Number::f32},
          {"general.sampling.min_p", said("min_p", 0), GgufKey::Number::f32}};
}

namespace {

// Adds the scaling of positions, as far as keys say it; the rest is found when the file is read
// back.
void add_scaling(const json::Value& config, const std::string& name, std::vector<GgufKey>& keys) {
  const json::Value* scaling = config.find("rope_scaling");
  const json::Value* type = scaling ? scaling->find("rope_type") : nullptr;
  if (!type || (*type != json::Value("linear") && *type != json::Value("yarn"))) return;
  const auto add = [&](const char* key, const char* from, Number number) {
    if (const json::Value* value = scaling->find(from); value && value->is_number())
      keys.push_back({fmt::format("{}.rope.scaling.{}", name, key), *value, number});
  };
  keys.push_back({name + ".rope.scaling.type", *type});
  add("factor", "factor", Number::f32);
  add("original_context_length", "original_max_position_embeddings", Number::u32);
  add("yarn_beta_fast", "beta_fast", Number::f32);
  add("yarn_beta_slow", "beta_slow", Number::f32);
  if (const json::Value* mscale = scaling->find("mscale_all_dim"); mscale)
    keys.push_back(
        {name + ".rope.scaling.yarn_log_multiplier", 0.1 * mscale->as_number(), Number::f32});
}

// As gguf's tools number what makes scores of a router's outputs.
constexpr int64_t kSoftmax = 1, kSigmoid = 2;

void add_router(const json::Value& config, const std::string& name, std::vector<GgufKey>& keys) {
  const bool is_softmax = *config.find("model_type") == json::Value("deepseek_v2");
  const json::Value* norm = config.find("norm_topk_prob");
  keys.push_back({name + ".expert_gating_func", is_softmax ? kSoftmax : kSigmoid});
  keys.push_back({name + ".expert_weights_norm", norm && *norm == json::Value(true)});
}

// Attention as to one key/value head of a latent; a head's own lengths beside it.
void add_latents(const json::Value& config, const std::string& name, std::vector<GgufKey>& keys) {
  const auto size = [&](const char* key) { return config.find(key)->as_integer(); };
  const auto add = [&](const char* key, int64_t value) {
    keys.push_back({fmt::format("{}.attention.{}", name, key), value});
  };
  const int64_t rank = size("kv_lora_rank"), turning = size("qk_rope_head_dim");
  std::erase_if(keys, [&](const GgufKey& key) {
    return key.name == name + ".attention.key_length" ||
           key.name == name + ".attention.value_length" ||
           key.name == name + ".attention.head_count_kv";
  });
  add("head_count_kv", 1);
  add("kv_lora_rank", rank);
  if (config.find("q_lora_rank")->is_integer()) add("q_lora_rank", size("q_lora_rank"));
  add("key_length", rank + turning);
  add("value_length", rank);
  add("key_length_mla", size("qk_nope_head_dim") + turning);
  add("value_length_mla", size("v_head_dim"));
}

// How many elements of a head turn.
void add_turning(const json::Value& config, const std::string& name, std::vector<GgufKey>& keys) {
  const json::Value* beside = config.find("qk_rope_head_dim");
  const json::Value* share = config.find("partial_rotary_factor");
  int64_t turning = beside ? beside->as_integer() : config.find("head_dim")->as_integer();
  if (share && share->is_number())
    turning = static_cast<int64_t>(static_cast<double>(turning) * share->as_number());
  keys.push_back({name + ".rope.dimension_count", turning});
}

}  // namespace

std::vector<GgufKey> gguf_model_keys(const json::Value& config, const std::string& where) {
  const json::Value* type = config.find("model_type");
  std::string name = gguf_architecture(type ? type->as_string() : "", where);
  if (name == "nemotron_h" && config.find("n_routed_experts")) name = "nemotron_h_moe";
  std::vector<GgufKey> keys = {{"general.architecture", name},
                               {"general.alignment", 32},
                               {"general.quantization_version", 2}};
  const auto add = [&](const char* key, const char* from, Number number = Number::u32) {
    const json::Value* value = config.find(from);
    if (value && !value->is_null())
      keys.push_back({fmt::format("{}.{}", name, key), *value, number});
  };
  add("block_count", "num_hidden_layers");
  add("context_length", "max_position_embeddings");
  add("embedding_length", "hidden_size");
  add("feed_forward_length", "intermediate_size");
  add("attention.head_count", "num_attention_heads");
  add("attention.head_count_kv", "num_key_value_heads");
  add("attention.key_length", "head_dim");
  add("attention.value_length", "head_dim");
  add_turning(config, name, keys);
  for (const char* eps : {"rms_norm_eps", "norm_eps", "layer_norm_epsilon"})
    add("attention.layer_norm_rms_epsilon", eps, Number::f32);
  if (name.starts_with("nemotron_h"))  // llama.cpp wants it, too
    add("attention.layer_norm_epsilon", "layer_norm_epsilon", Number::f32);
  add("rope.freq_base", "rope_theta", Number::f32);
  const json::Value* window = config.find("sliding_window");
  const bool must_have_one = name == "gpt-oss" && (!window || window->is_null());
  add("attention.sliding_window", must_have_one ? "max_position_embeddings" : "sliding_window");
  add("vocab_size", "vocab_size");
  add("expert_count", "num_experts");
  add("expert_count", "num_local_experts");
  add("expert_used_count", "num_experts_per_tok");
  add("expert_feed_forward_length",
      name == "gpt-oss" ? "intermediate_size" : "moe_intermediate_size");
  add("expert_shared_feed_forward_length", "shared_expert_intermediate_size");
  add("expert_count", "n_routed_experts");
  add("expert_shared_count", "n_shared_experts");
  add("expert_group_count", "n_group");
  add("expert_group_used_count", "topk_group");
  add("leading_dense_block_count", "first_k_dense_replace");
  add("expert_weights_scale", "routed_scaling_factor", Number::f32);
  if (config.find("n_routed_experts")) add_router(config, name, keys);
  if (config.find("kv_lora_rank")) add_latents(config, name, keys);
  add("embedding_scale", "embedding_multiplier", Number::f32);
  add("residual_scale", "residual_multiplier", Number::f32);
  add("logit_scale", "logits_scaling", Number::f32);
  add_scaling(config, name, keys);
  // A value that follows from a head's size need not be an f32.
  const json::Value *scale = config.find("attention_multiplier"), *size = config.find("head_dim");
  if (scale && size && scale->as_number() != 1 / std::sqrt(size->as_number()))
    add("attention.scale", "attention_multiplier", Number::f32);
  add_hybrid_keys(config, name, keys);
  if (name == "gemma4") add_gemma4_keys(config, name, keys);
  return keys;
}

}  // namespace invar
