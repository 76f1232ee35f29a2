// Recipes and runs: the same weights on every machine and across interruptions, one sentence for
// what is wrong.
#include "train/training_run.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "base/error.h"
#include "base/input_file.h"
#include "kernels/select.h"
#include "tokenizer/tokenizer.h"
#include "train/metrics_file.h"
#include "weights/hf_directory.h"

namespace invar {
namespace {

namespace fs = std::filesystem;

constexpr const char* kTiny = R"(
name = "tiny"
seed = 3
[corpus]
seed = 5
[tokenizer]
documents = 20
[model]
hidden = 32
layers = 2
heads = 2
kv_heads = 1
head_dim = 16
ffn = 64
vocab = 700
[training]
context = 64
rows = 4
groups = 2
batch_rows = 2
[optimizer]
steps = 6
warmup = 2
rate = 1e-2
[[exits]]
layers = 1
weight = 0.5
[mtp]
weight = 0.5
[evaluation]
documents = 3
every = 3
[checkpoint]
every = 2
)";

class Runs : public testing::Test {
 protected:
  void SetUp() override {
    directory_ = fs::temp_directory_path() / fmt::format("invar-run-{}", getpid());
    fs::remove_all(directory_);
    fs::create_directories(directory_);
  }
  void TearDown() override { fs::remove_all(directory_); }

  std::string write(const std::string& name, const std::string& text) {
    std::ofstream(directory_ / name) << text;
    return (directory_ / name).string();
  }
  Recipe tiny() { return read_recipe(write("tiny.toml", kTiny)); }
  RunOptions to(const std::string& name) {
    RunOptions options;
    options.output = (directory_ / name).string();
    options.threads = 1;
    return options;
  }
  // What the sentence of a failing recipe holds.
  void expect_refused(const std::string& from, const std::string& to, const std::string& sentence) {
    std::string text = kTiny;
    text.replace(text.find(from), from.size(), to);
    try {
      read_recipe(write("bad.toml", text));
      FAIL() << "expected an error for " << to;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find(sentence), std::string::npos) << error.what();
      EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos) << error.what();
    }
  }

  fs::path directory_;
};

TEST_F(Runs, RefuseBadRecipesInOneSentence) {
  expect_refused("hidden = 32", "hiden = 32", "\"model.hidden\"");
  expect_refused("hidden = 32", "hidden = 32\nhiden = 1", "found \"model.hiden\"");
  expect_refused("hidden = 32", "hidden = \"32\"",
                 "line 9: expected \"model.hidden\" to be an integer");
  expect_refused("hidden = 32", "hidden = -1", "found -1");
  expect_refused("rate = 1e-2", "rate = true", "\"optimizer.rate\" to be a number");
  expect_refused("layers = 1", "layer = 1", "found \"exits.layer\"");
  expect_refused("[mtp]\nweight", "[mtp]\nwheight", "\"mtp.weight\"");
  expect_refused("hidden = 32", "hidden = 40", "a multiple of 32");
  expect_refused("[corpus]", "[corpsu]", "found \"corpsu\"");
  expect_refused("[corpus]", "[corpus", "not TOML");
  expect_refused("kv_heads = 1", "kv_heads = 3", "heads");
  expect_refused("hidden = 32", "hidden = 32\nexperts = 4\ndense = true",
                 "expected either dense = true or experts");
  EXPECT_THROW(read_recipe((directory_ / "none.toml").string()), Error);
  EXPECT_EQ(read_recipe(write("good.toml", kTiny)).trainer.exits[0].weight, 0.5f);
}

TEST_F(Runs, HaveDenseNetworksWhereTheRecipeSaysSo) {
  const auto has_experts = [&](const char* more) {
    std::string text = kTiny;
    text.erase(text.find("[mtp]"), text.find("[evaluation]") - text.find("[mtp]"));
    text.insert(text.find("hidden = 32"), fmt::format("family = \"granitemoehybrid\"\n{}", more));
    return read_recipe(write("networks.toml", text)).trainer.model.spec.first<ExpertsSpec>() !=
           nullptr;
  };
  EXPECT_TRUE(has_experts(""));
  EXPECT_FALSE(has_experts("dense = true\n"));
}

