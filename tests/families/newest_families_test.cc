// Llama 4, MiMo V2 Flash, Falcon H1, Gemma 4, DeepSeek V3.2 and GLM 5: what their published
// configurations say of each layer. Whether the numbers mean what transformers means by them is
// witness_test.py's affair.
#include <gtest/gtest.h>

#include <cmath>

#include "base/error.h"
#include "model/arithmetic.h"
#include "model/families/families.h"
#include "model/families/family_source.h"
#include "model/families/presets.h"
#include "model/parts/part.h"
#include "model/rope_table.h"

namespace invar {
namespace {

DecoderSpec parse(const std::string& config) {
  return parse_model_config(json::parse(config, "the test"), {}, "m").spec;
}

std::string refusal(const std::string& config) {
  try {
    parse(config);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

// The same with a part of the text replaced.
std::string with(std::string config, const std::string& from, const std::string& to) {
  return config.replace(config.find(from), from.size(), to);
}

const std::string kScout = R"({"architectures": ["Llama4ForConditionalGeneration"],
  "boi_token_index": 200080, "eoi_token_index": 200081, "image_token_index": 200092, "model_type": "llama4",
  "text_config": {"attention_bias": false, "attention_chunk_size": 8192, "attention_dropout": 0.0,
    "attn_scale": 0.1, "attn_temperature_tuning": 4, "bos_token_id": 200000, "cache_implementation": "hybrid",
    "eos_token_id": [200001, 200007, 200008], "floor_scale": 8192, "for_llm_compressor": false, "head_dim": 128,
    "hidden_act": "silu", "hidden_size": 5120, "initializer_range": 0.02, "interleave_moe_layer_step": 1,
    "intermediate_size": 8192, "intermediate_size_mlp": 16384, "max_position_embeddings": 10485760,
    "model_type": "llama4_text", "moe_layers": [0, 1, 2, 3], "no_rope_layers": [], "num_attention_heads": 40,
    "num_experts_per_tok": 1, "num_hidden_layers": 4, "num_key_value_heads": 8, "num_local_experts": 16,
    "output_router_logits": false, "pad_token_id": 200018, "rms_norm_eps": 1e-05, "rope_scaling": {"factor": 16.0,
    "high_freq_factor": 1.0, "low_freq_factor": 1.0, "original_max_position_embeddings": 8192,
    "rope_type": "llama3"}, "rope_theta": 500000.0, "router_aux_loss_coef": 0.001, "router_jitter_noise": 0.0,
    "torch_dtype": "bfloat16", "use_cache": true, "use_qk_norm": true, "vocab_size": 202048},
  "tie_word_embeddings": false, "vision_config": {"hidden_size": 1408}})";

TEST(NewestFamilies, Llama4sLayersTurnAndGoByChunksOrDoNeither) {
  const DecoderSpec spec = parse(kScout);
  EXPECT_EQ(spec.family, "llama4_text");
  EXPECT_TRUE(spec.is_text_tower);
  for (int i = 0; i < spec.layers; ++i) {
    const LayerSpec layer = spec.layer(i);
    const AttentionSpec& attention = *layer.attention();
    EXPECT_EQ(attention.rope.has_value(), i != 3) << i;
    EXPECT_EQ(attention.chunk, i != 3 ? 8192 : 0) << i;
    EXPECT_EQ(attention.has_unit_heads, i != 3) << i;
    EXPECT_EQ(attention.growth.has_value(), i == 3) << i;
    EXPECT_EQ(layer.experts()->shared_width, 8192);
    EXPECT_TRUE(layer.experts()->weighs_inputs);
  }
  EXPECT_EQ(spec.layer(3).attention()->growth, (GrowthSpec{.scale = 0.1, .step = 8192}));
  EXPECT_EQ(spec.first<ExpertsSpec>()->routing.score, ExpertScore::sigmoid_of_chosen);
}

TEST(NewestFamilies, Llama4sKeysChangeItsLayers) {
  const DecoderSpec dense =
      parse(with(kScout, "\"moe_layers\": [0, 1, 2, 3]", "\"moe_layers\": [1]"));
  EXPECT_EQ(dense.layer(0).ffn_width(), 16384);
  EXPECT_FALSE(dense.layer(1).ffn());
  const DecoderSpec plain = parse(with(kScout, "\"use_qk_norm\": true", "\"use_qk_norm\": false"));
  EXPECT_FALSE(plain.layer(0).attention()->has_unit_heads);
  const DecoderSpec still =
      parse(with(kScout, "\"attn_temperature_tuning\": 4", "\"attn_temperature_tuning\": false"));
  EXPECT_FALSE(still.layer(3).attention()->growth);
  EXPECT_EQ(refusal(with(kScout, "[0, 1, 2, 3]", "[4]")),
            "m/config.json: \"moe_layers\": expected numbers of layers below 4, found 4");
  EXPECT_EQ(
      refusal(with(kScout, "\"attention_chunk_size\": 8192", "\"attention_chunk_size\": null")),
      "m/config.json: \"attention_chunk_size\": expected a number of positions, found null");
  EXPECT_NE(refusal(with(kScout, "\"use_cache\"", "\"layer_types\": [\"other\"], \"use_cache\"")),
            "");
}

// Factors that leave nothing between frequencies that are kept and those that are stretched.
TEST(NewestFamilies, EqualFactorsOfAScalingBlendNothing) {
  const RopeSpec rope = *parse(kScout).layer(0).attention()->rope;
  const std::vector<double> found = rotary_frequencies(rope, 128);
  for (size_t i = 0; i < found.size(); ++i) {
    const double plain = std::pow(5e5, -2.0 * static_cast<double>(i) / 128);
    const bool is_kept = 2 * M_PI / plain < 8192;
    EXPECT_NEAR(found[i] / plain, is_kept ? 1.0 : 1.0 / 16, 1e-12) << i;
  }
}

const std::string kMiMo =
    R"({"architectures": ["MiMoV2FlashForCausalLM"], "model_type": "mimo_v2_flash",
  "add_full_attention_sink_bias": false, "add_swa_attention_sink_bias": true, "attention_bias": false,
  "attention_chunk_size": 128, "attention_dropout": 0.0, "attention_value_scale": 0.707, "head_dim": 192,
  "hidden_act": "silu", "hidden_size": 4096, "hybrid_layer_pattern": [0, 1, 1, 0], "initializer_range": 0.02,
  "intermediate_size": 16384, "layernorm_epsilon": 1e-05, "max_position_embeddings": 262144,
  "moe_intermediate_size": 2048, "moe_layer_freq": [0, 1, 1, 1], "n_group": 1, "n_routed_experts": 256,
  "n_shared_experts": null, "norm_topk_prob": true, "num_attention_heads": 64, "num_experts_per_tok": 8,
  "num_hidden_layers": 4, "num_key_value_heads": 4, "partial_rotary_factor": 0.334, "rope_theta": 5000000,
  "routed_scaling_factor": null, "scoring_func": "sigmoid", "sliding_window": 128, "sliding_window_size": 128,
  "swa_head_dim": 192, "swa_num_attention_heads": 64, "swa_num_key_value_heads": 8, "swa_rope_theta": 10000,
  "swa_v_head_dim": 128, "tie_word_embeddings": false, "topk_group": 1, "topk_method": "noaux_tc",
  "torch_dtype": "bfloat16", "v_head_dim": 128, "vocab_size": 152576})";

