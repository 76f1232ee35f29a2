#include "model/families/families.h"

#include <fstream>
#include <functional>
#include <set>

#include "../weights/model_files.h"
#include "engine/specification.h"
#include "weights/hf_directory.h"

namespace invar {
namespace {

const char* const kGoldenModels[] = {"llama-gqa", "llama3-rope-tied", "mistral-window",
                                     "qwen2-bias", "qwen3-qknorm"};

std::string golden(const std::string& name) {
  return std::string(INVAR_SOURCE_DIR) + "/tests/data/golden/" + name;
}

json::Value golden_config(const std::string& name) {
  return open_hf_directory(golden(name)).config;
}

ModelConfig parse(const json::Value& config) {
  return parse_model_config(config, {}, "m");
}

// The golden configuration `name` with one key changed.
json::Value with(const std::string& name, std::string_view key, json::Value value) {
  json::Value config = golden_config(name);
  config.set(key, std::move(value));
  return config;
}

json::Value without(const std::string& name, std::string_view key) {
  json::Value config = golden_config(name);
  std::erase_if(config.as_object(),
                [&](const json::Member& member) { return member.first == key; });
  return config;
}

std::vector<int> windows_of(const DecoderSpec& spec) {
  std::vector<int> windows;
  for (const LayerSpec& layer : spec.layer_specs) windows.push_back(layer.attention()->window);
  return windows;
}

void expect_refused(const json::Value& config, std::string_view text) {
  const std::string message = error_of([&] { parse(config); });
  expect_message(message, "m/config.json: ");
  expect_message(message, text);
}

TEST(Families, ReadTheGoldenModels) {
  const DecoderSpec llama = parse(golden_config("llama-gqa")).spec;
  EXPECT_EQ(llama.family, "llama");
  EXPECT_EQ(llama.hidden, 128);
  EXPECT_EQ(llama.layers, 3);
  EXPECT_EQ(llama.heads, 8);
  EXPECT_EQ(llama.kv_heads, 2);
  EXPECT_EQ(llama.head_dim, 32);
  EXPECT_EQ(llama.layer(0).ffn()->width, 352);
  EXPECT_EQ(llama.vocab, 320);
  EXPECT_EQ(llama.max_positions, 512);
  EXPECT_EQ(llama.norm_eps, 1e-5f);
  EXPECT_FALSE(llama.qkv_bias || llama.o_bias || llama.mlp_bias || llama.qk_norm ||
               llama.tied_head);
  EXPECT_EQ(llama.layer(0).attention()->rope, RopeSpec{});
  EXPECT_EQ(windows_of(llama), std::vector<int>(3, 0));

  const DecoderSpec tied = parse(golden_config("llama3-rope-tied")).spec;
  EXPECT_TRUE(tied.tied_head);
  EXPECT_EQ(tied.layer(0).attention()->rope,
            (RopeSpec{500000, RopeSpec::Scaling::llama3, 8, 1, 4, 128}));

  const DecoderSpec mistral = parse(golden_config("mistral-window")).spec;
  EXPECT_EQ(mistral.family, "mistral");
  EXPECT_EQ(windows_of(mistral), std::vector<int>(3, 24));

  const DecoderSpec qwen2 = parse(golden_config("qwen2-bias")).spec;
  EXPECT_TRUE(qwen2.qkv_bias && !qwen2.o_bias && !qwen2.qk_norm);
  EXPECT_EQ(qwen2.head_dim, 32);  // hidden / heads
  EXPECT_EQ(qwen2.layer(0).attention()->rope->theta, 1e6);
  EXPECT_EQ(windows_of(qwen2), std::vector<int>(3, 0));

  const DecoderSpec qwen3 = parse(golden_config("qwen3-qknorm")).spec;
  EXPECT_TRUE(qwen3.qk_norm && !qwen3.qkv_bias);
  EXPECT_EQ(qwen3.head_dim, 64);
}

TEST(Families, ConfigurationsGoThroughJsonAndBack) {
  for (const char* name : kGoldenModels) {
    const ModelConfig config = parse(golden_config(name));
    EXPECT_EQ(parse(json::parse(json::dump(config_json(config), 2), "x")), config) << name;
  }
  ModelConfig mixed = parse(golden_config("qwen3-qknorm"));
  LayerSpec layer = mixed.spec.layer(0);
  layer.attention()->rope = {1e4, RopeSpec::Scaling::linear, 2.5, 1, 4, 0};
  mixed.spec.set_layers(layer);
  mixed.spec.layer_specs[1].attention()->window = 16;
  mixed.spec.qkv_bias = mixed.spec.o_bias = true;
  mixed.bos_id = std::nullopt;
  mixed.eos_ids = {1, 5};
  EXPECT_EQ(parse(config_json(mixed)), mixed);
}

TEST(Families, OldAndNewSpellingsAgree) {
  const ModelConfig expected = parse(golden_config("llama3-rope-tied"));
  json::Value old = without("llama3-rope-tied", "rope_parameters");
  old.set("rope_theta", 500000.0);
  old.set("rope_scaling", json::parse(R"({"type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
      "high_freq_factor": 4.0, "original_max_position_embeddings": 128})",
                                      "x"));
  EXPECT_EQ(parse(old), expected);
  json::Value both = golden_config("llama3-rope-tied");
  both.set("rope_theta", 500000.0);
  both.set("rope_scaling", *old.find("rope_scaling"));
  EXPECT_EQ(parse(both), expected);
  both.set("rope_theta", 10000.0);
  expect_refused(both, "\"rope_parameters\" contradicts");
}