// Routers and shared experts are the family's, so that the written config.json says the same model.
TEST_F(Runs, HaveExpertsAsTheFamilyHasThem) {
  const auto model = [&](const std::string& family) {
    std::string text = kTiny;
    text.erase(text.find("[mtp]"), text.find("[evaluation]") - text.find("[mtp]"));
    text.insert(text.find("hidden = 32"),
                fmt::format("family = \"{}\"\nexperts = 6\nchosen_experts = 3\n", family));
    return read_recipe(write("experts.toml", text)).trainer.model;
  };
  for (const char* family :
       {"qwen3_moe", "qwen2_moe", "olmoe", "mixtral", "glm4_moe", "qwen3_next", "minimax_m2"}) {
    const ModelConfig config = model(family);
    EXPECT_EQ(config.spec.first<ExpertsSpec>()->routing.experts, 6) << family;
    EXPECT_EQ(config.spec.first<ExpertsSpec>()->routing.chosen, 3) << family;
    EXPECT_TRUE(parse_model_config(config_json(config), {}, family).spec == config.spec) << family;
  }
  EXPECT_TRUE(model("qwen2_moe").spec.first<ExpertsSpec>()->shared_gate);
  EXPECT_EQ(model("glm4_moe").spec.first<ExpertsSpec>()->routing.score, ExpertScore::sigmoid);
}

TEST_F(Runs, GiveTheSameWeightsHoweverTheyAreRun) {
  const std::string expected = run_training(tiny(), to("whole")).weights_digest;
  RunOptions other = to("other");
  other.threads = 2, other.ranks = 2;
  EXPECT_EQ(run_training(tiny(), other).weights_digest, expected);

  RunOptions halves = to("halves");
  halves.until = 3;
  EXPECT_NE(run_training(tiny(), halves).weights_digest, expected);
  halves.until = 0;
  EXPECT_EQ(run_training(tiny(), halves).weights_digest, expected);

  Recipe seeded = tiny();
  seeded.corpus_seed += 1;
  EXPECT_NE(run_training(seeded, to("seeded")).weights_digest, expected);

  // The model is one, and the metrics have every step once.
  const HfDirectory model = open_hf_directory((directory_ / "halves/model").string());
  EXPECT_EQ(parse_model_config(model.config, model.generation_config, "").spec.vocab, 700);
  EXPECT_NO_THROW(Tokenizer::load(model.path));
  std::ifstream metrics(directory_ / "halves/metrics.jsonl");
  std::vector<std::string> lines;
  for (std::string line; std::getline(metrics, line);) lines.push_back(line);
  EXPECT_EQ(lines.size(), 6u);
  EXPECT_NE(lines[2].find("held_out_loss"), std::string::npos);
}

// Killed at any step, with a checkpoint half written beside the whole one.
TEST_F(Runs, GoOnAfterTheyAreKilled) {
  const std::string expected = run_training(tiny(), to("whole")).weights_digest;
  const Recipe recipe = tiny();
  for (int64_t last = 1; last <= 5; ++last) {
    const RunOptions options = to(fmt::format("killed-{}", last));
    const pid_t child = fork();
    if (child == 0) {
      RunOptions dying = options;
      dying.progress = [&](const RunProgress& p) {
        if (p.report.step == last) kill(getpid(), SIGKILL);
      };
      run_training(recipe, dying);
      _exit(0);
    }
    int status = 0;
    waitpid(child, &status, 0);
    ASSERT_TRUE(WIFSIGNALED(status));
    fs::create_directories(fs::path(options.output) / "checkpoints/step-000006.partial");
    EXPECT_EQ(run_training(recipe, options).weights_digest, expected) << "killed at " << last;
  }
}

// Asked to stop after any step, and before the first.
TEST_F(Runs, StopWithACheckpointAndGoOnToTheSameBits) {
  const std::string expected = run_training(tiny(), to("whole")).weights_digest;
  for (int64_t last = 0; last <= 5; ++last) {
    RunOptions options = to(fmt::format("stopped-{}", last));
    int64_t done = 0;
    options.progress = [&](const RunProgress& p) { done = p.report.step; };
    options.stop = [&] { return done == last; };
    const RunResult stopped = run_training(tiny(), options);
    EXPECT_TRUE(stopped.stopped);
    EXPECT_EQ(stopped.steps, last);
    EXPECT_NE(stopped.weights_digest, expected);
    const fs::path checkpoint =
        fs::path(options.output) / fmt::format("checkpoints/step-{:06}/training.json", last);
    EXPECT_EQ(fs::exists(checkpoint), last > 0) << checkpoint;
    EXPECT_EQ(fs::exists(fs::path(options.output) / "curves.svg"), last > 0);
    options.stop = [] { return false; };
    const RunResult whole = run_training(tiny(), options);
    EXPECT_FALSE(whole.stopped);
    EXPECT_EQ(whole.weights_digest, expected) << "stopped after " << last;
  }
}