TEST(NewestFamilies, MiMosLayersWithWindowsHaveHeadsAndSinksOfTheirOwn) {
  const DecoderSpec spec = parse(kMiMo);
  for (int i = 0; i < spec.layers; ++i) {
    const AttentionSpec attention = *spec.layer(i).attention();
    const bool has_window = i == 1 || i == 2;
    EXPECT_EQ(attention.window, has_window ? 129 : 0) << i;
    EXPECT_EQ(attention.has_sinks, has_window) << i;
    EXPECT_EQ(spec.kv_heads_of(attention), has_window ? 8 : 4) << i;
    EXPECT_EQ(attention.rope->theta, has_window ? 1e4 : 5e6) << i;
    EXPECT_EQ(attention.rope->rotated, 64) << i;
    EXPECT_EQ(attention.value_dim, 128);
    EXPECT_EQ(spec.layer(i).experts() == nullptr, i == 0) << i;
  }
  EXPECT_EQ(refusal(with(kMiMo, "[0, 1, 1, 0]", "[0, 1, 1]")),
            "m/config.json: \"hybrid_layer_pattern\": expected an array of 4 numbers 0 or 1, found "
            "[0, 1, 1]");
  EXPECT_EQ(refusal(with(kMiMo, "\"swa_head_dim\": 192", "\"swa_head_dim\": 128")),
            "m/config.json: \"swa_head_dim\": only 192 is implemented, found 128");
  EXPECT_EQ(refusal(with(kMiMo, "\"n_shared_experts\": null", "\"n_shared_experts\": 1")),
            "m/config.json: \"n_shared_experts\": only 0 is implemented, found 1");
  EXPECT_EQ(refusal(with(kMiMo, "\"v_head_dim\": 128, \"vocab", "\"v_head_dim\": 256, \"vocab")),
            "m/config.json: \"swa_v_head_dim\": only 256 is implemented, found 128");
}

