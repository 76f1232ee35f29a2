// The text of Gemma 4: layers without a window have heads and a rotation of their own and may take
// their keys as values, late layers read the keys and values of earlier ones, tokens may bring
// something to each layer, and every layer ends by a number of its own.
#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "model/families/experts.h"

namespace invar {

namespace {

// The rotation of full layers where the configuration has none.
RopeSpec full_rope(int head_dim) {
  return {.theta = 1e6, .rotated = head_dim / 8 * 2, .spans_head = head_dim >= 8};
}

// The attention of the first layer without a window, or what the last one's would be.
AttentionSpec full_of(const DecoderSpec& spec) {
  for (const LayerSpec& layer : spec.layer_specs)
    if (layer.attention()->window == 0) return *layer.attention();
  if (spec.layer_specs.empty()) return {};
  AttentionSpec full = *spec.layer_specs.back().attention();
  full.window = 0;
  full.rope = full_rope(spec.head_dim_of(full));
  return full;
}

// The choices that every model of the family makes.
void settle(DecoderSpec& spec) {
  spec.embedding_scale = static_cast<float>(std::sqrt(static_cast<double>(spec.hidden)));
  const AttentionSpec full = full_of(spec);
  bool shares = false;
  for (size_t i = 0; i < spec.layer_specs.size(); ++i) {
    LayerSpec& layer = spec.layer_specs[i];
    AttentionSpec& attention = *layer.attention();
    shares = attention.shares_keys = shares || attention.shares_keys;
    if (i + 1 == spec.layer_specs.size() && attention.window > 0) attention = full;  // the last
    attention.shares_keys = shares;
    attention.norms = NormPlace::both;
    attention.score_scale = 1;
    attention.has_value_norm = !shares;
    if (attention.window > 0) attention.head_dim = attention.kv_heads = 0;
    if (attention.head_dim == spec.head_dim) attention.head_dim = 0;
    if (attention.kv_heads == spec.kv_heads) attention.kv_heads = 0;
    if (shares || attention.window > 0) attention.keys_are_values = false;
    if (layer.ffn()) layer.ffn()->norms = NormPlace::both;
    if (!layer.find<LayerEndSpec>())
      layer.put(LayerEndSpec{.input_width = spec.layer_input_width()});
  }
}

// ---- Configuration

// The numbers of layers that differ from the model's, as newer files list them: one size of heads,
// and one number of key/value heads, of all layers without a window.
struct FullHeads {
  int size = 0, kv_heads = 0;  // 0: the model's
};

FullHeads read_listed(const json::Value& list, const std::string& where, const DecoderSpec& spec) {
  FullHeads heads;
  bool is_first = true;
  for (const auto& [key, value] : list.as_object()) {
    ConfigReader layer(value, where + ": \"per_layer_config\": \"" + key + "\"");
    const FullHeads own{read_size(layer, "head_dim", kMaxWidth, spec.head_dim),
                        read_size(layer, "num_key_value_heads", kMaxHeads, spec.kv_heads)};
    layer.refuse_others();
    if (!is_first && (own.size != heads.size || own.kv_heads != heads.kv_heads))
      fail("{}: expected the heads of the layers before it, found others", layer.where());
    heads = own;
    is_first = false;
  }
  return heads;
}

// The layers that are listed are those without a window.
void check_listed(const json::Value& list, const std::string& where, const DecoderSpec& spec) {
  std::vector<bool> is_listed(static_cast<size_t>(spec.layers));
  for (const auto& [key, value] : list.as_object()) {
    size_t number = 0;
    const bool is_number =
        !key.empty() && key.size() < 6 && key.find_first_not_of("0123456789") == std::string::npos;
    if (is_number) number = static_cast<size_t>(std::stoi(key));
    if (!is_number || number >= is_listed.size())
      fail("{}: \"per_layer_config\": expected numbers of layers below {}, found {}", where,
           spec.layers, json::quoted(key));
    is_listed[number] = true;
  }
  for (size_t i = 0; i < is_listed.size(); ++i)
    if (is_listed[i] != (spec.layer_specs[i].attention()->window == 0))
      fail(
          "{}: \"per_layer_config\": expected the layers without a window, found otherwise for "
          "layer {}",
          where, i);
}

FullHeads read_full_heads(ConfigReader& reader, const DecoderSpec& spec) {
  const int size = read_size(reader, "global_head_dim", kMaxWidth, 512);
  const int kv_heads = read_size(reader, "num_global_key_value_heads", kMaxHeads, spec.kv_heads);
  const json::Value* list = reader.take("per_layer_config");
  if (!list) return {size, reader.boolean("attention_k_eq_v", false) ? kv_heads : spec.kv_heads};
  if (!list->is_object())
    fail("{}: \"per_layer_config\": expected an object, found {}", reader.where(),
         json::excerpt(*list));
  return read_listed(*list, reader.where(), spec);
}

void read_sizes(ConfigReader& reader, DecoderSpec& spec) {
  read_usual_sizes(reader, spec,
                   {.hidden = 2304,
                    .layers = 30,
                    .heads = 8,
                    .kv_heads = 4,
                    .head_dim = 256,
                    .vocab = 262144,
                    .max_positions = 131072});
  spec.norm_eps = static_cast<float>(reader.number("rms_norm_eps", 1e-20, 1, 1e-6));
  const int width = read_size(reader, "intermediate_size", kMaxWidth, 9216);
  const FullHeads full = read_full_heads(reader, spec);
  spec.set_layers({.parts = {AttentionSpec{.kv_heads = full.kv_heads, .head_dim = full.size},
                             DenseFfnSpec{.width = width}}});
}

// The vectors that tokens bring to each layer.
void read_inputs(ConfigReader& reader, DecoderSpec& spec) {
  const int width =
      static_cast<int>(reader.integer("hidden_size_per_layer_input", 0, kMaxWidth,
                                      reader.has("hidden_size_per_layer_input") ? 0 : 256));
  const int rows = read_size(reader, "vocab_size_per_layer_input", kMaxVocab, 262144);
  if (width > 0 && rows != spec.vocab)
    fail("{}: \"vocab_size_per_layer_input\": expected the {} tokens of the vocabulary, found {}",
         reader.where(), spec.vocab, rows);
  change_layers(spec, [&](LayerSpec& layer) { layer.put(LayerEndSpec{.input_width = width}); });
}

// Late layers share keys, and may be twice as wide.
void read_sharing(ConfigReader& reader, DecoderSpec& spec) {
  const int64_t shared = reader.integer("num_kv_shared_layers", 0, spec.layers - 1, 0);
  const bool is_wide = reader.boolean("use_double_wide_mlp", false);
  for (int64_t i = spec.layers - shared; i < spec.layers; ++i) {
    LayerSpec& layer = spec.layer_specs[static_cast<size_t>(i)];
    layer.attention()->shares_keys = true;
    if (is_wide) layer.ffn()->width *= 2;
  }
}

ExpertsSpec experts_like(int experts, int chosen, int width) {
  return {.routing = {.experts = experts, .chosen = chosen, .renormalised = true},
          .width = width,
          .curve = Nonlinearity::gelu_tanh,
          .is_beside = true};
}

// Puts experts beside every layer's dense network.
void read_experts(ConfigReader& reader, DecoderSpec& spec) {
  const std::string_view of_experts[] = {"num_experts", "top_k_experts", "moe_intermediate_size"};
  if (!reader.boolean("enable_moe_block", false)) return reader.ignore(of_experts);
  const auto size = [&](std::string_view key, int64_t most) {
    return static_cast<int>(reader.integer(key, 1, most));
  };
  const ExpertsSpec experts = experts_like(size("num_experts", Routing::kMaxExperts),
                                           size("top_k_experts", Routing::kMaxChosen),
                                           size("moe_intermediate_size", kMaxWidth));
  change_layers(spec, [&](LayerSpec& layer) { layer.put(experts); });
}

void check_attention(ConfigReader& reader, const DecoderSpec& spec) {
  const std::string sees = reader.text("use_bidirectional_attention", "vision");
  if (sees != "vision")
    fail("{}: \"use_bidirectional_attention\": only \"vision\" is implemented, found {}",
         reader.where(), json::quoted(sees));
  if (const json::Value* list = reader.take("per_layer_config"))
    check_listed(*list, reader.where(), spec);
}

// Whether the configuration says how layers without a window turn.
bool has_full_rope(ConfigReader& reader, const DecoderSpec& spec) {
  const json::Value* ropes = reader.take("rope_parameters");
  if (!ropes || ropes->is_null()) return false;
  if (!ropes->is_object() || !ropes->find("full_attention"))
    fail("{}: \"rope_parameters\": expected \"full_attention\", found {}", reader.where(),
         json::excerpt(*ropes));
  if (std::ranges::all_of(spec.layer_specs,
                          [](const LayerSpec& layer) { return layer.window() > 0; }))
    fail("{}: \"layer_types\": expected a last layer of \"full_attention\", found none",
         reader.where());
  return true;
}

void read(ConfigReader& reader, DecoderSpec& spec) {
  spec.logits_cap = static_cast<float>(reader.number("final_logit_softcapping", 0, 1e6, 0));
  const bool keys_are_values = reader.boolean("attention_k_eq_v", false);
  const bool has_ropes = has_full_rope(reader, spec);
  read_inputs(reader, spec);
  read_sharing(reader, spec);
  change_layers(spec, [&](LayerSpec& layer) {
    AttentionSpec& attention = *layer.attention();
    attention.keys_are_values = keys_are_values;
    if (!has_ropes && attention.window == 0)
      attention.rope = full_rope(spec.head_dim_of(attention));
  });
  check_attention(reader, spec);
  check_neutral(reader, "expert_intermediate_size", {});
  read_experts(reader, spec);
  settle(spec);
}

json::Value rope_json(const RopeSpec& rope, int head_dim) {
  json::Value object = json::Object{{"rope_theta", rope.theta},
                                    {"rope_type", rope.spans_head ? "proportional" : "default"}};
  if (!rope.spans_head) return object;
  const double share = static_cast<double>(rope.rotated) / head_dim;
  const bool is_read_back = static_cast<int>(share * head_dim / 2) * 2 == rope.rotated;
  object.set("partial_rotary_factor", is_read_back ? share : (rope.rotated + 0.5) / head_dim);
  return object;
}

void write_sizes(const DecoderSpec& spec, json::Value& config) {
  const LayerSpec &first = spec.layer_specs.front(), &last = spec.layer_specs.back();
  int shared = 0;
  json::Value listed = json::Object{};
  for (size_t i = 0; i < spec.layer_specs.size(); ++i) {
    const AttentionSpec& attention = *spec.layer_specs[i].attention();
    shared += attention.shares_keys ? 1 : 0;
    if (attention.window == 0)
      listed.set(std::to_string(i),
                 json::Object{{"head_dim", spec.head_dim_of(attention)},
                              {"num_key_value_heads", spec.kv_heads_of(attention)}});
  }
  config.set("intermediate_size", first.ffn_width());
  config.set("num_key_value_heads", spec.kv_heads);
  config.set("head_dim", spec.head_dim);
  config.set("per_layer_config", std::move(listed));
  config.set("rms_norm_eps", json::shortest(spec.norm_eps));
  config.set("num_kv_shared_layers", shared);
  config.set("use_double_wide_mlp", last.ffn_width() > first.ffn_width());
}

void write(const DecoderSpec& spec, json::Value& config) {
  write_sizes(spec, config);
  json::Value ropes = json::Object{};
  bool keys_are_values = false;
  for (const LayerSpec& layer : spec.layer_specs) {
    const AttentionSpec& attention = *layer.attention();
    keys_are_values |= attention.keys_are_values;
    ropes.set(attention.window > 0 ? "sliding_attention" : "full_attention",
              rope_json(*attention.rope, spec.head_dim_of(attention)));
  }
  std::erase_if(config.as_object(), [](const json::Member& member) {
    return member.first == "rope_theta" || member.first == "rope_scaling" ||
           member.first == "rope_local_base_freq";
  });
  config.set("rope_parameters", std::move(ropes));
  config.set("attention_k_eq_v", keys_are_values);
  const ExpertsSpec* experts = spec.first<ExpertsSpec>();
  config.set("enable_moe_block", experts != nullptr);
  if (experts) {
    config.set("num_experts", experts->routing.experts);
    config.set("top_k_experts", experts->routing.chosen);
    config.set("moe_intermediate_size", experts->width);
  }
  config.set("hidden_size_per_layer_input", spec.layer_input_width());
  config.set("vocab_size_per_layer_input", spec.vocab);
  config.set("final_logit_softcapping",
             spec.logits_cap > 0 ? json::Value(json::shortest(spec.logits_cap)) : json::Value());
}

// A preset's layers: every fourth and the last have no window and heads twice as large, the later
// half shares its keys and values, and tokens bring something to each.
void shape(DecoderSpec& spec) {
  const size_t layers = spec.layer_specs.size(),
               shared_from = std::max<size_t>(2, (layers + 1) / 2);
  spec.logits_cap = 30;
  for (size_t i = 0; i < spec.layer_specs.size(); ++i) {
    LayerSpec& layer = spec.layer_specs[i];
    AttentionSpec& attention = *layer.attention();
    const bool is_full = i % 4 == 1 || i + 1 == layers;
    attention.window = is_full ? 0 : 24;
    attention.head_dim = is_full ? 2 * spec.head_dim : 0;
    attention.rope = is_full ? full_rope(2 * spec.head_dim) : RopeSpec{};
    attention.shares_keys = i >= shared_from;
    layer.put(LayerEndSpec{.input_width = 16});
  }
  settle(spec);
}

// Layers that share keys and values are stored with matrices that nothing reads.
bool is_unread(const DecoderSpec& spec, std::string_view name) {
  for (int i = 0; i < spec.layers; ++i) {
    if (spec.kv_layer(i) == i) continue;
    const std::string module = fmt::format("model.layers.{}.self_attn.", i);
    for (const char* part : {"k_proj.", "v_proj.", "k_norm.", "v_norm."})
      if (name.starts_with(module + part)) return true;
    const std::string block = fmt::format("blk.{}.", i);  // of a GGUF file
    for (const char* part : {"attn_k.", "attn_v.", "attn_k_norm."})
      if (name.starts_with(block + part)) return true;
  }
  return false;
}

// The router's norm is divided by sqrt(D); all experts stand in one tensor, gates before ups.
StoredAt stored(const DecoderSpec& spec, const TensorSpec& tensor) {
  const std::string at = fmt::format("model.layers.{}.", tensor.layer);
  if (tensor.role == TensorRole::router_norm)
    return {.tensor = tensor.name,
            .scale = static_cast<float>(1 / std::sqrt(static_cast<double>(spec.hidden)))};
  if (tensor.role == TensorRole::router) return {at + "router.proj.weight"};
  if (tensor.expert < 0) return {tensor.name};
  return stacked_at(spec, tensor, at + "experts.gate_up_proj", at + "experts.down_proj");
}

}  // namespace

extern const Family kGemma4{.name = "gemma4_text",
                            .architecture = "Gemma4ForCausalLM",
                            .is_unread = is_unread,
                            .qk_norm = true,
                            .windows = WindowRule::pattern,
                            .pattern = 6,
                            .is_tied = true,
                            .theta = 1e6,
                            .local_theta = 1e4,
                            .activation_key = "hidden_activation",
                            .curve = Nonlinearity::gelu_tanh,
                            .read_sizes = read_sizes,
                            .read = read,
                            .write = write,
                            .stored = stored,
                            .imply = settle,
                            .shape = shape};

}  // namespace invar
