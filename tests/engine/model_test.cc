// How a model is loaded: made in place from a directory's configuration, and from a file that
// somebody cuts short meanwhile.
#include "engine/model.h"

#include <malloc.h>

#include <fstream>

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

TEST(ExpertPlacement, IsForModelsWithExperts) {
  for (const bool has_experts : {true, false})
    for (const bool are_copied : {true, false}) {
      ModelOptions options{.model = has_experts ? "tiny-moe" : "tiny", .load_format = "dummy:1"};
      if (are_copied)
        options.redundant_experts = 2;
      else
        options.expert_placement = "round_robin";
      if (has_experts)
        EXPECT_NO_THROW(Model model(options)) << are_copied;
      else
        EXPECT_THROW(Model model(options), UsageError) << are_copied;
    }
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

#ifndef INVAR_SANITIZED  // sanitizers have memory of their own

// Bytes of this process, by a line of /proc: what it has, or had at most since `forget_peak`.
int64_t memory(std::string_view what) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);)
    if (line.starts_with(what)) return std::stoll(line.substr(what.size() + 1)) * 1024;
  return 0;
}
void forget_peak() {
  malloc_trim(0);
  std::ofstream("/proc/self/clear_refs") << 5;
}

// What loading takes at most is the weights and little more, however large an expert's stack is.
// The control holds the file beside them.
TEST_F(ModelTest, LoadingTakesTheWeightsAndFivePercent) {
  config_ = {
      override_spec(preset_spec("olmoe-1b-7b"), {.layers = 1, .vocab = 512, .experts = 8}), 1, {2}};
  {
    ThreadPool pool(2);
    make_model(directory_.path(), config_, 7, pool);
  }
  const auto file =
      static_cast<int64_t>(std::filesystem::file_size(directory_ / "model.safetensors"));
  const auto peak_of = [&](bool keeps_file) {
    forget_peak();
    const int64_t before = memory("VmRSS:");
    const std::vector<char> kept(static_cast<size_t>(keeps_file ? file : 0), 1);
    const Model model(options("auto"));
    return memory("VmHWM:") - before;
  };
  peak_of(false);  // threads and tables that stay
  EXPECT_LE(peak_of(false), file * 105 / 100);
  EXPECT_GT(peak_of(true), file * 105 / 100);
}

#endif

}  // namespace
}  // namespace invar
