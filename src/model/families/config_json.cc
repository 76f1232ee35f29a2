// From a ModelConfig back to config.json and generation_config.json.
#include <utility>

#include "model/families/families.h"
#include "model/families/family.h"

namespace invar {

namespace {

void set_ids(json::Value& object, const ModelConfig& config) {
  object.set("bos_token_id", config.bos_id ? json::Value(*config.bos_id) : json::Value());
  json::Array eos(config.eos_ids.begin(), config.eos_ids.end());
  if (eos.size() == 1)
    object.set("eos_token_id", eos[0]);
  else
    object.set("eos_token_id", eos.empty() ? json::Value() : json::Value(std::move(eos)));
}

}  // namespace

json::Value config_json(const ModelConfig& config) {
  const DecoderSpec& spec = config.spec;
  const Family& family = family_of(spec);
  json::Value object = json::Object{
      {"architectures", json::Array{family.architecture}},
      {"model_type", family.name},
      {"torch_dtype", "bfloat16"},
      {family.activation_key, curve_names(family.curve)[0]},
      {"hidden_size", spec.hidden},
      {"num_hidden_layers", spec.layers},
      {"num_attention_heads", spec.heads},
      {"vocab_size", spec.vocab},
      {"max_position_embeddings", spec.max_positions},
      {"tie_word_embeddings", spec.tied_head},
  };
  if (!family.read_sizes) {
    object.set("intermediate_size", ffn_width_of(spec));
    object.set("num_key_value_heads", spec.kv_heads);
    object.set("head_dim", spec.head_dim);
    object.set(family.eps_key, json::shortest(spec.norm_eps));
  }
  write_ropes(spec, family, object);
  if (family.has_attention_bias) object.set("attention_bias", spec.o_bias);
  if (family.has_mlp_bias) object.set("mlp_bias", spec.mlp_bias);
  if (spec.mtp_layers > 0) object.set(family.module_key, spec.mtp_layers);
  write_windows(spec, family.windows, object);
  if (family.write) family.write(spec, object);
  if (sees_ahead(spec)) object.set("is_causal", false);
  set_ids(object, config);
  return object;
}

json::Value generation_config_json(const ModelConfig& config) {
  json::Value object = json::Object{};
  set_ids(object, config);
  return object;
}

}  // namespace invar
