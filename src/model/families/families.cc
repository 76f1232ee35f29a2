#include "model/families/families.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <set>

#include "base/error.h"
#include "model/families/config_keys.h"
#include "model/families/family.h"
#include "model/families/towers.h"
#include "weights/mxfp4_source.h"
#include "weights/packed_formats.h"

namespace invar {

namespace {

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

void check_activation(ConfigReader& reader, const Family& family) {
  const auto names = curve_names(family.curve);
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
  check_neutral_keys(reader);
  check_spec(spec, reader.where());
  return spec;
}

}  // namespace

std::vector<std::string_view> curve_names(Nonlinearity curve) {
  if (curve == Nonlinearity::silu) return {"silu", "swish"};
  if (curve == Nonlinearity::gelu) return {"gelu"};
  if (curve == Nonlinearity::relu_squared) return {"relu2"};
  return {"gelu_pytorch_tanh", "gelu_new"};
}

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

namespace {

// The keys that the user says change nothing and that stand there, ascending.
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
  const std::optional<json::Value> text = tower_text_config(whole);
  const json::Value& config = text ? *text : whole;
  ConfigReader reader(config, fmt::format("{}/config.json", where));
  result.spec = read_spec(reader, text.has_value());
  result.head = head_of(config);
  if (sees_ahead(result.spec) && result.head == Head::tokens) result.head = Head::none;
  result.spec.tied_head |= result.head != Head::tokens;  // no other is stored
  read_special_ids(reader, result);
  check_dtype(reader);
  if (const json::Value* quantization = reader.take("quantization_config")) {
    if (!is_mxfp4(*quantization, reader.where())) check_quantization(*quantization, reader.where());
    result.quantization = *quantization;
  }
  ignore_harmless(reader);
  result.ignored_keys = ignore_unknown(reader, ignored);
  reader.refuse_others();
  if (!generation_config.is_null()) {
    ConfigReader generation(generation_config, fmt::format("{}/generation_config.json", where));
    read_special_ids(generation, result);
  }
  return result;
}

int ffn_width_of(const DecoderSpec& spec) {
  int width = 0;
  for (const LayerSpec& layer : spec.layer_specs) width = std::max(width, layer.ffn_width());
  const ExpertsSpec* experts = spec.first<ExpertsSpec>();
  return width == 0 && experts ? experts->width : width;
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
    plain.layer_specs.push_back({.parts = {AttentionSpec{.window = layer.window(), .rope = rope},
                                           DenseFfnSpec{.width = width ? width : ffn_width_of(spec),
                                                        .curve = family->curve}}});
  }
  if (family->imply) family->imply(plain);
  if (family->shape) family->shape(plain);
  spec = plain;
}

}  // namespace invar
