// How a model is loaded: made in place from a directory's configuration, and from a file that
// somebody cuts short meanwhile.
#include "engine/model.h"

#include "../weights/model_files.h"
#include "model/families/make_model.h"
#include "model/families/presets.h"
#include "weights/weights_digest.h"

namespace invar {
namespace {

class ModelTest : public testing::Test {
 protected:
  // A made model of a family, small and unlike any preset.
  void make(const char* family) {
    config_ = {
        override_spec(preset_spec("tiny"), {.family = family, .hidden = 96, .layers = 2}), 1, {2}};
    ThreadPool pool(2);
    make_model(directory_.path(), config_, 7, pool);
  }
  ModelOptions options(const char* load_format) const {
    return {.model = directory_.path(), .load_format = load_format, .threads = 2};
  }

  TempDirectory directory_;
  ModelConfig config_;
};

// All weights as the kernels read them.
std::vector<std::byte> packed(const Model& model) {
  std::vector<std::byte> all;
  for (const auto& array : model.weight_arrays()) all.insert(all.end(), array.begin(), array.end());
  return all;
}

TEST_F(ModelTest, IsMadeInPlaceFromAConfiguration) {
  make("qwen2");
  const Model file(options("auto"));
  // The configuration alone is enough.
  std::filesystem::remove(directory_ / "model.safetensors");
  const Model made(options("dummy:7"));
  EXPECT_EQ(made.config(), file.config());
  EXPECT_EQ(made.config(), config_);
  EXPECT_TRUE(packed(made) == packed(file));
  EXPECT_FALSE(packed(Model(options("dummy:8"))) == packed(file));

  ThreadPool pool(2);
  const auto source = dummy_weights(config_.spec, 7);
  EXPECT_EQ(weights_digest(options("dummy:7"), pool),
            weights_digest(*source, source->names(), pool));
}

TEST_F(ModelTest, ADirectoryWithoutAConfigurationIsRefused) {
  expect_message(error_of([&] { Model model(options("dummy:7")); }), "it has no config.json");
  ModelOptions nowhere = options("dummy:7");
  nowhere.model += "/nothing";
  EXPECT_THROW(read_model_config(nowhere), UsageError);
}

TEST_F(ModelTest, AFileCutShortWhileItIsLoadedIsSaid) {
  make("llama");
  const std::string path = directory_ / "model.safetensors";
  const auto size = std::filesystem::file_size(path);
  bool is_cut = false;
  const LoadProgress cut = [&](int64_t done, int64_t total) {
    if (is_cut || done < total / 2) return;
    std::filesystem::resize_file(path, size / 2);
    is_cut = true;
  };
  expect_message(error_of([&] { Model model(options("auto"), cut); }),
                 fmt::format("{}: expected {} bytes as when it was opened", path, size));
  EXPECT_TRUE(is_cut);
}

}  // namespace
}  // namespace invar
