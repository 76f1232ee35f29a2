// What families beyond the first four have in their configurations and checkpoints. Whether the
// numbers mean what transformers means by them is witness_test.py's affair.
#include <map>
#include <set>

#include "../weights/model_files.h"
#include "model/arithmetic.h"
#include "model/families/families.h"
#include "model/families/preset_configs.h"
#include "model/families/presets.h"
#include "model/families/tensors.h"
#include "model/families/trained_source.h"
#include "weights/dummy_source.h"

namespace invar {
namespace {

ModelConfig parse(const json::Value& config) {
  return parse_model_config(config, {}, "m");
}

// What an action's Error says, or nothing.
template <typename Action>
std::string sentence_of(Action action) {
  try {
    action();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

json::Value config_of(std::string_view preset) {
  for (const PresetConfig& p : preset_configs())
    if (p.name == preset) return json::parse(std::string(p.config), p.name);
  return {};
}

json::Value with(json::Value config, std::string_view key, json::Value value) {
  config.set(key, std::move(value));
  return config;
}

std::string refusal(const json::Value& config) {
  return sentence_of([&] { parse(config); });
}

TEST(OtherFamilies, PresetsGoThroughJsonAndBack) {
  for (const PresetConfig& preset : preset_configs()) {
    const ModelConfig config{preset_spec(preset.name), 2, {1}};
    EXPECT_EQ(parse(json::parse(json::dump(config_json(config)), "x")), config) << preset.name;
    EXPECT_EQ(override_spec(config.spec, {}), config.spec) << preset.name;
    const DecoderSpec small = override_spec(config.spec, {.layers = 5, .vocab = 99});
    EXPECT_EQ(small.layers, 5) << preset.name;
  }
}

TEST(OtherFamilies, GemmasLayersTakeTurns) {
  const DecoderSpec spec = preset_spec("gemma-3-270m");
  for (int i = 0; i < spec.layers; ++i) {
    const AttentionSpec attention = *spec.layer(i).attention();
    EXPECT_EQ(attention.window, i % 6 == 5 ? 0 : 512) << i;
    EXPECT_EQ(attention.rope->theta, i % 6 == 5 ? 1e6 : 1e4) << i;
    EXPECT_EQ(attention.score_scale, 1.0 / 16);
  }
  EXPECT_TRUE(spec.tied_head && spec.qk_norm);
  EXPECT_EQ(spec.embedding_scale, std::sqrt(640.0f));
  const DecoderSpec large = preset_spec("gemma-3-4b");
  EXPECT_EQ(large.layer(0).attention()->rope->factor, 1);  // of layers with windows
  EXPECT_EQ(large.layer(5).attention()->rope->factor, 8);
  const DecoderSpec second = preset_spec("gemma-2-2b");
  EXPECT_EQ(second.layer(1).attention()->window, 0);
  EXPECT_EQ(second.layer(0).attention()->score_cap, 50);
  EXPECT_EQ(second.logits_cap, 30);
  // Newer files name the rotations by kinds of layers.
  json::Value newer = config_of("gemma-3-4b");
  std::erase_if(newer.as_object(), [](const auto& m) { return m.first == "rope_scaling"; });
  newer.set("rope_parameters", json::parse(R"({"full_attention": {"rope_type": "linear",
      "factor": 8.0, "rope_theta": 1000000}, "sliding_attention": {"rope_type": "default",
      "rope_theta": 10000}})",
                                           "x"));
  EXPECT_EQ(parse(newer).spec, large);
}

TEST(OtherFamilies, LongropeIsAPropertyOfTheServer) {
  json::Array factors(48, json::Value(1.5)), longer(48, json::Value(3.0));
  json::Value config = with(config_of("phi-3-mini"), "max_position_embeddings", 131072);
  config.set("rope_scaling", json::Object{{"short_factor", factors},
                                          {"long_factor", longer},
                                          {"original_max_position_embeddings", 4096},
                                          {"type", "su"}});
  ModelConfig found = parse(config);
  EXPECT_TRUE(identity({}, found.spec).ends_with("/long"));
  set_context(found.spec, 4096);
  EXPECT_TRUE(identity({}, found.spec).ends_with("/short"));
  const RopeSpec rope = *found.spec.layer(0).attention()->rope;
  EXPECT_NEAR(rope.attention_factor, std::sqrt(1 + std::log(32.0) / std::log(4096.0)), 1e-12);
  set_context(found.spec, 4097);
  EXPECT_TRUE(found.spec.layer(0).attention()->rope->is_long);
  config.set("rope_scaling", json::Object{{"short_factor", json::Array(47, json::Value(1.5))},
                                          {"long_factor", longer},
                                          {"original_max_position_embeddings", 4096},
                                          {"type", "longrope"}});
  EXPECT_NE(refusal(config).find("\"short_factor\": expected an array of 48 numbers above 0"),
            std::string::npos)
      << refusal(config);
}

TEST(OtherFamilies, WhatIsNotImplementedIsRefusedByName) {
  const json::Value llama = json::parse(R"({"model_type": "llama", "hidden_size": 64,
      "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 50,
      "max_position_embeddings": 128, "rms_norm_eps": 1e-6})",
                                        "x");
  const auto dynamic = json::Object{{"type", "dynamic"}, {"factor", 6.0}};
  EXPECT_EQ(refusal(with(llama, "rope_scaling", dynamic)),
            "m/config.json: \"rope_scaling\": the rope type dynamic is not implemented: a "
            "position's value would depend on the length of the text");
  const auto is_refused = [](const char* preset, const char* key, json::Value value) {
    const std::string message = refusal(with(config_of(preset), key, std::move(value)));
    return message.find(key) != std::string::npos;
  };
  EXPECT_TRUE(is_refused("falcon-7b", "alibi", true));
  EXPECT_TRUE(is_refused("falcon-7b", "parallel_attn", false));
  EXPECT_TRUE(is_refused("gemma-2-2b", "use_bidirectional_attention", true));
  EXPECT_TRUE(is_refused("gemma-3-270m", "hidden_activation", "relu"));
  EXPECT_TRUE(is_refused("olmo-2-7b", "clip_qkv", 8));
  EXPECT_TRUE(is_refused("olmo-2-7b", "embedding_multiplier", 2));  // Granite's, not OLMo's
  EXPECT_TRUE(is_refused("smollm3-3b", "no_rope_layers", json::Array{1, 0}));
  EXPECT_TRUE(is_refused("glm-4-9b", "partial_rotary_factor", 0.01));
  EXPECT_TRUE(is_refused("granite-3.1-2b", "residual_multiplier", 0));
  EXPECT_TRUE(is_refused("phi-4", "some_new_key", 1));
  EXPECT_FALSE(is_refused("phi-4", "some_new_key", nullptr) &&
               is_refused("phi-4", "hidden_size", 5120));
}

