#include "model/families/make_model.h"

#include "../weights/model_files.h"
#include "model/families/family_source.h"
#include "model/families/presets.h"
#include "model/families/tensors.h"
#include "weights/hf_directory.h"
#include "weights/weights_digest.h"

namespace invar {
namespace {

std::vector<std::string> names_of(const DecoderSpec& spec) {
  std::vector<std::string> names;
  for (const TensorSpec& tensor : tensors_of(spec)) names.push_back(tensor.name);
  return names;
}

int64_t parameters_of(const DecoderSpec& spec) {
  int64_t total = 0;
  for (const TensorSpec& tensor : tensors_of(spec))
    total += TensorInfo{DType::bf16, tensor.shape}.elements();
  return total;
}

TEST(Presets, GoThroughTheirConfigurations) {
  for (const std::string& name : preset_names()) {
    const ModelConfig config{preset_spec(name), 3, {1, 2}};
    EXPECT_NO_THROW(check_spec(config.spec, name));
    const json::Value written = json::parse(json::dump(config_json(config), 2), name);
    EXPECT_EQ(parse_model_config(written, generation_config_json(config), name), config) << name;
  }
  expect_message(error_of([] { preset_spec("gpt-2"); }),
                 "presets that invar make-model --help names, found \"gpt-2\"");
}

// The published numbers of parameters.
TEST(Presets, HaveTheSizesOfTheirModels) {
  const auto parameters = [](const char* name) { return parameters_of(preset_spec(name)); };
  EXPECT_EQ(parameters("llama-3.1-8b"), 8030261248);
  EXPECT_EQ(parameters("llama-3.2-1b"), 1235814400);
  EXPECT_EQ(parameters("mistral-7b"), 7241732096);
  EXPECT_EQ(parameters("qwen2.5-0.5b"), 494032768);
  EXPECT_EQ(parameters("qwen2.5-7b"), 7615616512);
  EXPECT_EQ(parameters("qwen3-0.6b"), 596049920);
  EXPECT_EQ(parameters("qwen3-8b"), 8190735360);
  EXPECT_EQ(parameters("qwen3-32b"), 32762123264);
  const DecoderSpec bench = preset_spec("bench-473m");  // without the embedding table
  EXPECT_EQ((parameters_of(bench) - int64_t{bench.vocab} * bench.hidden) / 1000000, 473);
  EXPECT_NEAR(static_cast<double>(parameters("bench-100m")), 100e6, 5e6);
  EXPECT_LT(parameters("tiny"), 2000000);
}

TEST(Presets, CanBeChanged) {
  const DecoderSpec spec = override_spec(
      preset_spec("tiny"), {.family = "mistral", .hidden = 64, .layers = 2, .window = 100});
  EXPECT_EQ(spec.family, "mistral");
  EXPECT_EQ(spec.hidden, 64);
  for (int i = 0; i < 2; ++i) EXPECT_EQ(spec.layer(i).attention()->window, 100);
  EXPECT_FALSE(spec.qk_norm);
  EXPECT_EQ(spec.heads, preset_spec("tiny").heads);
  EXPECT_EQ(override_spec(preset_spec("mistral-7b"), {}), preset_spec("mistral-7b"));
  const auto refused = [](const SpecOverrides& overrides) {
    EXPECT_THROW(override_spec(preset_spec("tiny"), overrides), UsageError);
  };
  refused({.family = "gpt2"});
  refused({.layers = 0});
  refused({.layers = -5});
  refused({.heads = 3});
  refused({.head_dim = 7});
  refused({.family = "llama", .window = 100});
  refused({.vocab = 1 << 30});
}

TEST(MakeModel, EveryFamilyIsReadBackBitForBit) {
  ThreadPool pool(2);
  for (const std::string& family : family_names())
    for (const bool tied : {false, true}) {
      const TempDirectory directory;
      DecoderSpec spec = override_spec(preset_spec("tiny"), {.family = family, .tied_head = tied});
      spec.mlp_bias = family == "llama";
      spec.o_bias = family == "llama" || family == "gpt_oss";
      spec.qkv_bias |= spec.o_bias;
      const ModelConfig config{spec, 0, {1}};
      make_model(directory.path(), config, 42, pool);

      const HfDirectory model = open_hf_directory(directory.path());
      EXPECT_EQ(parse_model_config(model.config, model.generation_config, model.path), config);
      const auto file = decoder_tensors(spec, open_checkpoint(directory.path()));
      EXPECT_NO_THROW(check_tensors(spec, *file));
      EXPECT_EQ(product_type(spec, *file), DType::bf16);
      for (const std::string& name : file->names()) check_finite(*file, name, pool);
      const auto digest = [&](const TensorSource& source) {
        return weights_digest(source, names_of(spec), pool);
      };
      EXPECT_EQ(digest(*file), digest(*dummy_weights(spec, 42)));
      EXPECT_NE(digest(*file), digest(*dummy_weights(spec, 43)));
    }
}

TEST(MakeModel, AFailedModelHasNoConfiguration) {
  ThreadPool pool(1);
  const TempDirectory directory;
  write_file(directory / "model.safetensors", "x");
  const ModelConfig config{preset_spec("tiny"), {}, {}};
  EXPECT_THROW(make_model(directory.path(), config, 1, pool), Error);
  EXPECT_FALSE(std::filesystem::exists(directory / "config.json"));

  const TempDirectory other;  // a tokenizer's file that cannot be written
  std::filesystem::create_directory(other / "tokenizer.json");
  const NamedTexts files = {{"a.json", "a"}, {"tokenizer.json", "t"}};
  expect_message(error_of([&] { make_model(other.path(), config, 1, pool, files); }),
                 "tokenizer.json");
  EXPECT_EQ(read_file(other / "a.json"), "a");
  EXPECT_FALSE(std::filesystem::exists(other / "config.json"));
}

}  // namespace
}  // namespace invar
