#include "model/families/families.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <set>

#include "base/error.h"
#include "model/families/family.h"
#include "weights/mxfp4_source.h"
#include "weights/packed_formats.h"

namespace invar {

namespace {

// Keys that cannot change a logit: names, training, storage, sampling defaults and the Python side.
constexpr std::string_view kHarmless[] = {
    "_attn_implementation",
    "_attn_implementation_autoset",
    "_flash_attn_2_enabled",
    "_name_or_path",
    "_commit_hash",
    "_from_model_config",
    "attention_dropout",
    "auto_map",
    "bad_words_ids",
    "begin_suppress_tokens",
    "chunk_size_feed_forward",
    "decoder_start_token_id",
    "diversity_penalty",
    "do_sample",
    "early_stopping",
    "embd_pdrop",
    "encoder_no_repeat_ngram_size",
    "exponential_decay_length_penalty",
    "finetuning_task",
    "forced_bos_token_id",
    "forced_eos_token_id",
    "gradient_checkpointing",
    "hidden_dropout",
    "id2label",
    "initializer_range",
    "is_llama_config",
    "is_matryoshka",
    "label2id",
    "length_penalty",
    "license",
    "matryoshka_dimensions",
    "max_length",
    "max_sequence_length",
    "min_length",
    "model_max_length",
    "neftune_noise_alpha",
    "no_repeat_ngram_size",
    "num_beam_groups",
    "num_beams",
    "num_labels",
    "num_return_sequences",
    "output_attentions",
    "output_hidden_states",
    "output_scores",
    "pad_token_id",
    "prefix",
    "problem_type",
    "remove_invalid_values",
    "repetition_penalty",
    "resid_pdrop",
    "return_dict",
    "return_dict_in_generate",
    "sentence_transformers",
    "sep_token_id",
    "suppress_tokens",
    "task_specific_params",
    "tf_legacy_loss",
    "temperature",
    "tie_encoder_decoder",
    "tokenizer_class",
    "top_k",
    "top_p",
    "torchscript",
    "transformers.js_config",
    "transformers_version",
    "typical_p",
    "unsloth_fixed",
    "unsloth_version",
    "use_bfloat16",
    "use_cache",
    "use_flash_attn",
};

// Keys that change the arithmetic unless they have this value (or are null or absent).
struct Neutral {
  std::string_view key;
  json::Value value;
};

const std::vector<Neutral>& neutral_values() {
  static const std::vector<Neutral> values = {
      {"pretraining_tp", 1},
      {"attention_bias", false},
      {"mlp_bias", false},
      {"partial_rotary_factor", 1},
      {"rope_interleaved", false},
      {"use_mrope", false},
      {"add_cross_attention", false},
      {"cross_attention_hidden_size", {}},
      {"is_decoder", false},
      {"is_encoder_decoder", false},
      {"pruned_heads", json::Object{}},
      {"quantization", {}},
      {"compression_config", {}},
      {"attn_logit_softcapping", {}},
      {"final_logit_softcapping", {}},
      {"query_pre_attn_scalar", {}},
      {"attention_multiplier", {}},
      {"embedding_multiplier", 1},
      {"residual_multiplier", 1},
      {"logits_scaling", 1},
      {"logit_scale", 1},
      {"clip_qkv", {}},
      {"use_qk_norm", false},
      {"num_experts", {}},
      {"num_local_experts", {}},
      {"sliding_window_pattern", {}},
      {"dual_chunk_attention_config", {}},
  };
  return values;
}

bool is_same(const json::Value& a, const json::Value& b) {
  return a.is_number() && b.is_number() ? a.as_number() == b.as_number() : a == b;
}

// ---- Family
// -------------------------------------------------------------------------------------------------------

std::vector<std::string> names_by(std::string_view Family::*field) {
  std::vector<std::string> names;
  for (const Family* family : all_families()) names.emplace_back(family->*field);
  return names;
}

// Classes of transformers without a head that predicts tokens, by the ends of their names.
constexpr std::pair<std::string_view, Head> kHeadless[] = {
    {"ForSequenceClassification", Head::classes}, {"TextModel", Head::none}, {"Model", Head::none}};

// The family of such a class, and its head; null where it is none.
std::pair<const Family*, Head> find_headless(std::string_view architecture) {
  for (const auto& [end, head] : kHeadless) {
    if (!architecture.ends_with(end)) continue;
    std::string name(architecture.substr(0, architecture.size() - end.size()));
    return {find_family(&Family::architecture, name + "ForCausalLM"), head};
  }
  return {nullptr, Head::tokens};
}

Head head_of(const json::Value& config) {
  const json::Value* list = config.find("architectures");
  const bool is_one = list && list->is_array() && list->as_array().size() == 1;
  if (!is_one || !list->as_array()[0].is_string()) return Head::tokens;
  const std::string& name = list->as_array()[0].as_string();
  return find_family(&Family::architecture, name) ? Head::tokens : find_headless(name).second;
}

const Family& read_family(ConfigReader& reader) {
  const Family* by_architecture = nullptr;
  if (const json::Value* list = reader.take("architectures")) {
    const bool is_one = list->is_array() && list->as_array().size() == 1;
    if (is_one && list->as_array()[0].is_string())
      by_architecture = find_family(&Family::architecture, list->as_array()[0].as_string());
    if (is_one && list->as_array()[0].is_string() && !by_architecture)
      by_architecture = find_headless(list->as_array()[0].as_string()).first;
    if (!by_architecture)
      fail(
          "{}: \"architectures\": expected one of the {} that docs/models.md lists, such as "
          "[\"LlamaForCausalLM\"], found {}",
          reader.where(), family_names().size(), json::excerpt(*list));
  }
  const bool is_null = reader.is_null("model_type");
  if (!reader.take("model_type") && !is_null) {
    if (by_architecture) return *by_architecture;
    fail("{}: the keys \"architectures\" and \"model_type\" are missing", reader.where());
  }
  const std::string type = is_null ? "null" : reader.text("model_type", "");
  const Family* by_type = find_family(&Family::name, type);
  if (!by_type)
    fail("{}: \"model_type\": expected one of {}, found {}", reader.where(),
         fmt::join(family_names(), ", "), is_null ? type : json::quoted(type));
  if (by_architecture && by_architecture != by_type &&
      by_architecture->architecture != by_type->other_architecture)
    fail("{}: the architecture {} and the model_type {} contradict each other", reader.where(),
         by_architecture->architecture, type);
  return *by_type;
}

// The type that tensors without one of their own would have. Each tensor names its own, so this
// changes nothing; but a type that is not read means that the weights are meant otherwise.
void check_dtype(ConfigReader& reader) {
  constexpr std::string_view kRead[] = {"bfloat16", "float16", "float32"};
  for (const char* key : {"torch_dtype", "dtype"}) {
    const std::string type = reader.text(key, kRead[0]);
    if (std::find(std::begin(kRead), std::end(kRead), type) == std::end(kRead))
      fail("{}: \"{}\": expected one of {}, found {}", reader.where(), key, fmt::join(kRead, ", "),
           json::quoted(type));
  }
}

// ---- Windows
// ------------------------------------------------------------------------------------------------------

// The window of the layers that have one, or 0.
int read_window(ConfigReader& reader, WindowRule rule) {
  if (rule == WindowRule::none) {
    check_neutral(reader, "use_sliding_window", false);
    check_neutral(reader, "sliding_window", {});
    return 0;
  }
  const int64_t fallback = reader.is_null("sliding_window") ? 0 : 4096;
  const int64_t least = rule == WindowRule::switched ? 0 : 1;  // where it may be switched off
  const int window =
      static_cast<int>(reader.integer("sliding_window", least, kMaxPositions, fallback));
  if (rule != WindowRule::switched) return window;
  return reader.boolean("use_sliding_window", false) ? window : 0;
}

// Which layers have none: every n-th, where the pattern is a number; or as a word of L (with one)
// and G says, over and over, and the last one, too.
std::vector<bool> read_pattern(ConfigReader& reader, int64_t every, int layers) {
  const json::Value* found = reader.take("sliding_window_pattern");
  std::vector<bool> is_full(static_cast<size_t>(layers));
  if (found && found->is_string() && !found->as_string().empty() &&
      found->as_string().find_first_not_of("LG") == std::string::npos) {
    const std::string& word = found->as_string();
    for (size_t i = 0; i < is_full.size(); ++i) is_full[i] = word[i % word.size()] == 'G';
    is_full.back() = true;
    return is_full;
  }
  every = reader.integer("sliding_window_pattern", 1, kMaxLayers, every);
  for (size_t i = 0; i < is_full.size(); ++i)
    is_full[i] = (static_cast<int64_t>(i) + 1) % every == 0;
  return is_full;
}

void read_windows(ConfigReader& reader, const Family& family, DecoderSpec& spec) {
  const int layers = spec.layers;
  const int window = read_window(reader, family.windows);
  int64_t first = 0;
  if (family.windows == WindowRule::switched)
    first = reader.integer("max_window_layers", 0, INT32_MAX, 28);
  std::vector<bool> is_full(static_cast<size_t>(layers));
  if (family.windows == WindowRule::pattern && window > 0)
    is_full = read_pattern(reader, family.pattern, layers);
  else if (family.windows == WindowRule::pattern)
    reader.take("sliding_window_pattern");  // of no windows
  const auto set_window = [&](int layer, int to) {
    if (AttentionSpec* own = spec.layer_specs[static_cast<size_t>(layer)].attention())
      own->window = to;
  };
  for (int i = 0; i < layers; ++i)
    set_window(i, i >= first && !is_full[static_cast<size_t>(i)] ? window : 0);

  const json::Value* types =
      family.has_states || family.has_layer_kinds ? nullptr : reader.take("layer_types");
  if (!types) return;
  const size_t found = types->is_array() ? types->as_array().size() : 0;
  if (found != static_cast<size_t>(layers))
    fail("{}: \"layer_types\": expected an array of {} names, found {}", reader.where(), layers,
         json::excerpt(*types));
  for (int i = 0; i < layers; ++i) {
    const json::Value& type = types->as_array()[i];
    if (type == json::Value("full_attention"))
      set_window(i, 0);
    else if (type == json::Value("sliding_attention") && window > 0)
      set_window(i, window);
    else
      fail("{}: \"layer_types\": expected full_attention{}, found {} for layer {}", reader.where(),
           window > 0 ? " or sliding_attention" : " (there is no window)", json::excerpt(type), i);
  }
}

// ---- Token ids
// ----------------------------------------------------------------------------------------------------

void read_ids(ConfigReader& reader, const char* key, int vocab, std::set<int>& ids) {
  const json::Value* value = reader.take(key);
  if (!value) return;
  const json::Array items = value->is_array() ? value->as_array() : json::Array{*value};
  for (const json::Value& id : items) {
    const auto found = id.to_integer();
    if (!found || *found < 0 || *found >= vocab)
      fail("{}: \"{}\": expected token ids from 0 to {}, found {}", reader.where(), key, vocab - 1,
           json::excerpt(id));
    ids.insert(static_cast<int>(*found));
  }
}

void read_special_ids(ConfigReader& reader, ModelConfig& config) {
  std::set<int> bos, eos(config.eos_ids.begin(), config.eos_ids.end());
  read_ids(reader, "bos_token_id", config.spec.vocab, bos);
  read_ids(reader, "eos_token_id", config.spec.vocab, eos);
  if (!bos.empty()) config.bos_id = *bos.begin();
  config.eos_ids.assign(eos.begin(), eos.end());
}

// ---- The whole
// ----------------------------------------------------------------------------------------------------

void read_sizes(ConfigReader& reader, const Family& family, DecoderSpec& spec) {
  const auto size = [&](std::string_view key, int64_t high) {
    return static_cast<int>(reader.integer(key, 1, high));
  };
  spec.hidden = size("hidden_size", kMaxWidth);
  spec.layers = size("num_hidden_layers", kMaxLayers);
  spec.mtp_layers = static_cast<int>(reader.integer(family.module_key, 0, 1, 0));
  spec.heads = size("num_attention_heads", kMaxHeads);
  spec.kv_heads = static_cast<int>(reader.integer("num_key_value_heads", 1, kMaxHeads, spec.heads));
  const int64_t head_dim = family.head_dim ? family.head_dim : spec.hidden / spec.heads;
  if (!reader.take("head_dim") && !family.head_dim && spec.hidden % spec.heads)
    fail("{}: expected num_attention_heads to divide hidden_size, found {} and {}", reader.where(),
         spec.heads, spec.hidden);
  spec.head_dim = static_cast<int>(reader.integer("head_dim", 1, kMaxWidth, head_dim));
  const int width = !family.has_dense_layers && !reader.has("intermediate_size")
                        ? 1
                        : size("intermediate_size", kMaxWidth);
  spec.set_layers({.parts = {AttentionSpec{}, DenseFfnSpec{.width = width}}});
  spec.vocab = size("vocab_size", kMaxVocab);
  spec.max_positions = size("max_position_embeddings", kMaxPositions);
  spec.norm_eps = static_cast<float>(reader.number(family.eps_key, 1e-20, 1));
}

void read_flags(ConfigReader& reader, const Family& family, DecoderSpec& spec) {
  const auto flag = [&](std::string_view key, bool is_known) {
    return is_known && reader.boolean(key, false);
  };
  const bool attention_bias = flag("attention_bias", family.has_attention_bias);
  spec.qkv_bias = family.qkv_bias || attention_bias;
  spec.o_bias = attention_bias;
  spec.mlp_bias = flag("mlp_bias", family.has_mlp_bias);
  spec.qk_norm = family.qk_norm;
  spec.tied_head = reader.boolean("tie_word_embeddings", family.is_tied);
}

// The names of a function.
std::vector<std::string_view> names_of(Nonlinearity curve) {
  if (curve == Nonlinearity::silu) return {"silu", "swish"};
  if (curve == Nonlinearity::gelu) return {"gelu"};
  if (curve == Nonlinearity::relu_squared) return {"relu2"};
  return {"gelu_pytorch_tanh", "gelu_new"};
}

void check_activation(ConfigReader& reader, const Family& family) {
  const auto names = names_of(family.curve);
  const std::string name = reader.text(family.activation_key, names[0]);
  if (std::ranges::find(names, name) == names.end())
    fail("{}: \"{}\": only {} is implemented, found {}", reader.where(), family.activation_key,
         names[0], json::quoted(name));
}

// Whether rows see what stands behind them: a window of `is_causal` false counts neither end.
void read_directions(ConfigReader& reader, DecoderSpec& spec) {
  if (reader.boolean("is_causal", true)) return;
  see_ahead(reader, spec, [](int window) { return window + 1; });
}

DecoderSpec read_spec(ConfigReader& reader, bool is_text_tower) {
  const Family& family = read_family(reader);
  check_activation(reader, family);
  DecoderSpec spec;
  spec.family = family.name;
  spec.is_text_tower = is_text_tower;
  (family.read_sizes ? family.read_sizes(reader, spec) : read_sizes(reader, family, spec));
  read_flags(reader, family, spec);
  read_windows(reader, family, spec);
  read_ropes(reader, family, spec);
  if (family.imply) family.imply(spec);
  change_layers(spec, [&](LayerSpec& layer) {
    if (layer.ffn()) layer.ffn()->curve = family.curve;
  });
  if (family.read) family.read(reader, spec);
  read_directions(reader, spec);
  for (const Neutral& neutral : neutral_values())
    if (!reader.is_known(neutral.key)) check_neutral(reader, neutral.key, neutral.value);
  check_spec(spec, reader.where());
  return spec;
}

}  // namespace

void see_ahead(const ConfigReader& reader, DecoderSpec& spec, int (*window_of)(int)) {
  if (sees_ahead(spec))
    fail("{}: expected one key that says that attention is in both directions, found two",
         reader.where());
  change_layers(spec, [&](LayerSpec& layer) {
    AttentionSpec* attention = layer.attention();
    if (!attention || layer.find<StateSpaceSpec>())
      fail(
          "{}: expected layers that attend alone where attention is in both directions, found "
          "others of {}",
          reader.where(), spec.family);
    attention->sees_ahead = true;
    if (attention->window > 0) attention->window = window_of(attention->window);
  });
}

void check_neutral(ConfigReader& reader, std::string_view key, const json::Value& neutral) {
  const json::Value* value = reader.take(key);
  if (value && !is_same(*value, neutral))
    fail("{}: \"{}\": only {} is implemented, found {}", reader.where(), key, json::dump(neutral),
         json::excerpt(*value));
}

namespace {

// A model that reads images, too: the part that reads text is of a family, and its configuration
// stands in text_config, or (first Qwen2-VLs) among the other keys.
struct Tower {
  std::string_view name, architecture;
  std::string_view family;  // where text_config names none
};
constexpr Tower kTowers[] = {
    {"gemma3", "Gemma3ForConditionalGeneration", "gemma3_text"},
    {"gemma4", "Gemma4ForConditionalGeneration", "gemma4_text"},
    {"gemma4_unified", "Gemma4UnifiedForConditionalGeneration", "gemma4_text"},
    {"mistral3", "Mistral3ForConditionalGeneration", "mistral"},
    {"qwen2_vl", "Qwen2VLForConditionalGeneration", "qwen2"},
    {"qwen2_5_vl", "Qwen2_5_VLForConditionalGeneration", "qwen2"},
    {"qwen3_vl", "Qwen3VLForConditionalGeneration", "qwen3"},
    {"qwen3_vl_moe", "Qwen3VLMoeForConditionalGeneration", "qwen3_vl_moe_text"},
    {"llama4", "Llama4ForConditionalGeneration", "llama4_text"},
    {"kimi_k25", "KimiK25ForConditionalGeneration", "kimi_k2"},
    {"qwen3_5", "Qwen3_5ForConditionalGeneration", "qwen3_5_text"},
    {"qwen3_5_moe", "Qwen3_5MoeForConditionalGeneration", "qwen3_5_moe_text"},
};

// Of images alone, or of both and harmless.
constexpr std::string_view kOfTowers[] = {
    "architectures",
    "audio_config",
    "audio_token_id",
    "boa_token_id",
    "boi_token_id",
    "boi_token_index",
    "eoa_token_id",
    "eoa_token_index",
    "eoi_token_id",
    "eoi_token_index",
    "image_token_id",
    "ignore_index",
    "media_placeholder_token_id",
    "projection_hidden_size",
    "projection_layer_norm_eps",
    "use_unified_vision_chunk",
    "video_placeholder",
    "image_token_index",
    "mm_tokens_per_image",
    "model_type",
    "multimodal_projector_bias",
    "projector_hidden_act",
    "spatial_merge_size",
    "text_config",
    "video_token_id",
    "vision_config",
    "vision_end_token_id",
    "vision_feature_layer",
    "vision_soft_tokens_per_image",
    "vision_start_token_id",
    "vision_token_id",
};

const Tower* find_tower(const json::Value& config) {
  const json::Value* type = config.is_object() ? config.find("model_type") : nullptr;
  for (const Tower& tower : kTowers)
    if (type && *type == json::Value(tower.name)) return &tower;
  return nullptr;
}

// The text's part as a configuration of its family.
json::Value text_config(const json::Value& config, const Tower& tower) {
  const json::Value* inner = config.find("text_config");
  json::Value text = inner && inner->is_object() ? *inner : json::Value(json::Object{});
  for (const auto& [key, value] : config.as_object())
    if ((!text.find(key) || key == "tie_word_embeddings") &&
        std::ranges::find(kOfTowers, key) == std::end(kOfTowers))
      text.set(key, value);
  std::erase_if(text.as_object(),
                [](const json::Member& member) { return member.first == "architectures"; });
  const json::Value* type = text.find("model_type");
  const bool is_known = type && type->is_string() && find_family(&Family::name, type->as_string());
  if (!is_known) text.set("model_type", tower.family);
  return text;
}

// Of the keys that the user says change nothing those that stand there, ascending.
std::vector<std::string> ignore_unknown(ConfigReader& reader,
                                        const std::vector<std::string>& ignored) {
  std::set<std::string> there;
  for (const std::string& key : ignored) {
    if (reader.is_known(key))
      fail_usage("expected keys that Invar does not know as --ignore-config-keys, found {}",
                 json::quoted(key));
    if (reader.has(key)) there.insert(key);
  }
  const std::vector<std::string_view> keys(there.begin(), there.end());
  reader.ignore(keys);
  return {there.begin(), there.end()};
}

}  // namespace

ModelConfig parse_model_config(const json::Value& whole, const json::Value& generation_config,
                               std::string_view where, const std::vector<std::string>& ignored) {
  ModelConfig result;
  const Tower* tower = find_tower(whole);
  const json::Value text = tower ? text_config(whole, *tower) : json::Value();
  const json::Value& config = tower ? text : whole;
  ConfigReader reader(config, fmt::format("{}/config.json", where));
  result.spec = read_spec(reader, tower != nullptr);
  result.head = head_of(config);
  if (sees_ahead(result.spec) && result.head == Head::tokens) result.head = Head::none;
  result.spec.tied_head |= result.head != Head::tokens;  // no other is stored
  read_special_ids(reader, result);
  check_dtype(reader);
  if (const json::Value* quantization = reader.take("quantization_config")) {
    if (!is_mxfp4(*quantization, reader.where())) check_quantization(*quantization, reader.where());
    result.quantization = *quantization;
  }
  reader.ignore(kHarmless);
  result.ignored_keys = ignore_unknown(reader, ignored);
  reader.refuse_others();
  if (!generation_config.is_null()) {
    ConfigReader generation(generation_config, fmt::format("{}/generation_config.json", where));
    read_special_ids(generation, result);
  }
  return result;
}

// ---- Back to JSON
// -------------------------------------------------------------------------------------------------

namespace {

void set_ids(json::Value& object, const ModelConfig& config) {
  object.set("bos_token_id", config.bos_id ? json::Value(*config.bos_id) : json::Value());
  json::Array eos(config.eos_ids.begin(), config.eos_ids.end());
  if (eos.size() == 1)
    object.set("eos_token_id", eos[0]);
  else
    object.set("eos_token_id", eos.empty() ? json::Value() : json::Value(std::move(eos)));
}

void set_windows(json::Value& object, const DecoderSpec& spec, WindowRule rule) {
  if (rule == WindowRule::none) return;
  int window = 0;
  for (const LayerSpec& layer : spec.layer_specs) window = std::max(window, layer.window());
  if (window > 0 && sees_ahead(spec)) --window;  // as read_directions counts
  object.set("sliding_window", window ? json::Value(window) : json::Value());
  if (rule == WindowRule::all_layers) return;
  json::Array types;
  for (const LayerSpec& layer : spec.layer_specs)
    types.push_back(layer.window() ? "sliding_attention" : "full_attention");
  if (rule == WindowRule::switched) object.set("use_sliding_window", window > 0);
  object.set("layer_types", std::move(types));
}

// Of the layers without experts, or, where all have them, of one.
int width_of(const DecoderSpec& spec) {
  int width = 0;
  for (const LayerSpec& layer : spec.layer_specs) width = std::max(width, layer.ffn_width());
  const ExpertsSpec* experts = spec.first<ExpertsSpec>();
  return width == 0 && experts ? experts->width : width;
}

}  // namespace

json::Value config_json(const ModelConfig& config) {
  const DecoderSpec& spec = config.spec;
  const Family& family = family_of(spec);
  json::Value object = json::Object{
      {"architectures", json::Array{family.architecture}},
      {"model_type", family.name},
      {"torch_dtype", "bfloat16"},
      {family.activation_key, names_of(family.curve)[0]},
      {"hidden_size", spec.hidden},
      {"num_hidden_layers", spec.layers},
      {"num_attention_heads", spec.heads},
      {"vocab_size", spec.vocab},
      {"max_position_embeddings", spec.max_positions},
      {"tie_word_embeddings", spec.tied_head},
  };
  if (!family.read_sizes) {
    object.set("intermediate_size", width_of(spec));
    object.set("num_key_value_heads", spec.kv_heads);
    object.set("head_dim", spec.head_dim);
    object.set(family.eps_key, json::shortest(spec.norm_eps));
  }
  write_ropes(spec, family, object);
  if (family.has_attention_bias) object.set("attention_bias", spec.o_bias);
  if (family.has_mlp_bias) object.set("mlp_bias", spec.mlp_bias);
  if (spec.mtp_layers > 0) object.set(family.module_key, spec.mtp_layers);
  set_windows(object, spec, family.windows);
  if (family.write) family.write(spec, object);
  if (sees_ahead(spec)) object.set("is_causal", false);
  set_ids(object, config);
  return object;
}

json::Value generation_config_json(const ModelConfig& config) {
  json::Value object = json::Object{};
  set_ids(object, config);
  return object;
}

std::vector<std::string> family_names() {
  return names_by(&Family::name);
}

void set_family(DecoderSpec& spec, std::string_view name) {
  const Family* family = find_family(&Family::name, name);
  if (!family)
    fail_usage("expected a family of {}, found {}", fmt::join(family_names(), ", "),
               json::quoted(name));
  if (spec.family == family->name) {
    if (family->imply) family->imply(spec);
    return;
  }
  DecoderSpec plain;  // what other families imply is gone
  plain.family = family->name;
  plain.hidden = spec.hidden;
  plain.layers = spec.layers;
  plain.mtp_layers = spec.mtp_layers;
  plain.heads = spec.heads;
  plain.kv_heads = spec.kv_heads;
  plain.head_dim = spec.head_dim;
  plain.vocab = spec.vocab;
  plain.max_positions = spec.max_positions;
  plain.norm_eps = spec.norm_eps;
  plain.tied_head = spec.tied_head;
  plain.qkv_bias = family->qkv_bias;
  plain.qk_norm = family->qk_norm;
  const AttentionSpec like =
      spec.first<AttentionSpec>() ? *spec.first<AttentionSpec>() : AttentionSpec{};
  for (const LayerSpec& layer : spec.layer_specs) {
    const auto& rope = layer.attention() ? layer.attention()->rope : like.rope;
    const int width = layer.experts() ? layer.experts()->width : layer.ffn_width();
    plain.layer_specs.push_back(
        {.parts = {AttentionSpec{.window = layer.window(), .rope = rope},
                   DenseFfnSpec{.width = width ? width : width_of(spec), .curve = family->curve}}});
  }
  if (family->imply) family->imply(plain);
  if (family->shape) family->shape(plain);
  spec = plain;
}

}  // namespace invar