const std::string kFalcon = R"({"architectures": ["FalconH1ForCausalLM"], "model_type": "falcon_h1",
  "attention_bias": false, "attention_dropout": 0.0, "attention_in_multiplier": 1.0,
  "attention_out_multiplier": 0.9375, "attn_layer_indices": null, "bos_token_id": 1,
  "embedding_multiplier": 5.656854249492381, "eos_token_id": 11, "head_dim": 64, "hidden_act": "silu",
  "hidden_size": 1024, "initializer_range": 0.02, "intermediate_size": 2048, "key_multiplier": 0.390625,
  "lm_head_multiplier": 0.0390625, "mamba_chunk_size": 128, "mamba_conv_bias": true, "mamba_d_conv": 4,
  "mamba_d_head": 64, "mamba_d_ssm": 1536, "mamba_d_state": 128, "mamba_expand": 2, "mamba_n_groups": 1,
  "mamba_n_heads": 24, "mamba_norm_before_gate": false, "mamba_proj_bias": false, "mamba_rms_norm": false,
  "mamba_use_mlp": true, "max_position_embeddings": 16384, "mlp_bias": false,
  "mlp_multipliers": [0.8838834764831844, 0.5859375], "num_attention_heads": 8, "num_hidden_layers": 2,
  "num_key_value_heads": 2, "num_logits_to_keep": 1, "projectors_bias": false, "rms_norm_eps": 1e-05,
  "rope_scaling": null, "rope_theta": 100000000000.0, "ssm_in_multiplier": 1.25,
  "ssm_multipliers": [0.3535533905932738, 0.25, 0.3535533905932738, 0.5, 0.3535533905932738],
  "ssm_out_multiplier": 0.23570226039551587, "tie_word_embeddings": false, "vocab_size": 32784})";

TEST(NewestFamilies, FalconH1HasAStateSpaceBesideAttention) {
  const DecoderSpec spec = parse(kFalcon);
  const LayerSpec layer = spec.layer(1);
  ASSERT_EQ(layer.parts.size(), 3U);
  EXPECT_TRUE(layer.attention() && layer.ffn());
  const StateSpaceSpec state_space = *layer.find<StateSpaceSpec>();
  EXPECT_TRUE(state_space.is_beside);
  EXPECT_EQ(state_space.width(), 1536);
  EXPECT_EQ(state_space.norm_groups, 0);
  EXPECT_EQ(spec.logits_divisor, 25.6f);
  EXPECT_EQ(spec.multipliers->key, 0.390625);
  EXPECT_EQ(
      refusal(with(kFalcon, "\"mamba_d_head\": 64", "\"mamba_d_head\": 60")),
      "m/config.json: expected mamba_n_heads * mamba_d_head to be mamba_d_ssm, found 1440 and "
      "1536");
  EXPECT_EQ(refusal(with(kFalcon, "[0.8838834764831844, 0.5859375]", "[1]")),
            "m/config.json: \"mlp_multipliers\": expected an array of 2 numbers, found [1]");
  EXPECT_EQ(refusal(with(kFalcon, "\"projectors_bias\": false", "\"projectors_bias\": true")),
            "m/config.json: \"projectors_bias\": only false is implemented, found true");
}