TEST(OtherFamilies, ImagesModelsAreTheirText) {
  const json::Value text = config_of("gemma-3-4b");
  const json::Value both =
      json::Object{{"model_type", "gemma3"},
                   {"architectures", json::Array{"Gemma3ForConditionalGeneration"}},
                   {"text_config", text},
                   {"vision_config", json::Object{{"hidden_size", 1152}}},
                   {"mm_tokens_per_image", 256},
                   {"eos_token_id", json::Array{1, 106}}};
  const ModelConfig found = parse(both);
  DecoderSpec expected = preset_spec("gemma-3-4b");
  expected.is_text_tower = true;
  EXPECT_EQ(found.spec, expected);
  EXPECT_EQ(found.eos_ids, (std::vector<int>{1, 106}));
  EXPECT_NE(refusal(with(both, "new_key", 1)).find("new_key"), std::string::npos);
}

// Numbers that say where they stand.
class CountingSource : public TensorSource {
 public:
  explicit CountingSource(const std::vector<StoredTensor>& tensors) {
    for (const StoredTensor& t : tensors) add(t.name, t.shape);
  }
  void add(const std::string& name, std::vector<int64_t> shape) {
    infos_[name] = {DType::f32, std::move(shape)};
    names_.clear();
    for (const auto& [known, info] : infos_) names_.push_back(known);
  }
  void remove(const std::string& name) { infos_.erase(name); }
  const std::vector<std::string>& names() const override { return names_; }
  bool has(std::string_view name) const override { return infos_.contains(std::string(name)); }
  const TensorInfo& info(std::string_view name) const override {
    return infos_.at(std::string(name));
  }
  void read(std::string_view, int64_t first, int64_t count, DType, void* out) const override {
    for (int64_t i = 0; i < count; ++i) static_cast<float*>(out)[i] = static_cast<float>(first + i);
  }
  std::string where(std::string_view name) const override { return "w: " + std::string(name); }

