// Gemma 2 and 3: norms of weight 1 + w on both sides of each part, a scaled embedding, gates of
// tanh-GELU, windows in a pattern. Gemma 2 caps scores and logits; Gemma 3 norms queries and keys
// and has a rotation of its own for layers with windows.
#include <cmath>

#include "model/families/family.h"

namespace invar {

namespace {

void imply(DecoderSpec& spec) {
  spec.embedding_scale = static_cast<float>(std::sqrt(static_cast<double>(spec.hidden)));
  change_layers(spec, [&](LayerSpec& layer) {
    layer.attention()->norms = layer.ffn()->norms = NormPlace::both;
    if (layer.attention()->score_scale == 0)
      layer.attention()->score_scale = 1 / std::sqrt(static_cast<double>(spec.head_dim));
  });
}

float read_cap(ConfigReader& reader, std::string_view key, double fallback) {
  if (reader.is_null(key)) return reader.take(key), 0;
  return static_cast<float>(reader.number(key, 0, 1e6, fallback));
}

void read_scores(ConfigReader& reader, DecoderSpec& spec, double cap) {
  const double width = reader.number("query_pre_attn_scalar", 1, 1e6, 256);
  const float score_cap = read_cap(reader, "attn_logit_softcapping", cap);
  change_layers(spec, [&](LayerSpec& layer) {
    layer.attention()->score_scale = 1 / std::sqrt(width);
    layer.attention()->score_cap = score_cap;
  });
  const std::string_view harmless[] = {"cache_implementation", "hidden_act",
                                       "_sliding_window_pattern"} /* beside layer_types */;
  reader.ignore(harmless);
}

void read_2(ConfigReader& reader, DecoderSpec& spec) {
  read_scores(reader, spec, 50);
  check_neutral(reader, "use_bidirectional_attention", false);
  spec.logits_cap = read_cap(reader, "final_logit_softcapping", 30);
}

void read_3(ConfigReader& reader, DecoderSpec& spec) {
  read_scores(reader, spec, 0);
  if (reader.boolean("use_bidirectional_attention", false))
    see_ahead(reader, spec, [](int window) { return window / 2 + 1; });
  spec.logits_cap = read_cap(reader, "final_logit_softcapping", 0);
}

void write(const DecoderSpec& spec, json::Value& config) {
  const AttentionSpec& attention = *spec.first<AttentionSpec>();
  const auto cap = [](float value) {
    return value > 0 ? json::Value(json::shortest(value)) : json::Value();
  };
  const double scale = attention.score_scale;
  config.set("query_pre_attn_scalar", std::round(1 / (scale * scale)));
  config.set("attn_logit_softcapping", cap(attention.score_cap));
  config.set("final_logit_softcapping", cap(spec.logits_cap));
}

StoredAt stored(const DecoderSpec&, const TensorSpec& tensor) {
  return {.tensor = tensor.name, .is_plus_one = tensor.shape.size() == 1};
}

}  // namespace

extern const Family kGemma2{.name = "gemma2",
                            .architecture = "Gemma2ForCausalLM",
                            .head_dim = 256,
                            .windows = WindowRule::pattern,
                            .pattern = 2,
                            .is_tied = true,
                            .activation_key = "hidden_activation",
                            .curve = Nonlinearity::gelu_tanh,
                            .read = read_2,
                            .write = write,
                            .stored = stored,
                            .imply = imply};

extern const Family kGemma3{.name = "gemma3_text",
                            .architecture = "Gemma3ForCausalLM",
                            .qk_norm = true,
                            .head_dim = 256,
                            .windows = WindowRule::pattern,
                            .pattern = 6,
                            .is_tied = true,
                            .theta = 1e6,
                            .local_theta = 1e4,
                            .activation_key = "hidden_activation",
                            .curve = Nonlinearity::gelu_tanh,
                            .read = read_3,
                            .write = write,
                            .stored = stored,
                            .imply = imply};

}  // namespace invar