const std::string kGemma4 = R"({"architectures": ["Gemma4ForConditionalGeneration"],
  "model_type": "gemma4", "audio_token_id": 258881, "boa_token_id": 256000, "eoa_token_index": 258883,
  "text_config": {"attention_bias": false, "attention_k_eq_v": false, "enable_moe_block": false,
    "final_logit_softcapping": 30.0, "global_head_dim": 512, "head_dim": 256, "hidden_activation": "gelu_pytorch_tanh",
    "hidden_size": 1536, "hidden_size_per_layer_input": 256, "intermediate_size": 6144, "layer_types":
    ["sliding_attention", "full_attention", "sliding_attention", "sliding_attention", "full_attention"],
    "max_position_embeddings": 131072, "model_type": "gemma4_text", "num_attention_heads": 8, "num_experts": null,
    "num_global_key_value_heads": null, "num_hidden_layers": 5, "num_key_value_heads": 1, "num_kv_shared_layers": 2,
    "rms_norm_eps": 1e-06, "rope_parameters": {"full_attention": {"partial_rotary_factor": 0.25,
    "rope_theta": 1000000.0, "rope_type": "proportional"}, "sliding_attention": {"rope_theta": 10000.0,
    "rope_type": "default"}}, "sliding_window": 512, "top_k_experts": null, "use_bidirectional_attention": "vision",
    "use_double_wide_mlp": true, "vocab_size": 262144, "vocab_size_per_layer_input": 262144},
  "tie_word_embeddings": true, "vision_config": {"hidden_size": 768}, "vision_soft_tokens_per_image": 280})";

TEST(NewestFamilies, Gemma4sLayersShareKeysAndHaveHeadsOfTheirOwn) {
  const DecoderSpec spec = parse(kGemma4);
  EXPECT_EQ(spec.family, "gemma4_text");
  EXPECT_TRUE(spec.is_text_tower && spec.tied_head && spec.qk_norm);
  EXPECT_EQ(spec.logits_cap, 30);
  for (int i = 0; i < spec.layers; ++i) {
    const LayerSpec layer = spec.layer(i);
    const AttentionSpec& attention = *layer.attention();
    const bool is_full = i == 1 || i == 4, is_shared = i >= 3;
    EXPECT_EQ(attention.window, is_full ? 0 : 512) << i;
    EXPECT_EQ(spec.head_dim_of(attention), is_full ? 512 : 256) << i;
    EXPECT_EQ(attention.rope->rotated, is_full ? 128 : 0) << i;
    EXPECT_EQ(attention.rope->theta, is_full ? 1e6 : 1e4) << i;
    EXPECT_EQ(attention.shares_keys, is_shared) << i;
    EXPECT_EQ(attention.has_value_norm, !is_shared) << i;
    EXPECT_EQ(layer.ffn_width(), is_shared ? 12288 : 6144) << i;
    EXPECT_EQ(layer.find<LayerEndSpec>()->input_width, 256) << i;
    EXPECT_EQ(spec.kv_layer(i), (std::vector{0, 1, 2, 2, 1}[static_cast<size_t>(i)])) << i;
  }
  // A layer that shares keys keeps nothing.
  const std::vector<StateShape> states = states_of(spec);
  EXPECT_EQ(states[1], (StateShape{.kv_heads = 1, .head_dim = 512}));
  EXPECT_EQ(states[2], (StateShape{.kv_heads = 1, .head_dim = 256}));
  EXPECT_EQ(states[3].kv_heads + states[4].kv_heads, 0);
  EXPECT_EQ(most_stages(spec), 1);
}

// docs/models.md has these numbers.
TEST(NewestFamilies, Gemma4sPresetsShareKeys) {
  for (const auto& [preset, own] : {std::pair("gemma-4-e2b", 15), {"gemma-4-e4b", 24}}) {
    const std::vector<StateShape> states = states_of(preset_spec(preset));
    const auto count =
        std::ranges::count_if(states, [](const StateShape& s) { return s.kv_heads > 0; });
    fmt::print("{}: {} of {} layers have keys and values\n", preset, count, states.size());
    EXPECT_EQ(count, own);
  }
}

