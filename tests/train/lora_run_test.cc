// Recipes with an adapter, of training and of reinforcement learning: what is written is what was
// trained, however a run is computed and interrupted.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "../weights/model_files.h"
#include "base/error.h"
#include "base/json.h"
#include "model/families/gguf_checkpoint.h"
#include "model/families/quantised_checkpoint.h"
#include "session/adapter.h"
#include "train/rl/rl_run.h"
#include "train/training_run.h"
#include "weights/hf_directory.h"

namespace invar {
namespace {

namespace fs = std::filesystem;

// Learns in a second to end its sums with "The answer is".
constexpr const char* kBase = R"(
name = "base"
[corpus]
kinds = ["arithmetic"]
[tokenizer]
documents = 100
[model]
hidden = 64
layers = 2
heads = 2
kv_heads = 1
head_dim = 32
ffn = 128
vocab = 600
max_positions = 256
[training]
context = 128
rows = 8
groups = 2
batch_rows = 4
[optimizer]
steps = 300
warmup = 10
rate = 1e-2
[mtp]
weight = 0.1
[evaluation]
documents = 10
every = 1000
[checkpoint]
every = 1000
)";

constexpr const char* kLora = R"(
name = "lora"
seed = 3
model = "base/model"
[corpus]
kinds = ["arithmetic"]
[lora]
rank = 4
target_modules = ["q_proj", "o_proj", "mlp.up_proj"]
[training]
context = 128
rows = 4
groups = 2
batch_rows = 2
[optimizer]
steps = 6
warmup = 1
rate = 1e-2
[evaluation]
documents = 10
every = 6
[checkpoint]
every = 2
)";

constexpr const char* kRl = R"(
name = "rl"
seed = 1
model = "base/model"
[tasks]
kinds = ["arithmetic"]
[rollouts]
prompts = 8
answers = 8
max_tokens = 40
[policy]
method = "reinforce"
[lora]
rank = 4
target_modules = "all-linear"
[training]
context = 128
groups = 2
batch_rows = 4
[optimizer]
steps = 3
warmup = 1
rate = 1e-2
decay = 0.0
[evaluation]
problems = 0
[checkpoint]
every = 1
)";

class LoraRuns : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    directory_ = std::make_unique<TempDirectory>();
    run_training(read_recipe(write("base.toml", kBase)), to<RunOptions>("base"));
  }
  static void TearDownTestSuite() { directory_.reset(); }

  static std::string write(const std::string& name, const std::string& text) {
    write_file(*directory_ / name, text);
    return *directory_ / name;
  }
  static std::string replaced(std::string text, const std::string& from, const std::string& to) {
    return text.replace(text.find(from), from.size(), to);
  }
  static Recipe recipe() { return read_recipe(write("lora.toml", kLora)); }
  static rl::RlRecipe rl_recipe() { return rl::read_rl_recipe(write("rl.toml", kRl)); }
  template <typename Options>
  static Options to(const std::string& name) {
    Options options;
    options.output = *directory_ / name;
    options.threads = 1;
    return options;
  }
  static std::string adapter_of(const std::string& run) {
    return read_file(*directory_ / (run + "/adapter/adapter_model.safetensors"));
  }

  static inline std::unique_ptr<TempDirectory> directory_;
};

TEST_F(LoraRuns, GiveTheSameAdapterHoweverTheyAreRun) {
  const RunResult whole = run_training(recipe(), to<RunOptions>("whole"));
  auto other = to<RunOptions>("other");
  other.threads = 2, other.ranks = 2;
  EXPECT_EQ(run_training(recipe(), other).weights_digest, whole.weights_digest);
  EXPECT_EQ(adapter_of("other"), adapter_of("whole"));
  auto halves = to<RunOptions>("halves");
  halves.until = 3;
  EXPECT_NE(run_training(recipe(), halves).weights_digest, whole.weights_digest);
  halves.until = 0;
  EXPECT_EQ(run_training(recipe(), halves).weights_digest, whole.weights_digest);
  EXPECT_EQ(adapter_of("halves"), adapter_of("whole"));
  // The controls: another seed of A, another scale.
  for (const char* changed : {"rank = 4\nseed = 4", "rank = 4\nalpha = 9"}) {
    const Recipe r = read_recipe(write("o.toml", replaced(kLora, "rank = 4", changed)));
    EXPECT_NE(run_training(r, to<RunOptions>(changed)).weights_digest, whole.weights_digest);
  }
}

