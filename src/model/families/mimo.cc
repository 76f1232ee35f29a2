// MiMo V2 Flash: values that are narrower than keys, and scaled; most layers have a window, sinks
// and key/value heads of their own; experts behind some dense layers.
#include "base/error.h"
#include "model/families/hybrid.h"

namespace invar {

namespace {

constexpr float kValueScale = 0.707f;

void read_sizes(ConfigReader& reader, DecoderSpec& spec) {
  read_usual_sizes(reader, spec,
                   {.hidden = 4096,
                    .layers = 48,
                    .heads = 64,
                    .kv_heads = 4,
                    .head_dim = 192,
                    .vocab = 152576,
                    .max_positions = 131072});
  const double eps = reader.number("layernorm_epsilon", 1e-20, 1, 1e-5);
  spec.norm_eps = static_cast<float>(reader.number("rms_norm_eps", 1e-20, 1, eps));
  const bool is_unscaled = reader.is_null("attention_value_scale");
  const double scale =
      reader.number("attention_value_scale", 1e-6, 1e6, is_unscaled ? 1.0 : kValueScale);
  const int value_dim = read_size(reader, "v_head_dim", kMaxWidth, 128);
  const int width = read_size(reader, "intermediate_size", kMaxWidth, 16384);
  spec.set_layers(
      {.parts = {AttentionSpec{.value_dim = value_dim, .value_scale = static_cast<float>(scale)},
                 DenseFfnSpec{.width = width}}});
  check_neutral(reader, "swa_num_attention_heads", spec.heads);
  for (const char* key : {"swa_head_dim", "swa_qk_head_dim"})
    check_neutral(reader, key, spec.head_dim);
  check_neutral(reader, "swa_v_head_dim", value_dim);
}

// A list of a 0 or a 1 for each layer; without the key, none.
std::vector<bool> read_marks(ConfigReader& reader, std::string_view key, int layers) {
  const json::Value* listed = reader.take(key);
  if (!listed) return {};
  std::vector<bool> marks;
  if (listed->is_array())
    for (const json::Value& mark : listed->as_array())
      if (mark == json::Value(0) || mark == json::Value(1)) marks.push_back(mark == json::Value(1));
  if (std::ssize(marks) != layers || std::ssize(listed->as_array()) != layers)
    fail("{}: \"{}\": expected an array of {} numbers 0 or 1, found {}", reader.where(), key,
         layers, json::excerpt(*listed));
  return marks;
}

// A window of sliding_window_size is of positions before one's own. Older files mark layers with
// windows; where nothing says it, the first and every sixth have none.
void read_windows(ConfigReader& reader, DecoderSpec& spec) {
  const std::vector<bool> marks = read_marks(reader, "hybrid_layer_pattern", spec.layers);
  const int before = read_size(reader, "sliding_window_size", kMaxPositions, 128);
  const bool says_before = reader.has("sliding_window_size") || !reader.has("sliding_window");
  const int window =
      says_before ? before + 1 : read_size(reader, "sliding_window", kMaxPositions, before + 1);
  const bool has_types = marks.empty() && reader.has("layer_types");
  for (int i = 0; i < spec.layers; ++i) {
    int& own = spec.layer_specs[static_cast<size_t>(i)].attention()->window;
    const bool is_marked = marks.empty() ? i > 0 && (i + 1) % 6 : marks[static_cast<size_t>(i)];
    own = (has_types ? own > 0 : is_marked) ? window : 0;
  }
}

void read_heads(ConfigReader& reader, DecoderSpec& spec) {
  const int kv_heads = read_size(reader, "swa_num_key_value_heads", kMaxHeads, 2 * spec.kv_heads);
  const bool of_windows = reader.boolean("add_swa_attention_sink_bias", true);
  const bool of_others = reader.boolean("add_full_attention_sink_bias", false);
  const double theta = reader.number("swa_rope_theta", 1, 1e15, 0);
  change_layers(spec, [&](LayerSpec& layer) {
    AttentionSpec& attention = *layer.attention();
    const bool has_window = attention.window > 0;
    attention.has_sinks = has_window ? of_windows : of_others;
    if (has_window && kv_heads != spec.kv_heads) attention.kv_heads = kv_heads;
    if (has_window && theta > 0) attention.rope->theta = theta;
  });
}

void read_networks(ConfigReader& reader, DecoderSpec& spec) {
  constexpr std::string_view kNetworks[] = {"dense", "sparse"};
  const ExpertsSpec experts{.routing = read_sigmoid_routing(reader, 256, 8),
                            .width = read_size(reader, "moe_intermediate_size", kMaxWidth, 2048),
                            .has_choice_bias = true};
  const std::vector<bool> marks = read_marks(reader, "moe_layer_freq", spec.layers);
  const std::vector<size_t> kinds = read_kinds(reader, "mlp_layer_types", spec.layers, kNetworks);
  set_experts(spec, experts, [&](int i) {
    if (!kinds.empty()) return kinds[static_cast<size_t>(i)] == 1;
    return marks.empty() ? i > 0 : marks[static_cast<size_t>(i)];
  });
  check_neutral(reader, "n_shared_experts", 0);
  check_neutral(reader, "scoring_func", "sigmoid");
  check_neutral(reader, "topk_method", "noaux_tc");
}

void read(ConfigReader& reader, DecoderSpec& spec) {
  read_windows(reader, spec);
  read_ropes(reader, family_of(spec), spec);
  read_heads(reader, spec);
  read_networks(reader, spec);
  spec.qkv_bias = reader.boolean("attention_bias", false);
  const std::string_view harmless[] = {
      "attention_chunk_size"};  // of the kernels of another library
  reader.ignore(harmless);
}

void write_attention(const DecoderSpec& spec, json::Value& config) {
  const AttentionSpec& first = *spec.first<AttentionSpec>();
  config.set("num_key_value_heads", spec.kv_heads);
  config.set("head_dim", spec.head_dim);
  config.set("v_head_dim", first.value_dim);
  config.set("attention_value_scale", json::shortest(first.value_scale));
  config.set("layernorm_epsilon", json::shortest(spec.norm_eps));
  config.set("attention_bias", spec.qkv_bias);
  for (const LayerSpec& layer : spec.layer_specs) {
    const AttentionSpec& attention = *layer.attention();
    const bool has_window = attention.window > 0;
    config.set(has_window ? "add_swa_attention_sink_bias" : "add_full_attention_sink_bias",
               attention.has_sinks);
    if (has_window) config.set("swa_num_key_value_heads", spec.kv_heads_of(attention));
  }
}

void write(const DecoderSpec& spec, json::Value& config) {
  write_attention(spec, config);
  json::Array kinds;
  for (const LayerSpec& layer : spec.layer_specs)
    kinds.emplace_back(layer.experts() ? "sparse" : "dense");
  config.set("mlp_layer_types", std::move(kinds));
  if (const DenseFfnSpec* dense = spec.first<DenseFfnSpec>())
    config.set("intermediate_size", dense->width);
  const ExpertsSpec* experts = spec.first<ExpertsSpec>();
  if (!experts) return;
  write_grouped_experts(*experts, config);
}

// A preset's layers: the first is dense and has no window, nor has every third.
void shape(DecoderSpec& spec) {
  const Routing how{.experts = 8,
                    .chosen = 2,
                    .score = ExpertScore::sigmoid,
                    .renormalised = true,
                    .epsilon = 1e-20f};
  for (size_t i = 0; i < spec.layer_specs.size(); ++i) {
    LayerSpec& layer = spec.layer_specs[i];
    AttentionSpec& attention = *layer.attention();
    const bool has_window = i % 3 != 0;
    attention.value_dim = spec.head_dim / 2;
    attention.value_scale = kValueScale;
    attention.window = has_window ? 24 : 0;
    attention.has_sinks = has_window;
    attention.rope = RopeSpec{.theta = has_window ? 1e4 : 5e6, .rotated = spec.head_dim / 8 * 2};
    if (has_window && spec.heads % (2 * spec.kv_heads) == 0) attention.kv_heads = 2 * spec.kv_heads;
    if (i > 0)
      layer.put(ExpertsSpec{.routing = how, .width = layer.ffn_width(), .has_choice_bias = true});
  }
}

StoredAt stored(const DecoderSpec& spec, const TensorSpec& tensor) {
  using enum TensorRole;
  switch (tensor.role) {
    case q:
    case k:
    case q_bias:
    case k_bias:
      return {tensor.name, rotation_rows(spec, false)};
    case sinks:
      return {fmt::format("model.layers.{}.self_attn.attention_sink_bias", tensor.layer)};
    default:
      return {tensor.name};
  }
}

// As transformers keeps it in memory.
StoredAt stored_otherwise(const DecoderSpec&, const TensorSpec& tensor) {
  return {tensor.name};
}

}  // namespace

extern const Family kMiMoV2{.name = "mimo_v2_flash",
                            .architecture = "MiMoV2FlashForCausalLM",
                            .unread = "model.mtp.",
                            .windows = WindowRule::pattern,
                            .pattern = 6,
                            .theta = 5e6,
                            .local_theta = 1e4,
                            .rotated_share = 0.334,
                            .has_rotated_share = true,
                            .read_sizes = read_sizes,
                            .read = read,
                            .write = write,
                            .stored = stored,
                            .stored_otherwise = stored_otherwise,
                            .shape = shape};

}  // namespace invar