// A rotation that says nothing of full layers is refused.
TEST(NewestFamilies, Gemma4sRotationOfFullLayersIsSaid) {
  const std::string full = R"("full_attention": {)";
  ASSERT_NE(std::string(kGemma4).find(full), std::string::npos);
  EXPECT_THROW(parse(with(kGemma4, full, R"("other_attention": {)")), Error);
}

// Frequencies of what turns are the first ones of the whole head.
TEST(NewestFamilies, Gemma4sRotationIsProportional) {
  const std::vector<double> found =
      rotary_frequencies(*parse(kGemma4).layer(1).attention()->rope, 512);
  ASSERT_EQ(found.size(), 256U);
  for (size_t i = 0; i < found.size(); ++i)
    EXPECT_NEAR(found[i], i < 64 ? std::pow(1e6, -2.0 * static_cast<double>(i) / 512) : 0, 1e-12);
}

TEST(NewestFamilies, Gemma4sKeysChangeItsLayers) {
  const std::string eq = R"("attention_k_eq_v": false)",
                    heads = R"("num_global_key_value_heads": null)";
  const DecoderSpec values = parse(with(with(kGemma4, eq, R"("attention_k_eq_v": true)"), heads,
                                        R"("num_global_key_value_heads": 4)"));
  EXPECT_TRUE(values.layer(1).attention()->keys_are_values);
  EXPECT_FALSE(values.layer(0).attention()->keys_are_values);
  EXPECT_FALSE(values.layer(4).attention()->keys_are_values);  // it has none of its own
  EXPECT_EQ(values.kv_heads_of(*values.layer(1).attention()), 4);
  // Without it that number is not read.
  EXPECT_EQ(parse(with(kGemma4, heads, R"("num_global_key_value_heads": 4)")), parse(kGemma4));
  const std::string listed =
      with(kGemma4, R"("global_head_dim": 512)",
           R"("per_layer_config": {"01": {"head_dim": 512}, "4": {"head_dim": 512}})");
  EXPECT_EQ(parse(listed), parse(kGemma4));
  EXPECT_EQ(
      refusal(with(listed, "\"01\"", "\"2\"")),
      "m/config.json: \"per_layer_config\": expected the layers without a window, found otherwise "
      "for layer 1");
  EXPECT_EQ(refusal(with(kGemma4, R"("num_kv_shared_layers": 2)", R"("num_kv_shared_layers": 4)")),
            "m/config.json: expected a layer before layer 1 whose keys and values it can share, "
            "found none");
  EXPECT_EQ(refusal(with(kGemma4, R"("use_bidirectional_attention": "vision")",
                         R"("use_bidirectional_attention": "all")")),
            "m/config.json: \"use_bidirectional_attention\": only \"vision\" is implemented, found "
            "\"all\"");
  EXPECT_EQ(refusal(with(kGemma4, R"("vocab_size_per_layer_input": 262144)",
                         R"("vocab_size_per_layer_input": 1000)")),
            "m/config.json: \"vocab_size_per_layer_input\": expected the 262144 tokens of the "
            "vocabulary, found 1000");
}

TEST(NewestFamilies, Gemma4sExpertsStandBesideTheDenseNetwork) {
  const DecoderSpec spec = preset_spec("gemma-4-26b-a4b");
  for (const LayerSpec& layer : spec.layer_specs) {
    ASSERT_TRUE(layer.has_networks_beside() && layer.ffn());
    EXPECT_EQ(layer.ffn_width(), 2112);
    EXPECT_EQ(layer.experts()->width, 704);
    EXPECT_EQ(layer.chosen_experts(), 8);
  }
  EXPECT_EQ(spec.layer_input_width(), 0);
  EXPECT_EQ(most_stages(spec), 30);
}