// A limit on the size of files stands for a full disk.
TEST_F(Runs, KeepTheLastCheckpointWhenTheNextFails) {
  RunOptions options = to("run");
  options.until = 2;
  run_training(tiny(), options);
  const fs::path checkpoints = fs::path(options.output) / "checkpoints";
  signal(SIGXFSZ, SIG_IGN);
  rlimit before{};
  getrlimit(RLIMIT_FSIZE, &before);
  rlimit small = before;
  small.rlim_cur = 100000;
  setrlimit(RLIMIT_FSIZE, &small);
  options.until = 4;
  EXPECT_THROW(run_training(tiny(), options), Error);
  small.rlim_cur = 100;
  setrlimit(RLIMIT_FSIZE, &small);
  try {
    MetricsFile metrics(directory_, 0);
    for (int64_t step = 1; step < 20; ++step) metrics.write(json::Object{{"step", step}});
    ADD_FAILURE() << "expected an error";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("metrics.jsonl: cannot be written: File too large"),
              std::string::npos)
        << error.what();
  }
  setrlimit(RLIMIT_FSIZE, &before);
  EXPECT_TRUE(fs::exists(checkpoints / "step-000002/training.json"));
  EXPECT_FALSE(fs::exists(checkpoints / "step-000004"));
  EXPECT_EQ(run_training(tiny(), options).steps, 4);
  EXPECT_FALSE(fs::exists(checkpoints / "step-000002"));
  EXPECT_FALSE(fs::exists(checkpoints / "step-000004.partial"));
}

TEST_F(Runs, RefuseTheCheckpointOfAnotherRecipe) {
  RunOptions options = to("run");
  options.until = 2;
  run_training(tiny(), options);
  const auto sentence_of = [&](const Recipe& recipe) -> std::string {
    try {
      run_training(recipe, options);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  Recipe other = tiny();
  other.trainer.optimizer.rate = 2e-2;
  EXPECT_NE(sentence_of(other).find("expected rate 0.02, found 0.01"), std::string::npos)
      << sentence_of(other);
  const fs::path state = fs::path(options.output) / "checkpoints/step-000002";
  fs::resize_file(state / "state/model.safetensors", 1000);
  EXPECT_NE(sentence_of(tiny()).find("model.safetensors"), std::string::npos);
  std::ofstream(state / "training.json") << "{}";
  EXPECT_NE(sentence_of(tiny()).find("training.json: expected \"step\""), std::string::npos);
}

// A recipe names directories; what stands there shows in the weights as well.
TEST_F(Runs, RefuseOtherContentsOfTheDirectoriesOfTheirRecipe) {
  run_training(tiny(), to("teacher"));
  const fs::path model = fs::path(to("teacher").output) / "model";
  Recipe recipe = tiny();
  recipe.tokenizer_from = recipe.teacher = model.string();
  recipe.trainer.teacher.share = 0.5f;
  RunOptions options = to("run");
  options.until = 2;
  run_training(recipe, options);
  const auto sentence = [&]() -> std::string {
    try {
      run_training(recipe, options);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(sentence(), "");
  const auto kept = read_whole_file((model / "tokenizer.json").string());
  std::ofstream(model / "tokenizer.json", std::ios::app) << "\n";
  EXPECT_NE(sentence().find("expected tokenizer digest"), std::string::npos) << sentence();
  std::ofstream(model / "tokenizer.json") << kept;
  Recipe seeded = tiny();
  seeded.seed = 4;
  run_training(seeded, to("other"));
  fs::rename(fs::path(to("other").output) / "model/model.safetensors", model / "model.safetensors");
  EXPECT_NE(sentence().find("expected teacher digest"), std::string::npos) << sentence();
}

// The bundled model's recipe, with few and short rows so that a step takes a second: recorded once,
// the same on every instruction set and number of threads.
TEST(Recipes, BeginAsRecorded) {
  const auto digest_of = [](const std::string& set, int threads, uint64_t seed) {
    Recipe recipe = read_recipe(INVAR_SOURCE_DIR "/recipes/story.toml");
    recipe.seed = seed;
    recipe.tokenizer_documents = 100;
    recipe.trainer.context = 32;
    recipe.trainer.rows = recipe.trainer.groups;
    recipe.evaluation_documents = 1;
    recipe.evaluate_every = recipe.save_every = 1000;
    RunOptions options;
    options.output =
        (fs::temp_directory_path() / fmt::format("invar-recipe-{}", getpid())).string();
    options.threads = threads;
    options.instruction_set = set;
    options.until = 2;
    const std::string digest = run_training(recipe, options).weights_digest;
    fs::remove_all(options.output);
    return digest;
  };
  const std::string recorded = "b4e630bc4f7da7ecb1009ef344ce23a96e983170efca8ea79df9b9ae6785dca6";
  for (const std::string& set : instruction_sets())
    if (set != "scalar" && is_supported(set)) {
      EXPECT_EQ(digest_of(set, set == "avx2" ? 1 : 2, 1), recorded) << set;
    }
  EXPECT_NE(digest_of("auto", 1, 2), recorded);
}

}  // namespace
}  // namespace invar