 private:
  std::map<std::string, TensorInfo> infos_;
  std::vector<std::string> names_;
};

// The rows of a decoder's tensor as rows of the stored one.
std::vector<int> rows_of(const TensorSource& source, const std::string& name) {
  const TensorInfo& info = source.info(name);
  std::vector<float> values(static_cast<size_t>(info.elements()));
  source.read(name, 0, std::ssize(values), DType::f32, values.data());
  std::vector<int> rows;
  for (int64_t i = 0; i < info.shape[0]; ++i) {
    rows.push_back(static_cast<int>(values[i * info.row_elements()]) /
                   static_cast<int>(info.row_elements()));
  }
  return rows;
}

DecoderSpec small(const char* preset, int heads, int kv_heads, int head_dim) {
  json::Value config = config_of(preset);
  config.set("num_attention_heads", heads);
  config.set(config.find("num_kv_heads") ? "num_kv_heads" : "num_key_value_heads", kv_heads);
  config.set("hidden_size", heads * head_dim);
  config.set("num_hidden_layers", 1);
  config.set("vocab_size", 20);
  if (config.find("head_dim")) config.set("head_dim", head_dim);
  if (config.find("intermediate_size")) config.set("intermediate_size", 10);
  return parse(config).spec;
}

std::vector<int> iota(int first, int count) {
  std::vector<int> numbers;
  for (int i = 0; i < count; ++i) numbers.push_back(first + i);
  return numbers;
}

TEST(OtherFamilies, FusedTensorsComeApart) {
  const DecoderSpec phi = small("phi-4", 4, 2, 8);
  const CountingSource stored(stored_tensors(phi));
  const auto source = decoder_tensors(phi, stored);
  EXPECT_NO_THROW(check_tensors(phi, *source));
  const std::string layer = "model.layers.0.";
  EXPECT_EQ(rows_of(*source, layer + "self_attn.q_proj.weight"), iota(0, 32));
  EXPECT_EQ(rows_of(*source, layer + "self_attn.k_proj.weight"), iota(32, 16));
  EXPECT_EQ(rows_of(*source, layer + "self_attn.v_proj.weight"), iota(48, 16));
  EXPECT_EQ(rows_of(*source, layer + "mlp.gate_proj.weight"), iota(0, 10));
  EXPECT_EQ(rows_of(*source, layer + "mlp.up_proj.weight"), iota(10, 10));

  // A group of Falcon's: its two queries, its key, its value.
  const DecoderSpec falcon = small("falcon-40b", 4, 2, 8);
  const CountingSource fused(stored_tensors(falcon));
  const auto apart = decoder_tensors(falcon, fused);
  EXPECT_NO_THROW(check_tensors(falcon, *apart));
  std::vector<int> queries = iota(0, 16), keys = iota(16, 8), values = iota(24, 8);
  for (const int row : iota(32, 16)) queries.push_back(row);
  for (const int row : iota(48, 8)) keys.push_back(row);
  for (const int row : iota(56, 8)) values.push_back(row);
  EXPECT_EQ(rows_of(*apart, layer + "self_attn.q_proj.weight"), queries);
  EXPECT_EQ(rows_of(*apart, layer + "self_attn.k_proj.weight"), keys);
  EXPECT_EQ(rows_of(*apart, layer + "self_attn.v_proj.weight"), values);
  EXPECT_EQ(apart->where(layer + "self_attn.v_proj.weight"),
            "w: transformer.h.0.self_attention.query_key_value.weight");
}

TEST(OtherFamilies, NeighboursThatTurnStandApart) {
  const DecoderSpec glm = small("glm-4-9b", 2, 1, 8);  // half of 8 turns
  const CountingSource stored(stored_tensors(glm));
  const auto source = decoder_tensors(glm, stored);
  EXPECT_EQ(rows_of(*source, "model.layers.0.self_attn.q_proj.weight"),
            (std::vector<int>{0, 2, 4, 5, 1, 3, 6, 7, 8, 10, 12, 13, 9, 11, 14, 15}));
  EXPECT_EQ(rows_of(*source, "model.layers.0.self_attn.k_proj.bias"),
            (std::vector<int>{0, 2, 4, 5, 1, 3, 6, 7}));
}

