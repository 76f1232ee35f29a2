// GLM 4: norms on both sides of each part, half of a head turns, in pairs of neighbours; gate and
// up are one tensor.
#include "model/families/family.h"

namespace invar {

namespace {

void imply(DecoderSpec& spec) {
  change_layers(spec, [](LayerSpec& layer) {
    layer.attention()->norms = layer.ffn()->norms = NormPlace::both;
  });
}

void read(ConfigReader& reader, DecoderSpec& spec) {
  spec.qkv_bias = reader.boolean("attention_bias", true);
}

void write(const DecoderSpec& spec, json::Value& config) {
  config.set("attention_bias", spec.qkv_bias);
}

StoredAt stored(const DecoderSpec& spec, const TensorSpec& tensor) {
  using enum TensorRole;
  const std::string name =
      renamed(tensor.name, {{"post_attention_layernorm", "post_self_attn_layernorm"},
                            {"pre_feedforward_layernorm", "post_attention_layernorm"},
                            {"post_feedforward_layernorm", "post_mlp_layernorm"},
                            {"gate_proj", "gate_up_proj"},
                            {"up_proj", "gate_up_proj"}});
  switch (tensor.role) {
    case q:
    case k:
    case q_bias:
    case k_bias:
      return {name, rotation_rows(spec, true)};
    case gate:
      return {name, [](int64_t i) { return i; }};
    case up:
      return {name,
              [width = spec.layer(tensor.layer).ffn_width()](int64_t i) { return width + i; }};
    default:
      return {name};
  }
}

}  // namespace

extern const Family kGlm4{.name = "glm4",
                          .architecture = "Glm4ForCausalLM",
                          .head_dim = 128,
                          .rotated_share = 0.5,
                          .has_rotated_share = true,
                          .read = read,
                          .write = write,
                          .stored = stored,
                          .imply = imply};

}  // namespace invar
