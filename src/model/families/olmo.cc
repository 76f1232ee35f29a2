// OLMo 2 and 3, EXAONE 4: norms stand behind attention and the feed-forward network. OLMo's q/k
// norm is one of all heads.
#include <fmt/format.h>

#include "model/families/hybrid.h"

namespace invar {

namespace {

void put_norms_behind(DecoderSpec& spec) {
  change_layers(spec, [](LayerSpec& layer) {
    layer.attention()->norms = layer.ffn()->norms = NormPlace::after;
  });
}

void imply_olmo(DecoderSpec& spec) {
  spec.joint_qk_norm = true;
  put_norms_behind(spec);
}

// Where some layers have windows, the others do not rotate.
void read_exaone(ConfigReader&, DecoderSpec& spec) {
  bool has_window = false;
  for (const LayerSpec& layer : spec.layer_specs) has_window |= layer.attention()->window > 0;
  if (has_window)
    change_layers(spec, [](LayerSpec& layer) {
      if (layer.attention()->window == 0) layer.attention()->rope = std::nullopt;
    });
}

// ---- OLMo Hybrid: three layers with states (gated delta rule), then one that attends without a
// rotation and has its norms behind its parts.

constexpr std::string_view kKinds[] = {"linear_attention", "full_attention"};
constexpr float kHeadNormEps = 1e-5f;  // whatever the model's is

void put_norms_behind(LayerSpec& layer) {
  layer.attention()->norms = layer.ffn()->norms = NormPlace::after;
}

// The published ones do not: their rope_theta is null.
bool turns(ConfigReader& reader) {
  const json::Value* older = reader.take("rope_theta");
  const json::Value* rope = reader.take("rope_parameters");
  const json::Value* theta = rope && rope->is_object() ? rope->find("rope_theta") : older;
  return theta && theta->is_number();
}

void read_hybrid(ConfigReader& reader, DecoderSpec& spec) {
  const int size = 3 * spec.hidden / (4 * spec.heads);
  RecurrentSpec recurrent{
      .key_heads = read_size(reader, "linear_num_key_heads", kMaxHeads, spec.heads),
      .heads = read_size(reader, "linear_num_value_heads", kMaxHeads, spec.heads),
      .key_size = read_size(reader, "linear_key_head_dim", kMaxWidth, size),
      .taps = read_size(reader, "linear_conv_kernel_dim", 64, 4),
      .doubles = reader.boolean("linear_allow_neg_eigval", true),
      .norm_eps = kHeadNormEps};
  recurrent.value_size =
      read_size(reader, "linear_value_head_dim", kMaxWidth, 2 * recurrent.key_size);
  const std::vector<size_t> kinds = read_kinds(reader, "layer_types", spec.layers, kKinds);
  const bool is_turning = turns(reader);
  for (size_t i = 0; i < spec.layer_specs.size(); ++i) {
    LayerSpec& layer = spec.layer_specs[i];
    layer.ffn()->norms = NormPlace::before;
    if (kinds.empty() ? i % 4 == 3 : kinds[i] == 1)
      put_norms_behind(layer);
    else
      layer.put(recurrent);
    if (!is_turning && layer.attention()) layer.attention()->rope = std::nullopt;
  }
  const std::string_view harmless[] = {"linear_a_log_min", "linear_a_log_max", "linear_dt_min",
                                       "linear_dt_max", "linear_dt_init_floor"};
  reader.ignore(harmless);
}

void write_hybrid(const DecoderSpec& spec, json::Value& config) {
  json::Array types;
  for (const LayerSpec& layer : spec.layer_specs)
    types.push_back(kKinds[layer.attention() ? 1 : 0]);
  config.set("layer_types", std::move(types));
  const AttentionSpec* attention = spec.first<AttentionSpec>();
  if (!attention || !attention->rope) {
    std::erase_if(config.as_object(),
                  [](const json::Member& member) { return member.first.starts_with("rope_"); });
    config.set("rope_theta", nullptr);  // without the key transformers turns
  }
  const RecurrentSpec* recurrent = spec.first<RecurrentSpec>();
  if (!recurrent) return;
  config.set("linear_num_key_heads", recurrent->key_heads);
  config.set("linear_num_value_heads", recurrent->heads);
  config.set("linear_key_head_dim", recurrent->key_size);
  config.set("linear_value_head_dim", recurrent->value_size);
  config.set("linear_conv_kernel_dim", recurrent->taps);
  config.set("linear_allow_neg_eigval", recurrent->doubles);
}

void imply_hybrid(DecoderSpec& spec) {
  spec.joint_qk_norm = true;
}

// A preset's layers.
void shape_hybrid(DecoderSpec& spec) {
  for (size_t i = 0; i < spec.layer_specs.size(); ++i)
    if (i % 4 == 3)
      put_norms_behind(spec.layer_specs[i]), spec.layer_specs[i].attention()->rope = std::nullopt;
    else
      spec.layer_specs[i].put(RecurrentSpec{.key_heads = spec.kv_heads,
                                            .heads = spec.heads,
                                            .key_size = spec.head_dim,
                                            .value_size = spec.head_dim,
                                            .taps = 4,
                                            .doubles = true,
                                            .norm_eps = kHeadNormEps});
}

StoredAt stored_hybrid(const DecoderSpec& spec, const TensorSpec& tensor) {
  using enum TensorRole;
  const LayerSpec layer = tensor.layer < 0 ? LayerSpec{} : spec.layer(tensor.layer);
  const RecurrentSpec* recurrent = layer.find<RecurrentSpec>();
  if (!recurrent) return {tensor.name};
  const std::string at = fmt::format("model.layers.{}.", tensor.layer);
  const int64_t keys = recurrent->key_width(), values = recurrent->value_width();
  const auto tap = [&](const char* name, int64_t channels) {
    return stored_tap(tensor, at + "linear_attn." + name, channels, 0, recurrent->taps);
  };
  switch (tensor.role) {
    case input_norm:
      return {at + "attention_layer_norm.weight"};
    case post_norm:
      return {at + "feedforward_layer_norm.weight"};
    case conv_q:
      return tap("q_conv1d.weight", keys);
    case conv_k:
      return tap("k_conv1d.weight", keys);
    case conv_v:
      return tap("v_conv1d.weight", values);
    case recurrent_gate:
      return {at + "linear_attn.g_proj.weight"};
    case recurrent_o:
      return {at + "linear_attn.o_proj.weight"};
    case head_norm:
      return {at + "linear_attn.o_norm.weight"};
    default:
      return {tensor.name};
  }
}

// As transformers keeps it in memory, and as it saves the first norm of layers that attend.
StoredAt stored_hybrid_otherwise(const DecoderSpec& spec, const TensorSpec& tensor) {
  using enum TensorRole;
  const LayerSpec layer = tensor.layer < 0 ? LayerSpec{} : spec.layer(tensor.layer);
  const RecurrentSpec* recurrent = layer.find<RecurrentSpec>();
  if (tensor.role == attention_out_norm)
    return {fmt::format("model.layers.{}.feedforward_layer_norm.weight", tensor.layer)};
  if (!recurrent || tensor.role == input_norm || tensor.role == post_norm) return {tensor.name};
  const int64_t keys = recurrent->key_width(), channels = 2 * keys + recurrent->value_width();
  const auto tap = [&](int64_t first) {
    const std::string name = fmt::format("model.layers.{}.linear_attn.conv1d.weight", tensor.layer);
    return stored_tap(tensor, name, channels, first, recurrent->taps);
  };
  if (tensor.role == conv_q) return tap(0);
  if (tensor.role == conv_k) return tap(keys);
  if (tensor.role == conv_v) return tap(2 * keys);
  return stored_hybrid(spec, tensor);
}

}  // namespace

extern const Family kOlmo2{.name = "olmo2",
                           .architecture = "Olmo2ForCausalLM",
                           .qk_norm = true,
                           .has_attention_bias = true,
                           .imply = imply_olmo};

extern const Family kOlmoHybrid{.name = "olmo_hybrid",
                                .architecture = "OlmoHybridForCausalLM",
                                .qk_norm = true,
                                .has_states = true,
                                .read = read_hybrid,
                                .write = write_hybrid,
                                .stored = stored_hybrid,
                                .stored_otherwise = stored_hybrid_otherwise,
                                .imply = imply_hybrid,
                                .shape = shape_hybrid};

extern const Family kOlmo3{.name = "olmo3",
                           .architecture = "Olmo3ForCausalLM",
                           .qk_norm = true,
                           .has_attention_bias = true,
                           .windows = WindowRule::pattern,
                           .pattern = 4,
                           .theta = 500000,
                           .local_theta = 500000,
                           .imply = imply_olmo};

extern const Family kExaone4{.name = "exaone4",
                             .architecture = "Exaone4ForCausalLM",
                             .qk_norm = true,
                             .windows = WindowRule::pattern,
                             .pattern = 4,
                             .read = read_exaone,
                             .imply = put_norms_behind};

}  // namespace invar