TEST(OtherFamilies, WeightsThatStandForOneMore) {
  const DecoderSpec gemma = small("gemma-3-270m", 2, 1, 8);
  const CountingSource stored(stored_tensors(gemma));
  const auto source = decoder_tensors(gemma, stored);
  float values[3];
  source->read("model.norm.weight", 4, 3, DType::f32, values);
  EXPECT_EQ(values[0], 5);
  EXPECT_EQ(values[2], 7);
  source->read("model.embed_tokens.weight", 4, 3, DType::f32, values);
  EXPECT_EQ(values[0], 4);
}

TEST(OtherFamilies, WhatIsMissingOrTooMuchIsNamedAsItIsStored) {
  const DecoderSpec phi = small("phi-4", 4, 2, 8);
  const auto message = [&](auto change) {
    CountingSource stored(stored_tensors(phi));
    change(stored);
    return sentence_of([&] { check_tensors(phi, *decoder_tensors(phi, stored)); });
  };
  EXPECT_EQ(message([](CountingSource&) {}), "");
  EXPECT_EQ(message([](auto& s) { s.remove("model.layers.0.self_attn.qkv_proj.weight"); }),
            "w: model.layers.0.self_attn.qkv_proj.weight is missing: expected shape [32, 32]");
  EXPECT_NE(message([](auto& s) {
              s.add("model.layers.0.mlp.gate_up_proj.weight", {19, 32});
            }).find("w: model.layers.0.mlp.gate_up_proj.weight: expected at least 20 rows"),
            std::string::npos);
  EXPECT_NE(message([](auto& s) { s.add("visual.blocks.0.weight", {3}); }).find("visual.blocks"),
            std::string::npos);
  // A text's part of a model with images may have them.
  DecoderSpec tower = phi;
  tower.is_text_tower = true;
  CountingSource stored(stored_tensors(phi));
  stored.add("visual.blocks.0.weight", {3});
  EXPECT_NO_THROW(check_tensors(tower, *decoder_tensors(tower, stored)));
  stored.add("model.other", {3});
  EXPECT_THROW(check_tensors(tower, *decoder_tensors(tower, stored)), Error);
}

// Experts of a checkpoint that holds them all in one tensor are read from it, and its shape counts.
TEST(OtherFamilies, ExpertsStandApartOrInOneTensor) {
  const DecoderSpec spec = override_spec(preset_spec("tiny-moe"), {.layers = 1, .experts = 4});
  const auto of = [](const std::string& name) { return "model.layers.0.mlp.experts." + name; };
  const auto stacked = [&](std::vector<int64_t> shape) {
    CountingSource stored(stored_tensors(spec));
    for (int e = 0; e < 4; ++e)
      for (const char* part : {".gate_proj.weight", ".up_proj.weight", ".down_proj.weight"})
        stored.remove(of(std::to_string(e) + part));
    stored.add(of("gate_up_proj"), std::move(shape));
    stored.add(of("down_proj"), {4, 128, 64});
    return stored;
  };
  const CountingSource stored = stacked({4, 128, 128});
  const auto source = decoder_tensors(spec, stored);
  EXPECT_NO_THROW(check_tensors(spec, *source));
  float values[2];
  source->read(of("3.up_proj.weight"), 2 * 128, 2, DType::f32, values);
  EXPECT_EQ(values[0], (3 * 128 + 64 + 2) * 128);  // each element holds its number
  source->read(of("1.gate_proj.weight"), 0, 2, DType::f32, values);
  EXPECT_EQ(values[0], 128 * 128);
  EXPECT_EQ(sentence_of([&] {
              decoder_tensors(spec, stacked({4, 64, 128}));
            }),
            "w: model.layers.0.mlp.experts.gate_up_proj: expected shape [4, 128, 128], found [4, "
            "64, 128]");
}

