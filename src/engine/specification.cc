#include "engine/specification.h"

#include <fmt/format.h>

#include <bit>
#include <tuple>

#include "base/canonical_json.h"

namespace invar {

namespace {

// The bits of an f64: every language can spell them.
std::string bits_of(double number) {
  return fmt::format("{:016x}", std::bit_cast<uint64_t>(number));
}

// Adds the settings that only some families' rotations have.
json::Value& add_turns(json::Value& object, const RopeSpec& rope) {
  if (rope.rotated > 0) object.set("rotated", rope.rotated);
  if (rope.spans_head) object.set("spans_head", true);
  if (rope.attention_factor != 1) object.set("attention_factor", bits_of(rope.attention_factor));
  return object;
}

json::Value yarn_json(json::Value object, const RopeSpec& rope) {
  object.set("scaling", "yarn");
  object.set("factor", bits_of(rope.factor));
  object.set("beta_fast", bits_of(rope.beta_fast));
  object.set("beta_slow", bits_of(rope.beta_slow));
  if (!rope.truncate) object.set("truncate", false);
  object.set("original_max_position_embeddings", bits_of(rope.original_positions));
  return object;
}

json::Value longrope_json(json::Value object, const RopeSpec& rope) {
  json::Array factors;
  for (const double factor : rope.is_long ? rope.long_factors : rope.short_factors)
    factors.push_back(bits_of(factor));
  object.set("scaling", "longrope");
  object.set("factors", std::move(factors));
  object.set("original_max_position_embeddings", bits_of(rope.original_positions));
  return object;
}

json::Value rope_json(const RopeSpec& rope) {
  json::Value object = json::Object{{"theta", bits_of(rope.theta)}};
  add_turns(object, rope);
  if (rope.scaling == RopeSpec::Scaling::none) return object;
  if (rope.scaling == RopeSpec::Scaling::yarn) return yarn_json(std::move(object), rope);
  if (rope.scaling == RopeSpec::Scaling::longrope) return longrope_json(std::move(object), rope);
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

const char* name_of(ExpertScore score) {
  switch (score) {
    case ExpertScore::softmax:
      return "softmax";
    case ExpertScore::sigmoid:
      return "sigmoid";
    case ExpertScore::softmax_of_chosen:
      return "softmax_of_chosen";
    case ExpertScore::sigmoid_of_chosen:
      return "sigmoid_of_chosen";
  }
  return "";
}

const char* name_of(Nonlinearity curve) {
  switch (curve) {
    case Nonlinearity::silu:
      return "silu";
    case Nonlinearity::gelu_tanh:
      return "gelu_tanh";
    case Nonlinearity::gelu:
      return "gelu";
    case Nonlinearity::clamped:
      return "clamped";
    case Nonlinearity::relu_squared:
      return "relu_squared";
  }
  return "";
}

// Settings that are as in most families are left out.
json::Value experts_json(const ExpertsSpec& experts) {
  const Routing& how = experts.routing;
  json::Value object = json::Object{{"count", how.experts},
                                    {"chosen", how.chosen},
                                    {"intermediate_size", experts.width},
                                    {"score", name_of(how.score)}};
  if (how.groups > 1) {
    object.set("groups", how.groups);
    object.set("chosen_groups", how.chosen_groups);
    if (how.pair_score) object.set("pair_score", true);
  }
  if (experts.has_choice_bias) object.set("choice_bias", true);
  if (how.renormalised) object.set("renormalised", true);
  if (how.epsilon != 0) object.set("epsilon", bits_of(how.epsilon));
  if (how.scale != 1) object.set("scale", bits_of(how.scale));
  if (experts.latent > 0) object.set("latent_size", experts.latent);
  if (experts.shared_width > 0) object.set("shared_intermediate_size", experts.shared_width);
  if (experts.shared_gate) object.set("shared_gate", true);
  if (experts.has_biases) object.set("biases", true);
  if (experts.curve != Nonlinearity::silu) object.set("curve", name_of(experts.curve));
  if (!experts.is_gated) object.set("ungated", true);
  if (experts.weighs_inputs) object.set("weighs_inputs", true);
  return object;
}

// Adds its numbers to a layer's: a function of each kind of part.
void add(json::Value& object, const AttentionSpec& attention) {
  object.set("window", attention.window);
  object.set("attention_norms", name_of(attention.norms));
  object.set("rope", attention.rope ? rope_json(*attention.rope) : json::Value());
  if (const auto& latent = attention.latent)
    object.set("latent", json::Object{{"rank", latent->rank},
                                      {"turning", latent->rope},
                                      {"still", latent->nope},
                                      {"value", latent->value},
                                      {"query_rank", latent->query_rank}});
  if (attention.latent && attention.latent->indexer) {
    const IndexerSpec& indexer = *attention.latent->indexer;
    object.set("indexer", json::Object{{"heads", indexer.heads},
                                       {"size", indexer.size},
                                       {"chosen", indexer.most},
                                       {"shared", indexer.is_shared}});
  }
  if (attention.score_scale != 0) object.set("score_scale", bits_of(attention.score_scale));
  if (attention.score_cap != 0) object.set("score_cap", bits_of(attention.score_cap));
  if (attention.has_sinks) object.set("sinks", true);
  if (attention.has_output_gate) object.set("output_gate", true);
  if (attention.kv_heads > 0) object.set("num_key_value_heads", attention.kv_heads);
  if (attention.head_dim > 0) object.set("head_dim", attention.head_dim);
  if (attention.has_value_norm) object.set("value_norm", true);
  if (attention.keys_are_values) object.set("keys_are_values", true);
  if (attention.shares_keys) object.set("shares_keys", true);
  if (attention.value_dim > 0) object.set("value_dim", attention.value_dim);
  if (attention.value_scale != 1) object.set("value_scale", bits_of(double{attention.value_scale}));
  if (attention.chunk > 0) object.set("chunk", attention.chunk);
  if (attention.sees_ahead) object.set("sees_ahead", true);
  if (attention.has_unit_heads) object.set("unit_heads", true);
  if (const auto& growth = attention.growth)
    object.set("growth",
               json::Object{{"scale", bits_of(growth->scale)}, {"step", bits_of(growth->step)}});
}

void add(json::Value& object, const RecurrentSpec& recurrent) {
  object.set("recurrent", json::Object{{"key_heads", recurrent.key_heads},
                                       {"heads", recurrent.heads},
                                       {"key_size", recurrent.key_size},
                                       {"value_size", recurrent.value_size},
                                       {"taps", recurrent.taps},
                                       {"doubles", recurrent.doubles},
                                       {"norm_eps", bits_of(double{recurrent.norm_eps})}});
}

void add(json::Value& object, const ChannelDeltaSpec& delta) {
  object.set("channel_delta",
             json::Object{{"heads", delta.heads}, {"size", delta.size}, {"taps", delta.taps}});
}

void add(json::Value& object, const ShortConvSpec& conv) {
  object.set("short_conv", json::Object{{"taps", conv.taps}});
}

void add(json::Value& object, const StateSpaceSpec& s) {
  json::Value own = json::Object{{"groups", s.groups},
                                 {"heads", s.heads},
                                 {"state_size", s.state_size},
                                 {"head_size", s.head_size},
                                 {"taps", s.taps},
                                 {"norm_groups", s.norm_groups},
                                 {"conv_bias", s.conv_bias},
                                 {"least_step", bits_of(double{s.least_step})},
                                 {"most_step", bits_of(double{s.most_step})}};
  if (s.norm_first) own.set("norm_first", true);
  if (s.is_beside) own.set("beside", true);
  object.set("state_space", std::move(own));
}

void add(json::Value& object, const DenseFfnSpec& ffn) {
  object.set("intermediate_size", ffn.width);
  object.set("ffn_norms", name_of(ffn.norms));
  if (ffn.curve != Nonlinearity::silu) object.set("curve", name_of(ffn.curve));
  if (!ffn.is_gated) object.set("ungated", true);
  if (ffn.is_parallel) object.set("parallel", true);
}

// As it is where a dense network has none of its numbers.
void add(json::Value& object, const ExpertsSpec& experts) {
  if (experts.is_beside) {
    object.set("experts_beside", experts_json(experts));
    return;
  }
  object.set("intermediate_size", 0);
  object.set("ffn_norms", name_of(NormPlace::before));
  object.set("experts", experts_json(experts));
}

void add(json::Value& object, const LayerEndSpec& end) {
  json::Value own = json::Object{{"input_width", end.input_width}};
  if (end.curve != Nonlinearity::silu) own.set("curve", name_of(end.curve));
  object.set("layer_end", std::move(own));
}

// Drafters' alone.
void add(json::Value&, const JoinSpec&) {}
void add(json::Value&, const ResidualBlockSpec&) {}

json::Value layer_json(const LayerSpec& layer) {
  json::Value object = json::Object{};
  for (const PartSpec& part : layer.parts)
    std::visit([&](const auto& spec) { add(object, spec); }, part);
  return object;
}

json::Value multipliers_json(const MultiplierSpec& m) {
  json::Value object = json::Object{};
  const std::pair<const char*, double> numbers[] = {
      {"attention_in", m.attention_in},   {"key", m.key},
      {"attention_out", m.attention_out}, {"state_in", m.state_in},
      {"state_out", m.state_out},         {"state_gate", m.state_gate},
      {"state_value", m.state_value},     {"state_key", m.state_key},
      {"state_query", m.state_query},     {"state_step", m.state_step},
      {"ffn_gate", m.ffn_gate},           {"ffn_down", m.ffn_down}};
  for (const auto& [name, value] : numbers) object.set(name, bits_of(value));
  return object;
}

// Choices that none of the first four families makes.
json::Value choices_json(const DecoderSpec& spec) {
  json::Value object = json::Object{};
  const std::pair<const char*, bool> flags[] = {{"joint_qk_norm", spec.joint_qk_norm},
                                                {"late_qk_norm", spec.late_qk_norm},
                                                {"layer_norm", spec.norm == NormKind::layer},
                                                {"shares_norm", !spec.has_own_ffn_norm}};
  for (const auto& [name, is_so] : flags)
    if (is_so) object.set(name, true);
  const std::tuple<const char*, float, float> numbers[] = {
      {"embedding_scale", spec.embedding_scale, 1},
      {"residual_scale", spec.residual_scale, 1},
      {"logits_divisor", spec.logits_divisor, 1},
      {"logits_cap", spec.logits_cap, 0}};
  for (const auto& [name, value, usual] : numbers)
    if (value != usual) object.set(name, bits_of(value));
  if (const auto& m = spec.multipliers) object.set("multipliers", multipliers_json(*m));
  return object;
}

}  // namespace

Digest specification_digest(const ModelConfig& config) {
  const DecoderSpec& spec = config.spec;
  json::Array layers;
  for (const LayerSpec& layer : spec.layer_specs) layers.push_back(layer_json(layer));
  json::Value object =
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
                   {"eos_token_id", json::Array(config.eos_ids.begin(), config.eos_ids.end())}};
  if (json::Value choices = choices_json(spec); !choices.as_object().empty())
    object.set("family_choices", std::move(choices));
  if (config.pooling != Pooling()) object.set("pooling", to_json(config.pooling));
  if (!config.ignored_keys.empty())
    object.set("ignored_config_keys",
               json::Array(config.ignored_keys.begin(), config.ignored_keys.end()));
  return json::digest_of(object);
}

}  // namespace invar