// Killed behind any step.
TEST_F(LoraRuns, GoOnAfterTheyAreKilled) {
  const std::string expected = run_training(recipe(), to<RunOptions>("whole")).weights_digest;
  const Recipe r = recipe();
  for (const int64_t last : {1, 3, 4}) {
    auto options = to<RunOptions>("killed-" + std::to_string(last));
    const pid_t child = fork();
    if (child == 0) {
      options.progress = [&](const RunProgress& p) {
        if (p.report.step == last) kill(getpid(), SIGKILL);
      };
      run_training(r, options);
      _exit(0);
    }
    int status = 0;
    waitpid(child, &status, 0);
    ASSERT_TRUE(WIFSIGNALED(status));
    EXPECT_EQ(run_training(r, options).weights_digest, expected) << "killed at " << last;
  }
}

// A run learns what the model has not seen, the adapter is one of the model's, and a checkpoint has
// nothing else.
TEST_F(LoraRuns, LearnAndWriteWhatServersOpen) {
  const std::string longer =
      replaced(replaced(kLora, "steps = 6", "steps = 24"), "arithmetic", "talk");
  auto options = to<RunOptions>("learns");
  std::vector<double> losses;
  options.progress = [&](const RunProgress& p) {
    if (p.held_out_loss >= 0) losses.push_back(p.held_out_loss);
  };
  run_training(read_recipe(write("longer.toml", longer)), options);
  ASSERT_EQ(losses.size(), 4U);
  EXPECT_LT(losses.back(), losses.front());
  const HfDirectory base = open_hf_directory(*directory_ / "base/model");
  const DecoderSpec spec = parse_model_config(base.config, base.generation_config, "").spec;
  const auto adapter =
      open_adapter("a", *directory_ / "learns/adapter", spec, AdapterUser::trainer);
  EXPECT_EQ(adapter->rank, 4);
  const json::Value config = json::parse_file(*directory_ / "learns/adapter/adapter_config.json");
  EXPECT_EQ(*config.find("lora_alpha"), json::Value(8.0));
  EXPECT_EQ(*config.find("base_model_name_or_path"), json::Value(*directory_ / "base/model"));
  int files = 0;
  for (const auto& file : fs::recursive_directory_iterator(*directory_ / "learns/checkpoints"))
    if (file.is_regular_file()) {
      EXPECT_LT(file.file_size(), 200'000U) << file.path();
      ++files;
    }
  EXPECT_GE(files, 4);
}

// A recipe names the model relative to its own directory, wherever it is read from.
TEST_F(LoraRuns, FindTheModelBesideTheRecipe) {
  const fs::path path = write("recipes/lora.toml", replaced(kLora, "base/model", "../base/model"));
  const Recipe r = read_recipe(fs::relative(path).string());
  EXPECT_EQ(fs::absolute(r.base).lexically_normal(), fs::path(*directory_ / "base/model"));
  EXPECT_EQ(r.tokenizer_from, r.base);
}

TEST_F(LoraRuns, RefuseBadRecipesInOneSentence) {
  const auto refusal = [&](const std::string& from, const std::string& to) {
    const std::string path = write("bad.toml", replaced(kLora, from, to));
    return error_of([&] { run_training(read_recipe(path), LoraRuns::to<RunOptions>("bad")); });
  };
  expect_message(refusal("rank = 4", "rank = 0"), "\"lora.rank\" from 1 to 256, found 0");
  expect_message(refusal("rank = 4", "dropout = 0.1"), "found \"lora.dropout\"");
  expect_message(refusal("model = \"base/model\"", "model = \"none\""), "none");
  expect_message(refusal("[training]", "[mtp]\nweight = 0.1\n[training]"),
                 "expected no [mtp] beside [lora]");
  expect_message(refusal("[training]", "[tokenizer]\ndocuments = 9\n[training]"),
                 "expected no [tokenizer] beside [lora]");
  expect_message(refusal("q_proj", "lm_head"), "found \"lm_head\"");
  expect_message(refusal("q_proj", "embed_tokens"), "adapters of \"model.embed_tokens\"");
  // The base is part of what a run goes on with.
  auto options = to<RunOptions>("run");
  options.until = 2;
  run_training(recipe(), options);
  Recipe other = recipe();
  other.trainer.lora.settings.alpha = 1;
  expect_message(error_of([&] { run_training(other, options); }), "expected lora {");
}

// The sampler of every step is the trainer's policy with the adapter, to the bit.
TEST_F(LoraRuns, LearnByReinforcement) {
  const auto run = [&](const rl::RlRecipe& r, const std::string& name,
                       std::vector<rl::RlProgress>* steps = nullptr, int64_t until = 0) {
    auto options = to<rl::RlOptions>(name);
    options.until = until;
    options.progress = [&](const rl::RlProgress& p) {
      if (steps) steps->push_back(p);
    };
    return run_rl(r, options).weights_digest;
  };
  std::vector<rl::RlProgress> steps;
  const std::string expected = run(rl_recipe(), "rl", &steps);
  ASSERT_EQ(steps.size(), 3U);
  double rewards = 0, gradients = 0;
  for (const rl::RlProgress& p : steps) {
    EXPECT_GT(p.mismatch.tokens, 200);
    EXPECT_EQ(p.mismatch.different, 0);
    EXPECT_EQ(p.mismatch.k3, 0.0);
    rewards += p.reward;
    gradients += p.report.gradient_norm;
  }
  EXPECT_GT(rewards, 0.0);
  EXPECT_GT(gradients, 0.0);
  // Servers open the adapter that was written.
  const HfDirectory base = open_hf_directory(*directory_ / "base/model");
  const DecoderSpec spec = parse_model_config(base.config, base.generation_config, "").spec;
  EXPECT_EQ(open_adapter("a", *directory_ / "rl/adapter", spec, AdapterUser::trainer)->rank, 4);
  // Stopped and gone on with; with threads.
  EXPECT_NE(run(rl_recipe(), "rl-halves", nullptr, 1), expected);
  EXPECT_EQ(run(rl_recipe(), "rl-halves"), expected);
  EXPECT_EQ(adapter_of("rl-halves"), adapter_of("rl"));
  // The control: the KL to the model without an adapter counts from the second step on.
  rl::RlRecipe held = rl_recipe();
  held.policy.reference = 0.5;
  EXPECT_NE(run(held, "rl-held"), expected);

  const auto refusal = [&](const std::string& more) {
    const std::string path = write("bad-rl.toml", kRl + more);
    return error_of([&] { rl::read_rl_recipe(path); });
  };
  expect_message(refusal("[sampler]\nweights = \"int8\"\n"),
                 "expected the trained policy as the sampler beside [lora]");
  expect_message(refusal("[[runs]]\nname = \"c\"\narithmetic = \"control\"\n"),
                 "expected the trained policy as the sampler of every run beside [lora]");
}

// Beside numbers of 8 and 4 bits an adapter is the one beside their bf16 twin, and the sampler that
// computes with them is the trained policy.
TEST_F(LoraRuns, AreThoseOfTheTwinBesideQuantisedModels) {
  ThreadPool pool(1);
  const std::string base = *directory_ / "base/model";
  const std::string plain = run_training(recipe(), to<RunOptions>("whole")).weights_digest;
  const std::map<std::string, std::function<void(const std::string&)>> made = {
      {"w8a8", [&](const std::string& to) { write_w8a8(base, to, pool); }},
      {"fp8", [&](const std::string& to) { write_fp8(base, to, pool); }},
      {"q8_0.gguf", [&](const std::string& to) { write_gguf_model(base, to, DType::q8_0, pool); }},
      {"q4_0.gguf", [&](const std::string& to) { write_gguf_model(base, to, DType::q4_0, pool); }}};
  for (const auto& [name, make] : made) {
    SCOPED_TRACE(name);
    const std::string model = *directory_ / name, twin = *directory_ / ("twin-of-" + name);
    make(model);
    write_dequantised(model, twin, pool);
    const auto digest_beside = [&](const std::string& of) {
      const std::string path =
          write("beside.toml", replaced(kLora, "base/model", fs::relative(of, directory_->path())));
      return run_training(read_recipe(path),
                          to<RunOptions>("beside-" + fs::path(of).filename().string()))
          .weights_digest;
    };
    const std::string digest = digest_beside(model);
    EXPECT_EQ(digest, digest_beside(twin));
    EXPECT_NE(digest, plain);

    auto options = to<rl::RlOptions>("rl-" + name);
    options.until = 2;
    int steps = 0;
    options.progress = [&](const rl::RlProgress& p) {
      EXPECT_GT(p.mismatch.tokens, 200);
      EXPECT_EQ(p.mismatch.different, 0);
      ++steps;
    };
    run_rl(rl::read_rl_recipe(write("rl.toml", replaced(kRl, "base/model", name))), options);
    EXPECT_EQ(steps, 2);
  }
}

// Engines compute such a model in f32, the trainer in bf16.
TEST_F(LoraRuns, RefuseIntegersBesideF16) {
  ThreadPool pool(1);
  const std::string model = *directory_ / "w8a8-f16", file = model + "/model.safetensors";
  write_w8a8(*directory_ / "base/model", model, pool);
  const Recipe recipe = read_recipe(write("f16.toml", replaced(kLora, "base/model", "w8a8-f16")));
  EXPECT_NO_THROW(run_training(recipe, to<RunOptions>("beside-bf16")));
  std::string bytes = read_file(file);
  const size_t at = bytes.find("\"BF16\"", bytes.find("\"model.embed_tokens.weight\""));
  ASSERT_NE(at, bytes.npos);
  write_file(file, bytes.replace(at, 6, "\"F16\" "));
  expect_message(error_of([&] { run_training(recipe, to<RunOptions>("beside-f16")); }),
                 "expected bf16 beside the quantised matrices");
}

}  // namespace
}  // namespace invar
