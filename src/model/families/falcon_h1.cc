// Falcon H1: in every layer a state space beside attention, of one norm; multipliers, with which
// matrices are read.
#include "base/error.h"
#include "model/families/hybrid.h"

namespace invar {

namespace {

// ---- Configuration

// So many numbers, or 1 each without the key.
std::vector<double> read_numbers(ConfigReader& reader, std::string_view key, size_t count) {
  std::vector<double> numbers;
  const json::Value* listed = reader.take(key);
  if (!listed) return std::vector<double>(count, 1.0);
  if (listed->is_array())
    for (const json::Value& number : listed->as_array())
      if (number.is_number()) numbers.push_back(number.as_number());
  if (numbers.size() != count || listed->as_array().size() != count)
    fail("{}: \"{}\": expected an array of {} numbers, found {}", reader.where(), key, count,
         json::excerpt(*listed));
  return numbers;
}

MultiplierSpec read_multipliers(ConfigReader& reader) {
  const auto number = [&](std::string_view key) { return reader.number(key, -1e6, 1e6, 1); };
  const std::vector<double> state = read_numbers(reader, "ssm_multipliers", 5);
  const std::vector<double> ffn = read_numbers(reader, "mlp_multipliers", 2);
  return {.attention_in = number("attention_in_multiplier"),
          .key = number("key_multiplier"),
          .attention_out = number("attention_out_multiplier"),
          .state_in = number("ssm_in_multiplier"),
          .state_out = number("ssm_out_multiplier"),
          .state_gate = state[0],
          .state_value = state[1],
          .state_key = state[2],
          .state_query = state[3],
          .state_step = state[4],
          .ffn_gate = ffn[0],
          .ffn_down = ffn[1]};
}

int read_width(ConfigReader& reader, const DecoderSpec& spec) {
  const double expand = reader.number("mamba_expand", 1e-3, 64, 2);
  const bool is_null = reader.is_null("mamba_d_ssm");
  const int of_expand = static_cast<int>(expand * spec.hidden);
  return read_size(reader, "mamba_d_ssm", kMaxWidth, is_null ? of_expand : 1024);
}

StateSpaceSpec read_state_space(ConfigReader& reader, const DecoderSpec& spec) {
  StateSpaceSpec s{.groups = read_size(reader, "mamba_n_groups", kMaxHeads, 1),
                   .heads = read_size(reader, "mamba_n_heads", kMaxHeads, 128),
                   .state_size = read_size(reader, "mamba_d_state", kMaxWidth, 256),
                   .taps = read_size(reader, "mamba_d_conv", 64, 4)};
  const int width = read_width(reader, spec);
  const json::Value* size = reader.take("mamba_d_head");
  const bool is_stated = size && *size != json::Value("auto");
  s.head_size = is_stated ? read_size(reader, "mamba_d_head", kMaxWidth, 1) : width / s.heads;
  if (s.width() != width)
    fail("{}: expected mamba_n_heads * mamba_d_head to be mamba_d_ssm, found {} and {}",
         reader.where(), s.width(), width);
  s.norm_groups = reader.boolean("mamba_rms_norm", false) ? s.groups : 0;
  s.norm_first = reader.boolean("mamba_norm_before_gate", true) && s.norm_groups > 0;
  s.conv_bias = reader.boolean("mamba_conv_bias", true);
  s.is_beside = true;
  read_step_limits(reader, s);
  return s;
}

void read(ConfigReader& reader, DecoderSpec& spec) {
  constexpr std::string_view kKinds[] = {"hybrid"};
  for (const char* key : {"layer_types", "layers_block_type"})
    read_kinds(reader, key, spec.layers, kKinds);
  const StateSpaceSpec state_space = read_state_space(reader, spec);
  change_layers(spec, [&](LayerSpec& layer) { layer.put(state_space); });
  spec.multipliers = read_multipliers(reader);
  spec.embedding_scale = static_cast<float>(reader.number("embedding_multiplier", 1e-9, 1e9, 1));
  spec.logits_divisor = static_cast<float>(1 / reader.number("lm_head_multiplier", 1e-9, 1e9, 1));
  for (const char* key : {"mamba_proj_bias", "projectors_bias"}) check_neutral(reader, key, false);
  check_neutral(reader, "mamba_use_mlp", true);
  check_neutral(reader, "attn_layer_indices", {});
  const std::string_view harmless[] = {"mamba_chunk_size", "num_logits_to_keep", "time_step_floor",
                                       "time_step_max",    "time_step_min",      "time_step_rank"};
  reader.ignore(harmless);
}

void write_multipliers(const MultiplierSpec& m, json::Value& config) {
  config.set("attention_in_multiplier", m.attention_in);
  config.set("key_multiplier", m.key);
  config.set("attention_out_multiplier", m.attention_out);
  config.set("ssm_in_multiplier", m.state_in);
  config.set("ssm_out_multiplier", m.state_out);
  config.set("ssm_multipliers",
             json::Array{m.state_gate, m.state_value, m.state_key, m.state_query, m.state_step});
  config.set("mlp_multipliers", json::Array{m.ffn_gate, m.ffn_down});
}

void write(const DecoderSpec& spec, json::Value& config) {
  const StateSpaceSpec& s = *spec.first<StateSpaceSpec>();
  config.set("mamba_n_groups", s.groups);
  config.set("mamba_n_heads", s.heads);
  config.set("mamba_d_head", s.head_size);
  config.set("mamba_d_ssm", s.width());
  config.set("mamba_d_state", s.state_size);
  config.set("mamba_d_conv", s.taps);
  config.set("mamba_conv_bias", s.conv_bias);
  config.set("mamba_rms_norm", s.norm_groups > 0);
  config.set("mamba_norm_before_gate", s.norm_first);
  write_step_limits(s, config);
  config.set("embedding_multiplier", json::shortest(spec.embedding_scale));
  config.set("lm_head_multiplier", 1 / double{spec.logits_divisor});
  write_multipliers(spec.multipliers.value_or(MultiplierSpec{}), config);
}

// A preset's layers.
void shape(DecoderSpec& spec) {
  spec.multipliers = MultiplierSpec{.attention_in = 0.9,
                                    .key = 0.7,
                                    .attention_out = 0.9,
                                    .state_in = 1.25,
                                    .state_out = 0.8,
                                    .state_gate = 0.7,
                                    .state_value = 1.1,
                                    .state_key = 0.9,
                                    .state_query = 0.8,
                                    .state_step = 0.6,
                                    .ffn_gate = 0.9,
                                    .ffn_down = 0.75};
  for (LayerSpec& layer : spec.layer_specs)
    layer.put(StateSpaceSpec{.groups = spec.kv_heads,
                             .heads = spec.heads,
                             .state_size = spec.head_dim,
                             .head_size = spec.head_dim,
                             .taps = 4,
                             .norm_groups = 0,
                             .conv_bias = true,
                             .is_beside = true});
}

// ---- Tensors

// A tensor's multiplier.
double multiplier_of(const MultiplierSpec& m, TensorRole role) {
  using enum TensorRole;
  switch (role) {
    case q:
    case v:
      return m.attention_in;
    case k:
      return m.attention_in * m.key;
    case k_bias:
      return m.key;
    case o:
    case o_bias:
      return m.attention_out;
    case recurrent_gate:
      return m.state_in * m.state_gate;
    case recurrent_v:
      return m.state_in * m.state_value;
    case recurrent_k:
      return m.state_in * m.state_key;
    case recurrent_q:
      return m.state_in * m.state_query;
    case recurrent_decay:
      return m.state_in * m.state_step;
    case recurrent_o:
      return m.state_out;
    case gate:
    case gate_bias:
      return m.ffn_gate;
    case down:
    case down_bias:
      return m.ffn_down;
    default:
      return 1;
  }
}

StoredAt stored(const DecoderSpec& spec, const TensorSpec& tensor) {
  const std::string at = fmt::format("model.layers.{}.mamba.", tensor.layer);
  StoredAt place{renamed(tensor.name, {{"mlp.", "feed_forward."},
                                       {"beside_layernorm", "input_layernorm"},
                                       {"post_attention_layernorm", "pre_ff_layernorm"},
                                       {"model.norm.", "model.final_layernorm."}})};
  if (tensor.name.starts_with(at))
    place = stored_state_space(*spec.layer(tensor.layer).find<StateSpaceSpec>(), tensor, at);
  if (spec.multipliers)
    place.scale = static_cast<float>(multiplier_of(*spec.multipliers, tensor.role));
  return place;
}

}  // namespace

extern const Family kFalconH1{.name = "falcon_h1",
                              .architecture = "FalconH1ForCausalLM",
                              .has_attention_bias = true,
                              .has_mlp_bias = true,
                              .has_states = true,
                              .read = read,
                              .write = write,
                              .stored = stored,
                              .shape = shape};

}  // namespace invar