// gpt-oss holds all experts in one tensor, inputs before outputs, gate and up in turn; in MXFP4
// outputs before inputs.
TEST(OtherFamilies, ExpertsOfGptOssTakeTurns) {
  json::Value config = with(config_of("gpt-oss-20b"), "num_local_experts", 4);
  config.set("num_hidden_layers", 1);
  config.set("hidden_size", 32);
  config.set("intermediate_size", 64);
  const DecoderSpec spec = parse(config).spec;
  EXPECT_EQ(spec.layer(0).attention()->window, 128);
  CountingSource stored(stored_tensors(spec));
  const std::string of = "model.layers.0.mlp.experts.";
  const auto first_of = [&](const std::string& name, int64_t row, int64_t width) {
    float values[32];
    decoder_tensors(spec, stored)->read(of + name, row * width, width, DType::f32, values);
    return std::pair(values[0], values[1]);
  };
  EXPECT_NO_THROW(check_tensors(spec, *decoder_tensors(spec, stored)));
  EXPECT_EQ(stored.info(of + "gate_up_proj").shape, (std::vector<int64_t>{4, 32, 128}));
  using Two = std::pair<float, float>;
  EXPECT_EQ(first_of("3.up_proj.weight", 5, 32), Two(3 * 32 * 128 + 11, 3 * 32 * 128 + 128 + 11));
  EXPECT_EQ(first_of("0.gate_proj.weight", 5, 32), Two(10, 128 + 10));
  EXPECT_EQ(first_of("2.up_proj.bias", 0, 2), Two(2 * 128 + 1, 2 * 128 + 3));
  EXPECT_EQ(first_of("1.down_proj.bias", 3, 2), Two(32 + 6, 32 + 7));
  EXPECT_EQ(decoder_tensors(spec, stored)->where(of + "1.down_proj.bias"),
            "w: " + of + "down_proj_bias");

  stored.remove(of + "gate_up_proj");
  stored.add(of + "gate_up_proj_blocks", {4, 128, 32});
  EXPECT_NO_THROW(check_tensors(spec, *decoder_tensors(spec, stored)));
  EXPECT_EQ(first_of("3.up_proj.weight", 5, 32), Two((3 * 128 + 11) * 32, (3 * 128 + 11) * 32 + 1));
}

TEST(OtherFamilies, WhatGptOssDoesNotHaveIsRefused) {
  const json::Value config = config_of("gpt-oss-20b");
  EXPECT_NE(refusal(with(config, "swiglu_limit", 6)).find("swiglu_limit"), std::string::npos);
  EXPECT_NE(refusal(with(config, "experts_per_token", 5)).find("experts_per_token"),
            std::string::npos);
  EXPECT_EQ(refusal(with(config, "quantization_config", json::Object{{"quant_method", "mxfp4"}})),
            "");
  EXPECT_NE(refusal(with(config, "quantization_config",
                         json::Object{{"quant_method", "mxfp4"}, {"block", 16}}))
                .find("block"),
            std::string::npos);
  json::Value without = config;
  std::erase_if(without.as_object(), [](const auto& m) { return m.first == "sliding_window"; });
  EXPECT_NE(refusal(without).find("sliding_window"), std::string::npos);
}

TEST(OtherFamilies, NumbersOfExpertsThatDoNotFitAreRefused) {
  const json::Value config = config_of("tiny-moe");
  EXPECT_EQ(parse(config).spec.layer(1).ffn()->width, 256);  // one of mlp_only_layers
  EXPECT_FALSE(parse(config).spec.layer(1).experts());
  const auto why = [&](std::string_view key, json::Value value) {
    return sentence_of([&] { parse(with(config, key, std::move(value))); });
  };
  EXPECT_NE(why("num_experts_per_tok", 17).find("from 1 to 16, found 17"), std::string::npos);
  EXPECT_NE(why("num_experts", 5000).find("num_experts"), std::string::npos);
  EXPECT_NE(why("mlp_only_layers", json::Array{4}).find("numbers of layers below 4, found 4"),
            std::string::npos);
  EXPECT_NE(why("clip_qkv", 8).find("clip_qkv"), std::string::npos);
}

TEST(OtherFamilies, TrainingSaysWhyNot) {
  const std::set<std::string> trained = {
      "mistral",     "smollm3",    "seed_oss", "internlm3", "qwen3_moe",    "gemma3_text",
      "olmo2",       "olmo3",      "exaone4",  "olmoe",     "qwen3_5_text", "mixtral",
      "qwen2_moe",   "glm4_moe",   "glm4",     "phi3",      "falcon",       "qwen3_5_moe_text",
      "deepseek_v2", "deepseek_v3"};
  for (const PresetConfig& preset : preset_configs()) {
    const DecoderSpec spec = override_spec(preset_spec(preset.name), {.layers = 6});
    const std::string why = sentence_of([&] { expect_trainable(spec); });
    EXPECT_EQ(why.empty(), trained.contains(spec.family)) << preset.name << ": " << why;
  }
}

}  // namespace
}  // namespace invar
