// Families whose layers are of several kinds: what their configurations say of each layer, as
// published. Whether the numbers mean what transformers means by them is witness_test.py's affair.
#include <gtest/gtest.h>

#include "base/error.h"
#include "model/families/families.h"

namespace invar {
namespace {

DecoderSpec parse(const char* config) {
  return parse_model_config(json::parse(config, "the test"), {}, "m").spec;
}

std::string refusal(const char* config) {
  try {
    parse(config);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

// A letter for the parts of each layer.
std::string letters(const DecoderSpec& spec) {
  std::string word;
  for (const LayerSpec& layer : spec.layer_specs)
    for (const PartSpec& part : layer.parts) word += "jbardcsfe"[part.index()];
  return word;
}

constexpr const char* kLfm2 = R"({"architectures": ["Lfm2ForCausalLM"], "model_type": "lfm2",
  "block_auto_adjust_ff_dim": true, "block_dim": 2048, "block_ff_dim": 12288, "block_ffn_dim_multiplier": 1.0,
  "block_mlp_init_scale": 1.0, "block_multiple_of": 256, "block_norm_eps": 1e-05, "block_out_init_scale": 1.0,
  "block_use_swiglu": true, "block_use_xavier_init": true, "bos_token_id": 1, "conv_L_cache": 3, "conv_bias": false,
  "conv_dim": 2048, "conv_dim_out": 2048, "conv_use_xavier_init": true, "eos_token_id": 7, "full_attn_idxs": [2, 4],
  "hidden_size": 2048, "initializer_range": 0.02, "max_position_embeddings": 128000, "norm_eps": 1e-05,
  "num_attention_heads": 32, "num_heads": 32, "num_hidden_layers": 6, "num_key_value_heads": 8, "pad_token_id": 0,
  "rope_theta": 1000000.0, "torch_dtype": "bfloat16", "use_cache": true, "use_pos_enc": true, "vocab_size": 65536})";

TEST(HybridFamilies, Lfm2HasConvolutionsWhereNoLayerAttends) {
  const DecoderSpec spec = parse(kLfm2);
  EXPECT_EQ(letters(spec), "cfcfafcfafcf");
  EXPECT_EQ(spec.layer(0).ffn_width(), 8192);  // two thirds of 12288, in whole 256s
  EXPECT_TRUE(spec.tied_head && spec.qk_norm);
  EXPECT_EQ(spec.first<ShortConvSpec>()->taps, 3);
  EXPECT_EQ(spec.layer(2).attention()->rope->theta, 1e6);
  std::string other = kLfm2;
  other.replace(other.find("[2, 4]"), 6, "[2, 6]");
  EXPECT_EQ(refusal(other.c_str()),
            "m/config.json: \"full_attn_idxs\": expected numbers of layers below 6, found 6");
  other = kLfm2;
  other.replace(other.find("\"conv_bias\": false"), 18, "\"conv_bias\": true");
  EXPECT_EQ(refusal(other.c_str()),
            "m/config.json: \"conv_bias\": only false is implemented, found true");
}

constexpr const char* kNemotron =
    R"({"architectures": ["NemotronHForCausalLM"], "model_type": "nemotron_h",
  "attention_bias": false, "chunk_size": 128, "conv_kernel": 4, "expand": 2, "head_dim": 128, "hidden_size": 2688,
  "hybrid_override_pattern": "MEM*-", "intermediate_size": 1856, "layer_norm_epsilon": 1e-05, "mamba_head_dim": 64,
  "mamba_hidden_act": "silu", "mamba_num_heads": 64, "mamba_proj_bias": false, "max_position_embeddings": 262144,
  "mlp_bias": false, "mlp_hidden_act": "relu2", "moe_intermediate_size": 1856, "moe_shared_expert_intermediate_size": 3712,
  "n_group": 1, "n_groups": 8, "n_routed_experts": 128, "n_shared_experts": 1, "norm_eps": 1e-05, "norm_topk_prob": true,
  "num_attention_heads": 32, "num_experts_per_tok": 6, "num_hidden_layers": 5, "num_key_value_heads": 2,
  "num_logits_to_keep": 1, "rescale_prenorm_residual": true, "residual_in_fp32": false, "routed_scaling_factor": 2.5,
  "ssm_state_size": 128, "tie_word_embeddings": false, "time_step_floor": 0.0001, "time_step_max": 0.1,
  "time_step_min": 0.001, "topk_group": 1, "use_bias": false, "use_conv_bias": true, "vocab_size": 131072})";

