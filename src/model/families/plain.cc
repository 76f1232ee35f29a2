// Families that are Llama with other flags and names.
#include <algorithm>

#include "model/families/family.h"

namespace invar {

extern const Family kLlama{.name = "llama",
                           .architecture = "LlamaForCausalLM",
                           .has_attention_bias = true,
                           .has_mlp_bias = true};

extern const Family kMistral{
    .name = "mistral", .architecture = "MistralForCausalLM", .windows = WindowRule::all_layers};

extern const Family kQwen2{.name = "qwen2",
                           .architecture = "Qwen2ForCausalLM",
                           .qkv_bias = true,
                           .windows = WindowRule::switched};

extern const Family kQwen3{.name = "qwen3",
                           .architecture = "Qwen3ForCausalLM",
                           .qk_norm = true,
                           .has_attention_bias = true,
                           .head_dim = 128,
                           .windows = WindowRule::switched};

extern const Family kMinistral{
    .name = "ministral", .architecture = "MinistralForCausalLM", .windows = WindowRule::all_layers};

namespace {

// Biases of q, k and v alone, or of o, too.
void read_seed_oss(ConfigReader& reader, DecoderSpec& spec) {
  spec.qkv_bias = reader.boolean("attention_bias", true);
  spec.o_bias = reader.boolean("attention_out_bias", false);
  const std::string_view dropout[] = {"residual_dropout"};
  reader.ignore(dropout);
}

void write_seed_oss(const DecoderSpec& spec, json::Value& config) {
  config.set("attention_bias", spec.qkv_bias);
  config.set("attention_out_bias", spec.o_bias);
}

// One bias key for q, k and v, another for o and the feed-forward network; in transformers' own
// spelling both are those of Llama.
void read_internlm3(ConfigReader& reader, DecoderSpec& spec) {
  const bool attention = reader.boolean("attention_bias", false);
  spec.qkv_bias = reader.boolean("qkv_bias", attention);
  spec.o_bias = spec.mlp_bias = reader.boolean("bias", reader.boolean("mlp_bias", attention));
}

void write_internlm3(const DecoderSpec& spec, json::Value& config) {
  config.set("qkv_bias", spec.qkv_bias);
  config.set("bias", spec.o_bias);
}

void imply_hunyuan(DecoderSpec& spec) {
  spec.late_qk_norm = true;
}

void read_hunyuan(ConfigReader& reader, DecoderSpec&) {
  check_neutral(reader, "use_qk_norm", true);
  check_neutral(reader, "use_cla", false);
  const std::string_view harmless[] = {"eod_token_id", "cla_share_factor", "attention_head_dim"};
  reader.ignore(harmless);
}

StoredAt stored_hunyuan(const DecoderSpec&, const TensorSpec& tensor) {
  return {renamed(tensor.name, {{"q_norm", "query_layernorm"}, {"k_norm", "key_layernorm"}})};
}

}  // namespace

void limit_positions(ConfigReader& reader, DecoderSpec& spec) {
  const auto grows = [&](const char* key) {
    const json::Value* rope = reader.take(key);
    const json::Value* beta = rope ? rope->find("llama_4_scaling_beta") : nullptr;
    return beta && !beta->is_null() && *beta != json::Value(0) && *beta != json::Value(0.0);
  };
  const double original = spec.first<AttentionSpec>()->rope->original_positions;
  if ((grows("rope_parameters") || grows("rope_scaling")) && original > 0)
    spec.max_positions = std::min(spec.max_positions, static_cast<int>(original));
}

extern const Family kMinistral3{.name = "ministral3",
                                .architecture = "Ministral3ForCausalLM",
                                .head_dim = 128,
                                .read = limit_positions};

extern const Family kSeedOss{.name = "seed_oss",
                             .architecture = "SeedOssForCausalLM",
                             .qkv_bias = true,
                             .has_mlp_bias = true,
                             .head_dim = 128,
                             .read = read_seed_oss,
                             .write = write_seed_oss};

extern const Family kInternLm3{.name = "internlm3",
                               .architecture = "InternLM3ForCausalLM",
                               .other_architecture = "LlamaForCausalLM",
                               .head_dim = 128,
                               .read = read_internlm3,
                               .write = write_internlm3};

// Queries and keys are normalised after they are rotated.
extern const Family kHunyuan{.name = "hunyuan_v1_dense",
                             .architecture = "HunYuanDenseV1ForCausalLM",
                             .qk_norm = true,
                             .has_attention_bias = true,
                             .read = read_hunyuan,
                             .stored = stored_hunyuan,
                             .imply = imply_hunyuan};

}  // namespace invar