TEST(Families, AbsentKeysHaveTheDefaultsOfTransformers) {
  EXPECT_EQ(parse(without("llama-gqa", "num_key_value_heads")).spec.kv_heads, 8);
  EXPECT_EQ(parse(without("llama-gqa", "head_dim")).spec.head_dim, 16);
  EXPECT_EQ(parse(with("llama-gqa", "head_dim", nullptr)).spec.head_dim, 16);
  EXPECT_EQ(parse(without("qwen3-qknorm", "head_dim")).spec.head_dim, 128);
  EXPECT_EQ(parse(without("llama-gqa", "rope_parameters")).spec.layer(0).attention()->rope->theta,
            10000);
  EXPECT_EQ(parse(without("mistral-window", "sliding_window")).spec.layer(0).attention()->window,
            4096);
  EXPECT_EQ(
      parse(with("mistral-window", "sliding_window", nullptr)).spec.layer(0).attention()->window,
      0);
  EXPECT_FALSE(parse(without("llama3-rope-tied", "tie_word_embeddings")).spec.tied_head);
  EXPECT_EQ(parse(without("llama-gqa", "architectures")).spec.family, "llama");
  EXPECT_EQ(parse(without("llama-gqa", "model_type")).spec.family, "llama");
  for (const char* key :
       {"hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size",
        "vocab_size", "max_position_embeddings", "rms_norm_eps"})
    expect_refused(without("llama-gqa", key), fmt::format("the key \"{}\" is missing", key));
}

TEST(Families, ReadBiasesOfLlamaAndQwen3) {
  const DecoderSpec llama = parse(with("llama-gqa", "attention_bias", true)).spec;
  EXPECT_TRUE(llama.qkv_bias && llama.o_bias && !llama.mlp_bias);
  EXPECT_TRUE(parse(with("llama-gqa", "mlp_bias", true)).spec.mlp_bias);
  EXPECT_TRUE(parse(with("qwen3-qknorm", "attention_bias", true)).spec.o_bias);
  expect_refused(with("qwen3-qknorm", "mlp_bias", true), "\"mlp_bias\": only false");
  expect_refused(with("mistral-window", "attention_bias", true), "\"attention_bias\": only false");
}

TEST(Families, ReadWindowsOfSomeLayers) {
  json::Value config = with("qwen3-qknorm", "use_sliding_window", true);
  config.set("sliding_window", 64);
  config.set("max_window_layers", 1);
  json::Value by_rule = config;
  std::erase_if(by_rule.as_object(), [](const auto& m) { return m.first == "layer_types"; });
  EXPECT_EQ(windows_of(parse(by_rule).spec), (std::vector<int>{0, 64, 64}));
  EXPECT_EQ(windows_of(parse(config).spec), (std::vector<int>{0, 0, 0}));  // layer_types says so
  const json::Array types = {"sliding_attention", "full_attention", "sliding_attention"};
  config.set("layer_types", types);
  EXPECT_EQ(windows_of(parse(config).spec), (std::vector<int>{64, 0, 64}));
  config.set("use_sliding_window", false);
  expect_refused(config, "expected full_attention (there is no window), found");
  expect_refused(with("qwen2-bias", "layer_types", json::Array{"full_attention"}),
                 "expected an array of 3 names");
  expect_refused(with("qwen2-bias", "layer_types", json::Array{"full_attention", 1, "x"}),
                 "found 1 for layer 1");
  expect_refused(with("llama-gqa", "sliding_window", 64), "\"sliding_window\": only null");
  expect_refused(with("mistral-window", "sliding_window", 0), "\"sliding_window\"");
}