TEST(HybridFamilies, NemotronsLayersArePartsAlone) {
  const DecoderSpec spec = parse(kNemotron);
  EXPECT_EQ(letters(spec), "sesaf");
  const StateSpaceSpec state_space = *spec.first<StateSpaceSpec>();
  EXPECT_EQ(state_space.width(), 4096);
  EXPECT_EQ(state_space.norm_groups, 8);
  EXPECT_EQ(state_space.least_step, 0.001f);
  EXPECT_FALSE(spec.layer(3).attention()->rope);
  EXPECT_EQ(spec.layer(4).ffn()->curve, Nonlinearity::relu_squared);
  EXPECT_FALSE(spec.layer(4).ffn()->is_gated || spec.layer(1).experts()->is_gated);
  EXPECT_EQ(spec.layer(1).experts()->shared_width, 3712);
  std::string other = kNemotron;
  other.replace(other.find("MEM*-"), 5, "MEM*X");
  EXPECT_EQ(
      refusal(other.c_str()),
      "m/config.json: \"hybrid_override_pattern\": expected a word of the letters M*-E, found "
      "\"MEM*X\"");
  other = kNemotron;
  other.replace(other.find("\"n_group\": 1"), 12, "\"n_group\": 1, \"moe_latent_size\": 1024");
  EXPECT_EQ(parse(other.c_str()).layer(1).experts()->latent, 1024);
  EXPECT_EQ(spec.layer(1).experts()->latent, 0);
}

constexpr const char* kKimi =
    R"({"architectures": ["KimiLinearForCausalLM"], "model_type": "kimi_linear",
  "first_k_dense_replace": 1, "head_dim": 72, "hidden_act": "silu", "hidden_size": 2304, "intermediate_size": 9216,
  "kv_lora_rank": 512, "linear_attn_config": {"full_attn_layers": [4], "head_dim": 128, "kda_layers": [1, 2, 3, 5],
  "num_heads": 32, "short_conv_kernel_size": 4}, "mla_use_nope": true, "model_max_length": 1048576,
  "moe_intermediate_size": 1024, "moe_layer_freq": 1, "moe_renormalize": true, "moe_router_activation_func": "sigmoid",
  "num_attention_heads": 32, "num_expert_group": 1, "num_experts": 256, "num_experts_per_token": 8,
  "num_hidden_layers": 5, "num_key_value_heads": 32, "num_nextn_predict_layers": 0, "num_shared_experts": 1,
  "q_lora_rank": null, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "rms_norm_eps": 1e-05, "rope_scaling": null,
  "rope_theta": 10000.0, "routed_scaling_factor": 2.446, "tie_word_embeddings": false, "topk_group": 1,
  "use_grouped_topk": true, "v_head_dim": 128, "vocab_size": 163840})";

TEST(HybridFamilies, KimiLinearCountsItsLayersFromOne) {
  const DecoderSpec spec = parse(kKimi);
  EXPECT_EQ(letters(spec), "dfdedeaede");
  EXPECT_EQ(spec.first<ChannelDeltaSpec>()->width(), 4096);
  const AttentionSpec attention = *spec.layer(3).attention();
  EXPECT_FALSE(attention.rope);
  EXPECT_EQ(attention.latent->rank, 512);
  EXPECT_EQ(spec.layer(1).experts()->routing.chosen, 8);
  std::string other = kKimi;
  other.replace(other.find("[1, 2, 3, 5]"), 12, "[1, 2, 5]");
  EXPECT_EQ(
      refusal(other.c_str()),
      "m/config.json: \"linear_attn_config\": expected layer 3 in one of full_attn_layers and "
      "kda_layers");
}

