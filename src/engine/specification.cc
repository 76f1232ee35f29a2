#include "engine/specification.h"

#include <fmt/format.h>

#include <bit>

#include "base/canonical_json.h"

namespace invar {

namespace {

// The bits of an f64: every language can spell them.
std::string bits_of(double number) {
  return fmt::format("{:016x}", std::bit_cast<uint64_t>(number));
}

json::Value rope_json(const RopeSpec& rope) {
  json::Value object = json::Object{{"theta", bits_of(rope.theta)}};
  if (rope.scaling == RopeSpec::Scaling::none) return object;
  object.set("factor", bits_of(rope.factor));
  if (rope.scaling == RopeSpec::Scaling::linear) return object;
  object.set("low_freq_factor", bits_of(rope.low_freq_factor));
  object.set("high_freq_factor", bits_of(rope.high_freq_factor));
  object.set("original_max_position_embeddings", bits_of(rope.original_positions));
  return object;
}

const char* name_of(NormPlace norms) {
  return norms == NormPlace::before ? "before" : norms == NormPlace::after ? "after" : "both";
}

json::Value layer_json(const LayerSpec& layer) {
  const AttentionSpec& attention = layer.attention;
  return json::Object{{"window", attention.window},
                      {"attention_norms", name_of(attention.norms)},
                      {"rope", attention.rope ? rope_json(*attention.rope) : json::Value()},
                      {"intermediate_size", layer.ffn.width},
                      {"ffn_norms", name_of(layer.ffn.norms)}};
}

}  // namespace

Digest specification_digest(const ModelConfig& config) {
  const DecoderSpec& spec = config.spec;
  json::Array layers;
  for (const LayerSpec& layer : spec.layer_specs) layers.push_back(layer_json(layer));
  return json::digest_of(
      json::Object{{"hidden_size", spec.hidden},
                   {"num_attention_heads", spec.heads},
                   {"num_key_value_heads", spec.kv_heads},
                   {"head_dim", spec.head_dim},
                   {"vocab_size", spec.vocab},
                   {"max_position_embeddings", spec.max_positions},
                   {"rms_norm_eps", bits_of(static_cast<double>(spec.norm_eps))},
                   {"qkv_bias", spec.qkv_bias},
                   {"o_bias", spec.o_bias},
                   {"mlp_bias", spec.mlp_bias},
                   {"qk_norm", spec.qk_norm},
                   {"tie_word_embeddings", spec.tied_head},
                   {"layers", std::move(layers)},
                   {"eos_token_id", json::Array(config.eos_ids.begin(), config.eos_ids.end())}});
}

}  // namespace invar