TEST(Families, IntegersMayBeWrittenAsJsonAllows) {
  const int positions = parse(golden_config("llama-gqa")).spec.max_positions;
  EXPECT_EQ(
      parse(with("llama-gqa", "max_position_embeddings", double(positions))).spec.max_positions,
      positions);
  EXPECT_EQ(parse(with("llama-gqa", "eos_token_id", 7.0)).eos_ids, std::vector<int>{7});
  expect_refused(with("llama-gqa", "max_position_embeddings", 2.5), "found 2.5");
  expect_refused(with("llama-gqa", "max_position_embeddings", 1e30), "found 1e+30");
  expect_refused(with("llama-gqa", "max_position_embeddings", UINT64_MAX),
                 "found 18446744073709551615");
}

// transformers can write all of its defaults, not only what differs from them.
TEST(Families, KeysOfTransformersThatChangeNoLogitAreTaken) {
  json::Value config = golden_config("llama-gqa");
  for (const char* key :
       {"tf_legacy_loss", "encoder_no_repeat_ngram_size", "torchscript", "use_bfloat16",
        "chunk_size_feed_forward", "output_scores", "auto_map", "license", "model_max_length",
        "neftune_noise_alpha", "use_flash_attn", "_from_model_config"})
    config.set(key, false);
  config.set("quantization", nullptr);
  EXPECT_NO_THROW(parse(config));
}

TEST(Families, TokenIdsAreTheUnionOfBothFiles) {
  const json::Value generation =
      json::parse(R"({"eos_token_id": [7, 3], "temperature": 0.6})", "x");
  const ModelConfig config = parse_model_config(golden_config("llama-gqa"), generation, "m");
  EXPECT_EQ(config.bos_id, 1);
  EXPECT_EQ(config.eos_ids, (std::vector<int>{2, 3, 7}));
  EXPECT_EQ(parse(with("llama-gqa", "eos_token_id", nullptr)).eos_ids, std::vector<int>{});
  expect_refused(with("llama-gqa", "eos_token_id", 320), "expected token ids from 0 to 319");
  expect_refused(with("llama-gqa", "eos_token_id", json::Array{-1}), "found -1");
  expect_refused(with("llama-gqa", "bos_token_id", "x"), "\"bos_token_id\"");
}

TEST(Families, ReadSmolLm2AsItIsPublished) {
  const json::Value config = json::parse(R"({
    "_name_or_path": "HuggingFaceTB/SmolLM2-135M", "architectures": ["LlamaForCausalLM"],
    "attention_bias": false, "attention_dropout": 0.0, "bos_token_id": 1, "eos_token_id": 2,
    "hidden_act": "silu", "hidden_size": 576, "initializer_range": 0.041666666666666664,
    "intermediate_size": 1536, "is_llama_config": true, "max_position_embeddings": 8192,
    "mlp_bias": false, "model_type": "llama", "num_attention_heads": 9, "num_hidden_layers": 30,
    "num_key_value_heads": 3, "pad_token_id": 2, "pretraining_tp": 1, "rms_norm_eps": 1e-05,
    "rope_interleaved": false, "rope_scaling": null, "rope_theta": 100000,
    "tie_word_embeddings": true, "torch_dtype": "bfloat16",
    "transformers.js_config": {"kv_cache_dtype": {"q4f16": "float16", "fp16": "float16"}},
    "transformers_version": "4.42.3", "use_cache": true, "vocab_size": 49152})",
                                         "SmolLM2");
  EXPECT_EQ(parse(config).spec.head_dim, 64);
}

// Keys that others' tools leave there and that change no number.
TEST(Families, HarmlessKeysAreKnown) {
  json::Value config = golden_config("llama-gqa");
  const json::Value plain = config;
  for (const char* key : {"license", "_from_model_config", "auto_map", "transformers.js_config"})
    config.set(key, "some text");
  config.set("model_max_length", 4096);
  config.set("neftune_noise_alpha", 5.5);
  config.set("use_flash_attn", true);
  config.set("quantization", nullptr);
  EXPECT_EQ(parse(config), parse(plain));
  config.set("quantization", json::parse(R"({"bits": 4})", "x"));
  expect_refused(config, "\"quantization\"");
}

