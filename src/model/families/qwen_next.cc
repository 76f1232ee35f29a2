// Qwen3-Next and Qwen3.5: three layers with states (gated delta rule), then one that attends, whose
// output goes through a gate. Norms but those of the states' heads have the weight 1 + w; a quarter
// of a head turns.
#include <algorithm>

#include "base/error.h"
#include "model/families/experts.h"

namespace invar {

namespace {

constexpr int kFullInterval = 4;

bool is_recurrent(const json::Value& type) {
  return type == json::Value("linear_attention");
}

// Which layers have states: as layer_types says, else all but every full_attention_interval-th.
std::vector<bool> read_recurrent_layers(ConfigReader& reader, int layers) {
  std::vector<bool> recurrent(static_cast<size_t>(layers));
  const int64_t interval = reader.integer("full_attention_interval", 1, kMaxLayers, kFullInterval);
  for (size_t i = 0; i < recurrent.size(); ++i)
    recurrent[i] = (static_cast<int64_t>(i) + 1) % interval != 0;
  const json::Value* types = reader.take("layer_types");
  if (!types) return recurrent;
  const auto is_type = [](const json::Value& type) {
    return is_recurrent(type) || type == json::Value("full_attention");
  };
  if (!types->is_array() || std::ssize(types->as_array()) != layers ||
      !std::ranges::all_of(types->as_array(), is_type))
    fail(
        "{}: \"layer_types\": expected an array of {} names, full_attention or linear_attention, "
        "found {}",
        reader.where(), layers, json::excerpt(*types));
  std::transform(types->as_array().begin(), types->as_array().end(), recurrent.begin(),
                 is_recurrent);
  return recurrent;
}

void read_states(ConfigReader& reader, DecoderSpec& spec) {
  const RecurrentSpec recurrent{
      .key_heads = read_size(reader, "linear_num_key_heads", kMaxHeads, 16),
      .heads = read_size(reader, "linear_num_value_heads", kMaxHeads, 32),
      .key_size = read_size(reader, "linear_key_head_dim", kMaxWidth, 128),
      .value_size = read_size(reader, "linear_value_head_dim", kMaxWidth, 128),
      .taps = read_size(reader, "linear_conv_kernel_dim", 64, 4)};
  const std::vector<bool> has_states = read_recurrent_layers(reader, spec.layers);
  for (size_t i = 0; i < has_states.size(); ++i) {
    LayerSpec& layer = spec.layer_specs[i];
    if (has_states[i])
      layer.put(recurrent);
    else
      layer.attention()->has_output_gate = true;
  }
  // A module with an embedding of its own is not read.
  if (reader.boolean("mtp_use_dedicated_embeddings", false)) spec.mtp_layers = 0;
  const std::string_view harmless[] = {"mamba_ssm_dtype"};
  reader.ignore(harmless);
  check_neutral(reader, "attn_output_gate", true);
  // The curve of the gates behind states, by either name.
  const json::Value* curve = reader.take("output_gate_type");
  if (curve && *curve != json::Value("swish")) check_neutral(reader, "output_gate_type", "silu");
}

void read_next(ConfigReader& reader, DecoderSpec& spec) {
  read_gated_experts(reader, spec,
                     {.routing = {.experts = 512, .chosen = 10, .renormalised = true},
                      .width = 512,
                      .shared_width = 512});
  read_states(reader, spec);
}

void write_states(const DecoderSpec& spec, json::Value& config) {
  json::Array types;
  for (const LayerSpec& layer : spec.layer_specs) {
    const RecurrentSpec* recurrent = layer.find<RecurrentSpec>();
    types.push_back(recurrent ? "linear_attention" : "full_attention");
    if (!recurrent) continue;
    config.set("linear_num_key_heads", recurrent->key_heads);
    config.set("linear_num_value_heads", recurrent->heads);
    config.set("linear_key_head_dim", recurrent->key_size);
    config.set("linear_value_head_dim", recurrent->value_size);
    config.set("linear_conv_kernel_dim", recurrent->taps);
  }
  config.set("layer_types", std::move(types));
}

void write_next(const DecoderSpec& spec, json::Value& config) {
  write_gated_experts(spec, config);
  write_states(spec, config);
}

// A preset's layers get states of its own heads.
void shape_states(DecoderSpec& spec) {
  for (size_t i = 0; i < spec.layer_specs.size(); ++i) {
    LayerSpec& layer = spec.layer_specs[i];
    if ((i + 1) % kFullInterval != 0)
      layer.put(RecurrentSpec{.key_heads = spec.kv_heads,
                              .heads = spec.heads,
                              .key_size = spec.head_dim,
                              .value_size = spec.head_dim,
                              .taps = 4});
    if (layer.attention()) layer.attention()->has_output_gate = true;
  }
}

// ---- Tensors

using Rows = std::function<int64_t(int64_t)>;

// Rows in heads of `size`, which stand `from` and `step` apart.
Rows in_heads(int64_t size, int64_t step, int64_t from = 0) {
  return [=](int64_t row) { return row / size * step + from + row % size; };
}

// Queries of a head, then the gate of its output.
StoredAt stored_attention(const DecoderSpec& spec, const TensorSpec& tensor) {
  using enum TensorRole;
  const int64_t e = spec.head_dim;
  const std::string name = renamed(tensor.name, {{"q_gate", "q_proj"}});
  switch (tensor.role) {
    case q:
      return {name, [turned = rotation_rows(spec, false), at = in_heads(e, 2 * e)](int64_t row) {
                return at(turned(row));
              }};
    case q_gate:
      return {name, in_heads(e, 2 * e, e)};
    case k:
      return {name, rotation_rows(spec, false)};
    case q_norm:
    case k_norm:
      return {name, rotation_rows(spec, false), true};
    default:
      return {.tensor = name, .is_plus_one = tensor.shape.size() == 1};
  }
}

// A tap of a convolution whose channels are queries, keys and values.
StoredAt stored_tap(const RecurrentSpec& r, const TensorSpec& tensor) {
  const int64_t channels = 2 * r.key_width() + r.value_width();
  const int64_t first = tensor.role == TensorRole::conv_q   ? 0
                        : tensor.role == TensorRole::conv_k ? r.key_width()
                                                            : 2 * r.key_width();
  return {.tensor = fmt::format("model.layers.{}.linear_attn.conv1d.weight", tensor.layer),
          .row = [=, taps = r.taps,
                  tap = tensor.expert](int64_t channel) { return (first + channel) * taps + tap; },
          .shape = {channels, 1, r.taps}};
}

bool is_tap(TensorRole role) {
  return role == TensorRole::conv_q || role == TensorRole::conv_k || role == TensorRole::conv_v;
}

// The rows of a key head and of its value heads stand together: queries, keys, values, gates; and
// factors, decays.
StoredAt stored_next(const DecoderSpec& spec, const TensorSpec& tensor) {
  using enum TensorRole;
  const LayerSpec layer = tensor.layer < 0 ? LayerSpec{} : spec.layer(tensor.layer);
  if (!layer.find<RecurrentSpec>()) return stored_attention(spec, tensor);
  const RecurrentSpec& r = *layer.find<RecurrentSpec>();
  if (is_tap(tensor.role)) return stored_tap(r, tensor);
  const int64_t each = r.heads / r.key_heads, keys = r.key_size, values = each * r.value_size;
  const int64_t inputs = 2 * keys + 2 * values;
  const std::string module = fmt::format("model.layers.{}.linear_attn.", tensor.layer);
  const std::string qkvz = module + "in_proj_qkvz.weight", ba = module + "in_proj_ba.weight";
  switch (tensor.role) {
    case recurrent_q:
      return {qkvz, in_heads(keys, inputs)};
    case recurrent_k:
      return {qkvz, in_heads(keys, inputs, keys)};
    case recurrent_v:
      return {qkvz, in_heads(values, inputs, 2 * keys)};
    case recurrent_gate:
      return {qkvz, in_heads(values, inputs, 2 * keys + values)};
    case recurrent_factor:
      return {ba, in_heads(each, 2 * each)};
    case recurrent_decay:
      return {ba, in_heads(each, 2 * each, each)};
    case head_norm:
    case decay_bias:
    case decay_rate:
      return {tensor.name};
    default:
      return stored_attention(spec, tensor);
  }
}

// Each kind of rows stands for itself, but for queries, keys and values.
StoredAt stored_3_5(const DecoderSpec& spec, const TensorSpec& tensor) {
  using enum TensorRole;
  const LayerSpec layer = tensor.layer < 0 ? LayerSpec{} : spec.layer(tensor.layer);
  if (!layer.find<RecurrentSpec>()) return stored_attention(spec, tensor);
  const RecurrentSpec& r = *layer.find<RecurrentSpec>();
  if (is_tap(tensor.role)) return stored_tap(r, tensor);
  const std::string module = fmt::format("model.layers.{}.linear_attn.", tensor.layer);
  const auto behind = [&](int64_t rows) {
    return StoredAt{module + "in_proj_qkv.weight", [rows](int64_t row) { return rows + row; }};
  };
  switch (tensor.role) {
    case recurrent_q:
      return behind(0);
    case recurrent_k:
      return behind(r.key_width());
    case recurrent_v:
      return behind(2 * r.key_width());
    case recurrent_gate:
      return {module + "in_proj_z.weight"};
    case recurrent_factor:
      return {module + "in_proj_b.weight"};
    case recurrent_decay:
      return {module + "in_proj_a.weight"};
    case head_norm:
    case decay_bias:
    case decay_rate:
      return {tensor.name};
    default:
      return stored_attention(spec, tensor);
  }
}

void shape_next(DecoderSpec& spec) {
  imply_gated_experts(spec, {.renormalised = true});
  shape_states(spec);
}

}  // namespace

extern const Family kQwen3Next{.name = "qwen3_next",
                               .architecture = "Qwen3NextForCausalLM",
                               .qk_norm = true,
                               .has_attention_bias = true,
                               .head_dim = 256,
                               .has_states = true,
                               .rotated_share = 0.25,
                               .has_rotated_share = true,
                               .has_unannounced_module = true,
                               .module_prefix = "mtp.",
                               .module_reads_output = true,
                               .read = read_next,
                               .write = write_next,
                               .stored = stored_next,
                               .shape = shape_next};

extern const Family kQwen35{.name = "qwen3_5_text",
                            .architecture = "Qwen3_5ForCausalLM",
                            .qk_norm = true,
                            .has_attention_bias = true,
                            .head_dim = 256,
                            .has_states = true,
                            .has_image_positions = true,
                            .theta = 1e7,
                            .rotated_share = 0.25,
                            .has_rotated_share = true,
                            .module_key = "mtp_num_hidden_layers",
                            .module_prefix = "mtp.",
                            .module_reads_output = true,
                            .read = read_states,
                            .write = write_states,
                            .stored = stored_3_5,
                            .shape = shape_states};

extern const Family kQwen35Moe{.name = "qwen3_5_moe_text",
                               .architecture = "Qwen3_5MoeForCausalLM",
                               .qk_norm = true,
                               .has_attention_bias = true,
                               .head_dim = 256,
                               .has_dense_layers = false,
                               .has_states = true,
                               .has_image_positions = true,
                               .theta = 1e7,
                               .rotated_share = 0.25,
                               .has_rotated_share = true,
                               .module_key = "mtp_num_hidden_layers",
                               .module_prefix = "mtp.",
                               .module_reads_output = true,
                               .read = read_next,
                               .write = write_next,
                               .stored = stored_3_5,
                               .shape = shape_next};

}  // namespace invar