constexpr const char* kGranite =
    R"({"architectures": ["GraniteMoeHybridForCausalLM"], "model_type": "granitemoehybrid",
  "attention_bias": false, "attention_multiplier": 0.015625, "embedding_multiplier": 12, "hidden_act": "silu",
  "hidden_size": 1536, "init_method": "mup", "intermediate_size": 512, "layer_types": ["mamba", "attention"],
  "logits_scaling": 6, "mamba_chunk_size": 256, "mamba_conv_bias": true, "mamba_d_conv": 4, "mamba_d_head": 64,
  "mamba_d_state": 128, "mamba_expand": 2, "mamba_n_groups": 1, "mamba_n_heads": 48, "mamba_proj_bias": false,
  "max_position_embeddings": 131072, "normalization_function": "rmsnorm", "num_attention_heads": 12,
  "num_experts_per_tok": 6, "num_hidden_layers": 2, "num_key_value_heads": 4, "num_local_experts": 64,
  "output_router_logits": false, "position_embedding_type": "nope", "residual_multiplier": 0.22, "rms_norm_eps": 1e-05,
  "rope_scaling": null, "rope_theta": 10000, "router_aux_loss_coef": 0.01, "shared_intermediate_size": 1024,
  "tie_word_embeddings": true, "vocab_size": 100352})";

TEST(HybridFamilies, GraniteHasExpertsBesideADenseNetworkOrThatAlone) {
  const DecoderSpec spec = parse(kGranite);
  EXPECT_EQ(letters(spec), "seae");
  EXPECT_EQ(spec.layer(0).experts()->shared_width, 1024);
  EXPECT_EQ(spec.first<StateSpaceSpec>()->width(), 3072);
  EXPECT_FALSE(spec.layer(1).attention()->rope);
  EXPECT_EQ(spec.layer(1).attention()->score_scale, 0.015625);
  std::string other = kGranite;
  other.replace(other.find("\"num_local_experts\": 64"), 23, "\"num_local_experts\": 0");
  EXPECT_EQ(letters(parse(other.c_str())), "sfaf");
  other = kGranite;
  other.replace(other.find("\"mamba_d_head\": 64"), 18, "\"mamba_d_head\": 60");
  EXPECT_EQ(
      refusal(other.c_str()),
      "m/config.json: expected mamba_n_heads * mamba_d_head to be mamba_expand * hidden_size, "
      "found 2880 and 3072");
}

// The part that reads text of a model that reads images, too, is DeepSeek-V3's class.
TEST(HybridFamilies, KimiK25HasATextOfKimiK2) {
  const DecoderSpec spec = parse(R"({"architectures": ["KimiK25ForConditionalGeneration"],
    "model_type": "kimi_k25", "ignore_index": -100, "media_placeholder_token_id": 163605,
    "tie_word_embeddings": false, "use_unified_vision_chunk": true, "video_placeholder": "<|video|>",
    "vision_config": {"vt_hidden_size": 1152}, "text_config": {"architectures": ["DeepseekV3ForCausalLM"],
    "model_type": "kimi_k2", "first_k_dense_replace": 1, "hidden_act": "silu", "hidden_size": 7168,
    "intermediate_size": 18432, "kv_lora_rank": 512, "max_position_embeddings": 262144,
    "moe_intermediate_size": 2048, "moe_layer_freq": 1, "n_group": 1, "n_routed_experts": 384,
    "n_shared_experts": 1, "norm_topk_prob": true, "num_attention_heads": 64, "num_experts_per_tok": 8,
    "num_hidden_layers": 3, "num_key_value_heads": 64, "num_nextn_predict_layers": 0, "q_lora_rank": 1536,
    "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "rms_norm_eps": 1e-05,
    "rope_scaling": {"beta_fast": 32.0, "beta_slow": 1.0, "factor": 64.0, "mscale": 1.0, "mscale_all_dim": 1.0,
    "original_max_position_embeddings": 4096, "type": "yarn"}, "rope_theta": 50000.0,
    "routed_scaling_factor": 2.827, "scoring_func": "sigmoid", "topk_group": 1, "topk_method": "noaux_tc",
    "v_head_dim": 128, "vocab_size": 163840}})");
  EXPECT_EQ(spec.family, "kimi_k2");
  EXPECT_TRUE(spec.is_text_tower);
  EXPECT_EQ(letters(spec), "afaeae");
  EXPECT_EQ(spec.layer(1).experts()->routing.experts, 384);
  EXPECT_EQ(spec.layer(0).attention()->rope->factor, 64);
  EXPECT_EQ(spec.layer(0).attention()->latent->norm_eps, 1e-6f);
}

}  // namespace
}  // namespace invar