TEST(Families, AnUnknownKeyIsRefusedUnlessTheUserKnowsIt) {
  json::Value config = golden_config("llama-gqa");
  const ModelConfig plain = parse(config);
  config.set("my_note", 3);
  expect_refused(config, "--ignore-config-keys my_note");
  const auto ignoring = [&](const std::vector<std::string>& keys) {
    return parse_model_config(config, {}, "m", keys);
  };
  const ModelConfig read = ignoring({"my_note", "not_there"});
  EXPECT_EQ(read.spec, plain.spec);
  EXPECT_EQ(read.ignored_keys, std::vector<std::string>{"my_note"});
  EXPECT_NE(specification_digest(read), specification_digest(plain));
  EXPECT_THROW(ignoring({"other"}), Error);
  // What Invar reads cannot be wished away.
  EXPECT_THROW(ignoring({"my_note", "rope_theta"}), UsageError);
}

// Each field of what was understood, alone, changes the digest; the spelling does not.
TEST(Families, TheSpecificationsDigestSeesEveryField) {
  const ModelConfig plain = parse(golden_config("llama-gqa"));
  const auto digest = [](const ModelConfig& config) {
    return to_hex(specification_digest(config));
  };
  std::set<std::string> seen{digest(plain)};
  size_t changes = 1;
  const auto changed = [&](const std::function<void(ModelConfig&)>& change) {
    ModelConfig config = plain;
    change(config);
    seen.insert(digest(config));
    EXPECT_EQ(seen.size(), ++changes);
  };
  for (int DecoderSpec::*size :
       {&DecoderSpec::hidden, &DecoderSpec::heads, &DecoderSpec::kv_heads, &DecoderSpec::head_dim,
        &DecoderSpec::vocab, &DecoderSpec::max_positions})
    changed([&](ModelConfig& config) { ++(config.spec.*size); });
  for (bool DecoderSpec::*flag :
       {&DecoderSpec::qkv_bias, &DecoderSpec::o_bias, &DecoderSpec::mlp_bias, &DecoderSpec::qk_norm,
        &DecoderSpec::tied_head})
    changed([&](ModelConfig& config) { config.spec.*flag ^= true; });
  changed([](ModelConfig& config) { config.spec.norm_eps *= 1.0000001F; });
  const auto in_layer = [&](const std::function<void(LayerSpec&)>& change) {
    changed([&](ModelConfig& config) { change(config.spec.layer_specs[1]); });
  };
  changed([](ModelConfig& config) { config.spec.layer_specs.pop_back(); });
  in_layer([](LayerSpec& layer) { layer.attention()->rope->theta += 1; });
  in_layer([](LayerSpec& layer) { layer.attention()->rope.reset(); });
  in_layer([](LayerSpec& layer) { layer.attention()->window = 7; });
  in_layer([](LayerSpec& layer) { layer.attention()->norms = NormPlace::after; });
  in_layer([](LayerSpec& layer) { layer.ffn()->norms = NormPlace::both; });
  in_layer([](LayerSpec& layer) { ++layer.ffn()->width; });
  changed([](ModelConfig& config) { config.eos_ids.push_back(9); });
  changed([](ModelConfig& config) { config.ignored_keys.push_back("note"); });
  changed([](ModelConfig& config) { config.pooling.kind = Pooling::Kind::last; });
  changed([](ModelConfig& config) { config.pooling.final_norm = true; });
  changed([](ModelConfig& config) { config.pooling.is_normalized = true; });
  in_layer([](LayerSpec& layer) { layer.attention()->rope->scaling = RopeSpec::Scaling::linear; });
  for (double RopeSpec::*number : {&RopeSpec::factor, &RopeSpec::low_freq_factor,
                                   &RopeSpec::high_freq_factor, &RopeSpec::original_positions})
    in_layer([&](LayerSpec& layer) {
      layer.attention()->rope->scaling = RopeSpec::Scaling::llama3;
      (*layer.attention()->rope).*number += 1;
    });
  EXPECT_EQ(digest(parse(with("llama-gqa", "rope_theta", 10000))), digest(plain));
}