// As a preset and in any number of layers each goes through its configuration and back.
TEST(NewestFamilies, ShapesGoThroughJsonAndBack) {
  for (const char* family : {"llama4_text", "mimo_v2_flash", "falcon_h1", "gemma4_text"})
    for (const int layers : {1, 2, 3, 4, 7}) {
      const DecoderSpec spec =
          override_spec(preset_spec("tiny"), {.family = family, .layers = layers});
      const ModelConfig config{spec, 2, {1}};
      EXPECT_EQ(parse_model_config(json::parse(json::dump(config_json(config)), "x"), {}, "m"),
                config)
          << family << " " << layers;
    }
  // 30 of 44 elements: as a share, rounded down again, these would be 28.
  DecoderSpec odd = override_spec(preset_spec("tiny"), {.family = "gemma4_text", .layers = 2});
  AttentionSpec& full = *odd.layer_specs.back().attention();
  full.head_dim = 44;
  full.rope = RopeSpec{.theta = 1e6, .rotated = 30, .spans_head = true};
  const ModelConfig of_odd{odd, 2, {1}};
  EXPECT_EQ(parse_model_config(json::parse(json::dump(config_json(of_odd)), "x"), {}, "m"), of_odd);
  for (const char* preset : {"gemma-4-e2b", "gemma-4-e4b", "gemma-4-31b", "gemma-4-26b-a4b"}) {
    const ModelConfig config{preset_spec(preset), 2, {1}};
    EXPECT_EQ(parse_model_config(json::parse(json::dump(config_json(config)), "x"), {}, "m"),
              config)
        << preset;
  }
}

const std::string kV32 = R"({"architectures": ["DeepseekV32ForCausalLM"], "attention_bias": false,
  "attention_dropout": 0.0, "bos_token_id": 0, "eos_token_id": 1, "ep_size": 1, "first_k_dense_replace": 3,
  "hidden_act": "silu", "hidden_size": 7168, "index_head_dim": 128, "index_n_heads": 64, "index_topk": 2048,
  "initializer_range": 0.02, "intermediate_size": 18432, "kv_lora_rank": 512,
  "max_position_embeddings": 163840, "model_type": "deepseek_v32", "moe_intermediate_size": 2048,
  "moe_layer_freq": 1, "n_group": 8, "n_routed_experts": 256, "n_shared_experts": 1, "norm_topk_prob": true,
  "num_attention_heads": 128, "num_experts_per_tok": 8, "num_hidden_layers": 61, "num_key_value_heads": 128,
  "num_nextn_predict_layers": 1, "q_lora_rank": 1536, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
  "quantization_config": {"activation_scheme": "dynamic", "fmt": "e4m3", "quant_method": "fp8",
    "scale_fmt": "ue8m0", "weight_block_size": [128, 128]}, "rms_norm_eps": 1e-06,
  "rope_scaling": {"beta_fast": 32, "beta_slow": 1, "factor": 40, "mscale": 1.0, "mscale_all_dim": 1.0,
    "original_max_position_embeddings": 4096, "type": "yarn"}, "rope_theta": 10000,
  "routed_scaling_factor": 2.5, "scoring_func": "sigmoid", "tie_word_embeddings": false, "topk_group": 4,
  "topk_method": "noaux_tc", "torch_dtype": "bfloat16", "transformers_version": "4.44.2", "use_cache": true,
  "v_head_dim": 128, "vocab_size": 129280})";

TEST(NewestFamilies, DeepseekV32HasAnIndexerInEveryLayer) {
  const DecoderSpec spec = parse(kV32);
  for (int i = 0; i <= spec.layers; ++i) {
    const IndexerSpec expected{.heads = 64, .size = 128, .most = 2048};
    EXPECT_EQ(*spec.layer(i).indexer(), expected) << i;
  }
  EXPECT_EQ(most_stages(spec), 61);
  EXPECT_EQ(states_of(spec)[60].index_dim, 128);
  EXPECT_EQ(refusal(with(kV32, "\"index_head_dim\": 128", "\"index_head_dim\": 48")),
            "m/config.json: expected a size of an indexer's heads from 64 to 256, found 48");
  EXPECT_EQ(refusal(with(kV32, "\"q_lora_rank\": 1536", "\"q_lora_rank\": null")),
            "m/config.json: expected an indexer's heads of whole thirty-twos beside queries of a "
            "vector of their own (q_lora_rank), found 128 and 0");
}

