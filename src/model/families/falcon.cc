// Falcon (7B, 40B, 180B): LayerNorms, attention and a feed-forward network without a gate beside
// each other, q, k and v in one tensor: for each key/value head its queries, its key, its value.
#include "base/error.h"
#include "model/families/family.h"

namespace invar {

namespace {

void read_sizes(ConfigReader& reader, DecoderSpec& spec) {
  const auto size = [&](std::string_view key, int64_t high) {
    return static_cast<int>(reader.integer(key, 1, high));
  };
  spec.hidden = size("hidden_size", kMaxWidth);
  spec.layers = size("num_hidden_layers", kMaxLayers);
  spec.heads = size("num_attention_heads", kMaxHeads);
  const bool is_new = reader.boolean("new_decoder_architecture", false);
  const bool shares_one = reader.boolean("multi_query", true);
  const int64_t groups = reader.integer("num_kv_heads", 1, kMaxHeads, spec.heads);
  spec.kv_heads = static_cast<int>(is_new || !shares_one ? groups : 1);
  if (spec.hidden % spec.heads)
    fail("{}: expected num_attention_heads to divide hidden_size, found {} and {}", reader.where(),
         spec.heads, spec.hidden);
  spec.head_dim = spec.hidden / spec.heads;
  spec.vocab = size("vocab_size", kMaxVocab);
  spec.max_positions =
      static_cast<int>(reader.integer("max_position_embeddings", 1, kMaxPositions, 2048));
  spec.norm_eps = static_cast<float>(reader.number("layer_norm_epsilon", 1e-20, 1, 1e-5));
  const int64_t width = reader.integer("ffn_hidden_size", 1, kMaxWidth, 4 * int64_t{spec.hidden});
  spec.set_layers({.parts = {AttentionSpec{}, DenseFfnSpec{.width = static_cast<int>(width)}}});
}

void imply(DecoderSpec& spec) {
  spec.norm = NormKind::layer;
  spec.head_dim = spec.hidden / spec.heads;
  change_layers(spec, [](LayerSpec& layer) {
    layer.ffn()->is_gated = false;
    layer.ffn()->is_parallel = true;
  });
}

void read(ConfigReader& reader, DecoderSpec& spec) {
  const bool is_new = reader.boolean("new_decoder_architecture", false);
  if (is_new)
    reader.boolean("parallel_attn", true);
  else
    check_neutral(reader, "parallel_attn", true);
  check_neutral(reader, "alibi", false);
  spec.has_own_ffn_norm =
      reader.integer("num_ln_in_parallel_attn", 1, 2, is_new ? 2 : 1) == 2 && is_new;
  spec.qkv_bias = spec.o_bias = spec.mlp_bias = reader.boolean("bias", false);
  const std::string_view harmless[] = {"apply_residual_connection_post_layernorm"};
  reader.ignore(harmless);
}

void write(const DecoderSpec& spec, json::Value& config) {
  const bool is_new = spec.has_own_ffn_norm || spec.kv_heads > 1;
  config.set("new_decoder_architecture", is_new);
  config.set("num_kv_heads", spec.kv_heads);
  config.set("multi_query", spec.kv_heads == 1);
  config.set("parallel_attn", true);
  config.set("alibi", false);
  config.set("bias", spec.qkv_bias);
  config.set("num_ln_in_parallel_attn", spec.has_own_ffn_norm ? 2 : 1);
  config.set("layer_norm_epsilon", json::shortest(spec.norm_eps));
  config.set("ffn_hidden_size", spec.layer(0).ffn_width());
}

StoredAt stored(const DecoderSpec& spec, const TensorSpec& tensor) {
  using enum TensorRole;
  const bool two = spec.has_own_ffn_norm;
  const auto in_layer = [&](std::string_view rest) {
    const bool is_bias = tensor.name.ends_with(".bias");
    return fmt::format("transformer.h.{}.{}.{}", tensor.layer, rest, is_bias ? "bias" : "weight");
  };
  const int64_t e = spec.head_dim, each = spec.heads / spec.kv_heads;
  // Rows of head h of so many for each key/value head, from the `first` of its group on.
  const auto in_group = [=](int64_t of_group, int64_t first) {
    return [=](int64_t row) {
      const int64_t head = row / e, group = head / of_group;
      return (group * (each + 2) + first + head % of_group) * e + row % e;
    };
  };
  switch (tensor.role) {
    case embedding:
      return {"transformer.word_embeddings.weight"};
    case final_norm:
    case final_norm_bias:
      return {renamed(tensor.name, {{"model.norm", "transformer.ln_f"}})};
    case head:
      return {tensor.name};
    case q:
    case q_bias:
      return {in_layer("self_attention.query_key_value"), in_group(each, 0)};
    case k:
    case k_bias:
      return {in_layer("self_attention.query_key_value"), in_group(1, each)};
    case v:
    case v_bias:
      return {in_layer("self_attention.query_key_value"), in_group(1, each + 1)};
    case o:
    case o_bias:
      return {in_layer("self_attention.dense")};
    case up:
    case up_bias:
      return {in_layer("mlp.dense_h_to_4h")};
    case down:
    case down_bias:
      return {in_layer("mlp.dense_4h_to_h")};
    case post_norm:
    case post_norm_bias:
      return {in_layer(two ? "ln_mlp" : "input_layernorm")};
    default:
      return {in_layer(two ? "ln_attn" : "input_layernorm")};
  }
}

}  // namespace

extern const Family kFalcon{.name = "falcon",
                            .architecture = "FalconForCausalLM",
                            .is_tied = true,
                            .activation_key = "activation",
                            .curve = Nonlinearity::gelu,
                            .read_sizes = read_sizes,
                            .read = read,
                            .write = write,
                            .stored = stored,
                            .imply = imply};

}  // namespace invar