// Each of these changes the arithmetic; none may be ignored.
TEST(Families, RefuseByNameWhatIsNotImplemented) {
  const auto refused = [](std::string_view key, json::Value value, std::string_view text) {
    for (const char* name : kGoldenModels) {
      const std::string message = error_of([&] { parse(with(name, key, value)); });
      expect_message(message, key);
      expect_message(message, text);
    }
  };
  const auto object = [](const char* text) { return json::parse(text, "x"); };
  refused("quantization_config", object(R"({"quant_method": "bitsandbytes"})"), "load_in_4bit");
  refused("quantization_config", object(R"({"quant_method": "quanto"})"), "compressed-tensors");
  refused("attn_logit_softcapping", 50.0, "only null");
  refused("final_logit_softcapping", 30.0, "only null");
  refused("attention_multiplier", 0.5, "only null");
  refused("residual_multiplier", 0.5, "only 1");
  refused("embedding_multiplier", 12, "only 1");
  refused("logits_scaling", 8, "only 1");
  refused("clip_qkv", 8.0, "only null");
  refused("pretraining_tp", 2, "only 1");
  refused("partial_rotary_factor", 0.5, "only 1");
  refused("hidden_act", "gelu", "only silu");
  refused("num_experts", 8, "only null");
  refused("some_new_key", nullptr, "may change the arithmetic");
  refused("model_type", "gpt2", "expected one of llama, mistral, qwen2, qwen3, smollm3");
  refused("model_type", "gpt2", "gpt_oss, found \"gpt2\"");
  refused("model_type", nullptr, "found null");
  refused("model_type", "", "found \"\"");
  refused("torch_dtype", "float8_e4m3fn", "expected one of bfloat16, float16, float32");
  refused("dtype", "int8", "found \"int8\"");
  refused("torch_dtype", 16, "expected a string");
  refused("architectures", json::Array{"DbrxForCausalLM"}, "found [\"DbrxForCausalLM\"]");
  refused("architectures", json::Array{}, "expected one of");
  refused("architectures", "LlamaForCausalLM", "expected one of");
  refused("rope_scaling", object(R"({"type": "yarn", "factor": 4})"),
          "\"original_max_position_embeddings\" is missing");
  refused("rope_scaling", object(R"({"rope_type": "dynamic", "factor": 4})"),
          "a position's value would depend on the length of the text");
  refused("rope_scaling",
          object(R"({"rope_type": "longrope", "original_max_position_embeddings": 64})"),
          "\"short_factor\": expected an array");
  refused("rope_scaling", object(R"({"rope_type": "ntk"})"), "found \"ntk\"");
  refused("rope_scaling", object(R"({"rope_type": "default", "mrope_section": [1]})"),
          "mrope_section");
  refused("rope_scaling", object(R"({"type": "linear", "rope_type": "llama3"})"), "contradict");
  refused("rope_scaling", object(R"({"type": "linear"})"), "\"factor\" is missing");
  refused("rope_scaling", object(R"({"type": "linear", "factor": 0})"), "\"factor\"");
  refused("rope_scaling", 4, "expected a JSON object");
  refused("rope_parameters", object(R"({"full_attention": {"rope_type": "default"}})"),
          "\"full_attention\"");
  expect_refused(with("llama-gqa", "architectures", json::Array{"MistralForCausalLM"}),
                 "contradict each other");
}

TEST(Families, NeutralValuesAndHarmlessKeysPass) {
  const ModelConfig expected = parse(golden_config("llama-gqa"));
  json::Value config = golden_config("llama-gqa");
  for (const char* key : {"quantization_config", "attn_logit_softcapping", "rope_scaling"})
    config.set(key, nullptr);
  config.set("pretraining_tp", 1);
  config.set("partial_rotary_factor", 1.0);
  config.set("_name_or_path", "x");
  config.set("torch_dtype", "float16");
  config.set("hidden_act", "swish");
  EXPECT_EQ(parse(config), expected);
}

TEST(Families, RefuseSizesThatCannotBe) {
  const auto refused = [](std::string_view key, json::Value value) {
    expect_refused(with("llama-gqa", key, std::move(value)), "expected");
  };
  for (const char* key :
       {"hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads",
        "intermediate_size", "vocab_size", "max_position_embeddings", "head_dim"}) {
    refused(key, 0);
    refused(key, -1);
    refused(key, 1.5);
    refused(key, "128");
    refused(key, int64_t{1} << 40);
    refused(key, 1e30);
    refused(key, json::Array{});
  }
  refused("num_key_value_heads", 3);
  refused("num_key_value_heads", 16);
  refused("head_dim", 33);
  refused("head_dim", 6);
  refused("head_dim", 258);
  refused("rms_norm_eps", 0);
  refused("rms_norm_eps", -1e-5);
  refused("rms_norm_eps", "small");
  refused("tie_word_embeddings", 1);
  json::Value odd = without("llama-gqa", "head_dim");
  odd.set("hidden_size", 129);
  expect_refused(odd, "num_attention_heads to divide hidden_size");
  expect_message(error_of([] { parse(json::Value(json::Array{})); }), "expected a JSON object");
}

}  // namespace
}  // namespace invar