// As published of GLM 5.2, with fewer layers.
const std::string kGlm52 = R"({"architectures": ["GlmMoeDsaForCausalLM"], "attention_bias": false,
  "attention_dropout": 0.0, "dtype": "bfloat16", "eos_token_id": [154820, 154827, 154829], "ep_size": 1,
  "first_k_dense_replace": 3, "head_dim": 192, "hidden_act": "silu", "hidden_size": 6144,
  "index_head_dim": 128, "index_n_heads": 32, "index_share_for_mtp_iteration": true,
  "index_skip_topk_offset": 3, "index_topk": 2048, "index_topk_freq": 4, "index_topk_pattern": null,
  "indexer_rope_interleave": true, "initializer_range": 0.02, "intermediate_size": 12288,
  "kv_lora_rank": 512, "max_position_embeddings": 1048576, "model_type": "glm_moe_dsa",
  "moe_intermediate_size": 2048, "moe_layer_freq": 1, "moe_router_dtype": "float32", "n_group": 1,
  "n_routed_experts": 256, "n_shared_experts": 1, "norm_topk_prob": true, "num_attention_heads": 64,
  "num_experts_per_tok": 8, "num_hidden_layers": 8, "num_key_value_heads": 64,
  "num_nextn_predict_layers": 1, "pad_token_id": 154820, "q_lora_rank": 2048, "qk_head_dim": 256,
  "qk_nope_head_dim": 192, "qk_rope_head_dim": 64, "rms_norm_eps": 1e-05, "rope_interleave": true,
  "rope_parameters": {"rope_theta": 8000000, "rope_type": "default"}, "routed_scaling_factor": 2.5,
  "scoring_func": "sigmoid", "tie_word_embeddings": false, "topk_group": 1, "topk_method": "noaux_tc",
  "v_head_dim": 256, "vocab_size": 154880})";

// A letter for each layer: F has an index of its own, S shares one.
std::string indexers(const DecoderSpec& spec) {
  std::string word;
  for (const LayerSpec& layer : spec.layer_specs) word += layer.indexer()->is_shared ? 'S' : 'F';
  return word;
}

TEST(NewestFamilies, MostLayersOfGlm52ShareAnIndex) {
  const DecoderSpec spec = parse(kGlm52);
  EXPECT_EQ(indexers(spec), "FFFSSSFS");
  EXPECT_TRUE(spec.layer(0).indexer()->is_interleaved);
  EXPECT_FALSE(spec.layer(8).indexer()->is_shared);  // the module's
  EXPECT_EQ(spec.layer(0).attention()->latent->norm_eps, 1e-6f);
  EXPECT_EQ(most_stages(spec), 1);
  EXPECT_EQ(states_of(spec)[2].index_dim, 128);
  EXPECT_EQ(states_of(spec)[3].index_dim, 0);
  EXPECT_TRUE(spec.is_shared(2) && !spec.is_shared(1) && !spec.is_shared(3) && spec.is_shared(6));
  const auto named = [](const std::string& more) {
    return with(kGlm52, "\"index_topk_pattern\": null", more);
  };
  EXPECT_EQ(indexers(parse(named("\"index_topk_pattern\": \"FSFSFSSS\""))), "FSFSFSSS");
  EXPECT_EQ(indexers(parse(named(R"("indexer_types": ["full", "full", "shared", "shared", "full",
      "shared", "shared", "shared"])"))),
            "FFSSFSSS");
  EXPECT_EQ(refusal(named("\"index_topk_pattern\": \"SSFSFSSS\"")),
            "m/config.json: expected a layer with an indexer before those that share its choice, "
            "found none");
  EXPECT_EQ(refusal(named("\"index_topk_pattern\": \"FSF\"")),
            "m/config.json: \"index_topk_pattern\": expected 8 letters, F or S, found \"FSF\"");
}

// GLM 5 and 5.1 say nothing of it.
TEST(NewestFamilies, Glm5HasAnIndexerInEveryLayer) {
  EXPECT_EQ(indexers(parse(with(kGlm52, "\"index_topk_freq\": 4,", ""))), "FFFFFFFF");
}

}  // namespace
}  // namespace invar
