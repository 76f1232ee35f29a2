// A drafter's recipe as `invar train` runs it: behind a model that was just trained, interrupted,
// refused.
#include "train/drafter/drafter_run.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "base/error.h"
#include "model/families/config_reader.h"
#include "train/metrics_file.h"
#include "train/training_run.h"
#include "weights/hf_directory.h"

namespace invar {
namespace {

namespace fs = std::filesystem;

constexpr const char* kTarget = R"(
name = "target"
[tokenizer]
documents = 20
[model]
hidden = 32
layers = 3
heads = 2
kv_heads = 1
head_dim = 16
ffn = 64
vocab = 700
[training]
context = 64
rows = 4
[optimizer]
steps = 1
warmup = 0
[evaluation]
documents = 3
)";

constexpr const char* kEagle = R"(
name = "drafter"
[drafter]
method = "eagle3"
target = "target/model"
levels = 2
features = [1, 2, 3]
hidden = 32
heads = 2
kv_heads = 1
head_dim = 16
ffn = 32
vocab = 200
vocab_documents = 20
[training]
context = 64
rows = 2
[optimizer]
steps = 4
warmup = 1
[evaluation]
documents = 3
every = 2
[checkpoint]
every = 2
)";

class DrafterRuns : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    fs::remove_all(directory());
    fs::create_directories(directory());
    RunOptions options;
    options.output = (directory() / "target").string();
    options.threads = 1;
    run_training(read_recipe(write("target.toml", kTarget)), options);
  }
  static void TearDownTestSuite() { fs::remove_all(directory()); }

  static fs::path directory() {
    return fs::temp_directory_path() / fmt::format("invar-drafter-run-{}", getpid());
  }
  static std::string write(const std::string& name, const std::string& text) {
    std::ofstream(directory() / name) << text;
    return (directory() / name).string();
  }
  // The recipe, with one part replaced by another.
  static DrafterRecipe recipe(const std::string& part = "", const std::string& by = "") {
    std::string text = kEagle;
    if (!part.empty()) text.replace(text.find(part), part.size(), by);
    return read_drafter_recipe(write("drafter.toml", text));
  }
  static DrafterRunOptions to(const std::string& name) {
    DrafterRunOptions options;
    options.output = (directory() / name).string();
    options.threads = 1;
    return options;
  }
};

TEST_F(DrafterRuns, ResumeToTheSameWeights) {
  const DrafterRunResult whole = run_drafter_training(recipe(), to("whole"));
  EXPECT_EQ(whole.steps, 4);
  ASSERT_EQ(whole.held_out.size(), 2u);
  EXPECT_GT(whole.held_out[0].count, 30);
  DrafterRunOptions part = to("parts");
  part.until = 2;
  EXPECT_NE(run_drafter_training(recipe(), part).weights_digest, whole.weights_digest);
  EXPECT_FALSE(fs::exists(part.model()));
  int steps = 0;
  part.until = 0;
  part.threads = 2;
  part.progress = [&](const DrafterProgress&) { ++steps; };
  EXPECT_EQ(run_drafter_training(recipe(), part).weights_digest, whole.weights_digest);
  EXPECT_EQ(steps, 2);
  EXPECT_EQ(MetricsFile(part.output, 4).lines().size(), 4u);
  // What a drafter is read from.
  const HfDirectory model = open_hf_directory(part.model());
  ConfigReader config(model.config, part.model());
  EXPECT_EQ(config.integer("draft_vocab_size", 1, 1000), 200);
  EXPECT_EQ(config.integer("target_hidden_size", 1, 1000), 32);
  EXPECT_TRUE(fs::exists(fs::path(part.model()) / "model.safetensors"));
}

TEST_F(DrafterRuns, AnotherRecipeOrTargetDoesNotGoOn) {
  DrafterRunOptions options = to("first");
  options.until = 2;
  const std::string expected = run_drafter_training(recipe(), options).weights_digest;
  EXPECT_THROW(run_drafter_training(recipe("levels = 2", "levels = 3"), options), Error);
  const std::string other =
      "method = \"medusa\"\ntarget = \"target/model\"\nlevels = 2\n[training]";
  const std::string text = kEagle;
  const auto begin = text.find("method"), end = text.find("[training]") + 10;
  EXPECT_THROW(run_drafter_training(recipe(text.substr(begin, end - begin), other), options),
               Error);
  DrafterRunOptions elsewhere = to("seed");
  elsewhere.until = 2;
  const DrafterRecipe seed = recipe("name = \"drafter\"", "name = \"drafter\"\nseed = 2");
  EXPECT_NE(run_drafter_training(seed, elsewhere).weights_digest, expected);
}

TEST_F(DrafterRuns, WhatCannotBeTrainedIsRefused) {
  EXPECT_THROW(recipe("levels", "heads_of_medusa"), UsageError);
  EXPECT_THROW(recipe("\"eagle3\"", "\"eagle4\""), UsageError);
  EXPECT_THROW(recipe("features = [1, 2, 3]\n", ""), UsageError);
  EXPECT_THROW(run_drafter_training(recipe("[1, 2, 3]", "[1, 2, 4]"), to("refused")), UsageError);
  EXPECT_THROW(run_drafter_training(recipe("target/model", "nowhere"), to("refused")), Error);
  DrafterRunOptions ranks = to("refused");
  ranks.ranks = 2;
  EXPECT_THROW(run_drafter_training(recipe(), ranks), UsageError);
}

}  // namespace
}  // namespace invar
