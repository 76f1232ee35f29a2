// The whole model on a GPU against the CPU: every logit of every position, however the rows are cut
// into steps.
#include <fmt/format.h>

#include <filesystem>

#include "../model/schedules.h"
#include "../weights/model_files.h"
#include "base/error.h"
#include "cuda_check.h"
#include "engine/engine.h"
#include "model/families/make_model.h"
#include "model/families/presets.h"

namespace invar {
namespace {

using namespace testing_model;

constexpr RunnerLimits kLimits = {
    .blocks = 64, .block_size = 64, .max_rows = 512, .max_logit_rows = 512};

std::vector<Tokens> some_sequences(int vocab) {
  return {random_tokens(170, vocab, 1), random_tokens(33, vocab, 2), random_tokens(129, vocab, 3),
          random_tokens(1, vocab, 4)};
}

// Hashes of all logits; `max_chunk` rows of a sequence at most in a step, 0: all at once.
std::vector<Digests> hashes(const ModelOptions& options, int max_chunk = 0) {
  Model model(options);
  Executor runner(model, kLimits);
  const auto sequences = some_sequences(model.spec().vocab);
  if (max_chunk) return random_schedule(runner, sequences, 7, max_chunk);
  Stepper stepper(runner, sequences);
  std::vector<std::pair<int, int>> all;
  for (int s = 0; s < static_cast<int>(sequences.size()); ++s) all.emplace_back(s, stepper.left(s));
  stepper.step(all);
  return stepper.digests();
}

ModelOptions on_gpu(ModelOptions options) {
  options.device = "cuda";
  return options;
}

std::string golden(const std::string& name) {
  std::filesystem::path folder = std::filesystem::path(INVAR_SOURCE_DIR) / "tests/data/golden";
  if (!std::filesystem::exists(folder)) folder = "tests/data/golden";
  return folder / name;
}

void check(const ModelOptions& options) {
  const auto expected = hashes(options);
  const std::string what =
      fmt::format("{} {} {}", options.model, options.arithmetic, options.weights);
  EXPECT_EQ(hashes(on_gpu(options)), expected) << what;
  EXPECT_EQ(hashes(on_gpu(options), 40), expected) << what << ", in random steps";
}

using ModelOnGpu = CudaTest;

TEST_F(ModelOnGpu, GoldenModels) {
  for (const char* name :
       {"llama-gqa", "llama3-rope-tied", "mistral-window", "qwen2-bias", "qwen3-qknorm"})
    for (const char* arithmetic : {"portable", "hopper"})
      for (const char* weights : {"auto", "rounded", "exact"}) {
        const ModelOptions options{
            .model = golden(name), .arithmetic = arithmetic, .weights = weights};
        try {
          check(options);
        } catch (const UsageError&) {
          EXPECT_STREQ(arithmetic, "hopper");  // of f32 weights
          EXPECT_STRNE(weights, "rounded");
        }
      }
}

ModelOptions made(const char* arithmetic, const char* load_format = "dummy:1") {
  return {.model = "tiny", .load_format = load_format, .arithmetic = arithmetic};
}

TEST_F(ModelOnGpu, MadeModel) {
  for (const char* arithmetic : {"portable", "hopper"}) check(made(arithmetic));
  for (const char* arithmetic : {"portable", "hopper"}) {
    ModelOptions experts = made(arithmetic);
    experts.model = "tiny-moe";
    check(experts);
  }
  EXPECT_NE(hashes(on_gpu(made("portable"))), hashes(on_gpu(made("hopper"))));
  EXPECT_NE(hashes(on_gpu(made("portable"))), hashes(on_gpu(made("portable", "dummy:2"))));
}

// All in f32, of bf16 weights and with experts; and the modes' bits are not the same.
TEST_F(ModelOnGpu, Exact) {
  for (const char* model : {"tiny", "tiny-moe"}) {
    ModelOptions options = made("portable");
    options.model = model;
    options.weights = "exact";
    check(options);
    const auto exact = hashes(on_gpu(options));
    ModelOptions ranks = on_gpu(options);
    ranks.ranks = 2;
    EXPECT_EQ(hashes(ranks, 40), exact) << model << " on 2 ranks";
    options.weights = "auto";
    EXPECT_NE(hashes(on_gpu(options)), exact) << model;
  }
  ModelOptions options = on_gpu(made("hopper"));
  options.weights = "exact";
  EXPECT_THROW(Model{options}, UsageError);
}

// Latents of their published size, and experts behind them.
TEST_F(ModelOnGpu, LatentAttention) {
  const TempDirectory directory;
  const ModelConfig config{override_spec(preset_spec("deepseek-v2-lite"), {.hidden = 128,
                                                                           .layers = 2,
                                                                           .heads = 4,
                                                                           .ffn = 64,
                                                                           .vocab = 512,
                                                                           .experts = 8,
                                                                           .chosen_experts = 2}),
                           1,
                           {2}};
  ThreadPool pool(2);
  make_model(directory.path(), config, 7, pool);
  for (const char* arithmetic : {"portable", "hopper"})
    check({.model = directory.path(), .arithmetic = arithmetic});
}

// Late layers that share keys, with what tokens bring to each layer; heads of 512 and keys that are
// values; experts beside a dense network. In f32, too, and on several ranks.
TEST_F(ModelOnGpu, Gemma4) {
  SpecOverrides small{.hidden = 64,
                      .layers = 6,
                      .heads = 4,
                      .kv_heads = 2,
                      .head_dim = 32,
                      .ffn = 64,
                      .vocab = 512,
                      .max_positions = 1024};
  DecoderSpec late = override_spec(preset_spec("tiny"), {.family = "gemma4_text", .layers = 6}),
              wide = override_spec(preset_spec("gemma-4-31b"), small);
  small.experts = 8;
  small.chosen_experts = 2;
  DecoderSpec with_experts = override_spec(preset_spec("gemma-4-26b-a4b"), small);
  ThreadPool pool(2);
  for (DecoderSpec* spec : {&late, &wide, &with_experts}) {
    for (LayerSpec& layer : spec->layer_specs)
      if (layer.window() > 0) layer.attention()->window = 24;
    const TempDirectory directory;
    make_model(directory.path(), {*spec, {}, {}}, 7, pool);
    ModelOptions options{.model = directory.path()};
    for (const char* arithmetic : {"portable", "hopper"}) {
      options.arithmetic = arithmetic;
      check(options);
      ModelOptions ranks = on_gpu(options);
      ranks.ranks = 2;
      EXPECT_EQ(hashes(ranks, 40), hashes(options)) << arithmetic << " on 2 ranks";
    }
    check({.model = directory.path(), .arithmetic = "portable", .weights = "exact"});
  }
}

// The steps of a decoding engine are graphs; without them the bits are the same.
TEST_F(ModelOnGpu, RecordedSteps) {
  for (const char* arithmetic : {"portable", "hopper"}) {
    Model model(on_gpu(made(arithmetic)));
    const auto decoded = [&](bool records, uint32_t seed) {
      RunnerLimits limits = kLimits;
      limits.records_steps = records;
      Executor runner(model, limits);
      Stepper stepper(runner, {random_tokens(90, model.spec().vocab, seed),
                               random_tokens(60, model.spec().vocab, 2)});
      stepper.step({{0, 70}, {1, 40}});
      for (int i = 0; i < 20; ++i) stepper.step({{0, 1}, {1, 1}});
      EXPECT_EQ(runner.recorded_steps(), records ? 19 : 0);
      return stepper.digests();
    };
    EXPECT_EQ(decoded(true, 1), decoded(false, 1)) << arithmetic;
    EXPECT_NE(decoded(true, 1), decoded(false, 3)) << arithmetic;
  }
}

// Ranks go round the GPUs, so that one GPU is enough to play several.
TEST_F(ModelOnGpu, RanksAndLayerCuts) {
  for (const char* arithmetic : {"portable", "hopper"}) {
    const auto expected = hashes(made(arithmetic));
    for (const int ranks : {2, 4, 8}) {
      ModelOptions options = on_gpu(made(arithmetic));
      options.ranks = ranks;
      EXPECT_EQ(hashes(options, 40), expected) << ranks << " ranks";
    }
    ModelOptions options = on_gpu(made(arithmetic));
    options.ranks = 2;
    options.layer_cuts = {1};
    EXPECT_EQ(hashes(options), expected) << "cut after layer 1";
  }
}

TEST_F(ModelOnGpu, DraftTrees) {
  for (const char* arithmetic : {"portable", "hopper"}) {
    Model host_model(made(arithmetic)), gpu_model(on_gpu(made(arithmetic)));
    Executor host(host_model, kLimits), gpu(gpu_model, kLimits);
    const int vocab = host_model.spec().vocab;
    for (uint32_t seed = 0; seed < 4; ++seed) {
      const int base = std::vector<int>{27, 63, 126, 127}[seed];
      const Batch batch = batch_of(random_tree(base, 8, 8, vocab, seed), base, kLimits.block_size);
      const auto digests = [&](Executor& runner) {
        Stepper(runner, {random_tokens(base, vocab, 40 + seed)}).step({{0, base}});
        ForwardIo io;
        runner.run(batch, io);
        Digests all;
        PositionHasher hash;
        for (size_t i = 0; i < batch.rows.size(); ++i)
          all.push_back(hash(io.logits.subspan(i * vocab, vocab)));
        return all;
      };
      EXPECT_EQ(digests(gpu), digests(host)) << arithmetic << ", base " << base;
    }
  }
}

// The engine sizes its blocks by what the GPU has left, and answers, with two steps in flight and
// step by step. A step waits once, or not at all where it was done already.
TEST_F(ModelOnGpu, EngineAnswers) {
  struct Answer final : OutputSink {
    void on_token(const TokenOutput& output) override {
      tokens.push_back(output.token);
      hash = output.logits_hash;
    }
    std::vector<int32_t> tokens;
    Digest hash{};
  };
  const auto answer = [](const ModelOptions& options, bool with_hash, uint64_t seed,
                         bool async = true) {
    Model model(options);
    Engine engine(model, {.async_scheduling = async});
    EXPECT_GE(engine.num_blocks(), 1);
    Request request{
        .id = 1, .prompt = random_tokens(70, model.spec().vocab, 3), .hash_logits = with_hash};
    request.params.max_tokens = 20;
    request.params.seed = seed;
    engine.add(std::move(request));
    Answer sink;
    for (;;) {
      const int64_t before = model.device().waits();
      if (!engine.step(sink)) return sink;
      if (!model.device().is_host()) {
        EXPECT_LE(model.device().waits() - before, 1) << "waits of a step";
      }
    }
  };
  for (const char* arithmetic : {"portable", "hopper"}) {
    const Answer expected = answer(made(arithmetic), true, 1);
    const Answer hashed = answer(on_gpu(made(arithmetic)), true, 1);
    EXPECT_EQ(hashed.hash, expected.hash) << arithmetic;
    EXPECT_EQ(hashed.tokens, expected.tokens) << arithmetic;
    const Answer in_turn = answer(on_gpu(made(arithmetic)), true, 1, false);
    EXPECT_EQ(in_turn.hash, expected.hash) << arithmetic;
    EXPECT_EQ(answer(on_gpu(made(arithmetic)), false, 1).tokens, expected.tokens) << arithmetic;
    EXPECT_NE(answer(on_gpu(made(arithmetic)), false, 2).tokens, expected.tokens) << arithmetic;
  }
}

// The baseline is close to what the orders give, in prompts and in decoding.
TEST_F(ModelOnGpu, BaselineIsClose) {
  constexpr int kPrompt = 150, kDecoded = 4;
  const auto logits = [&](const ModelOptions& options) {
    Model model(options);
    Executor runner(model, kLimits);
    const Tokens tokens = random_tokens(kPrompt + kDecoded, model.spec().vocab, 5);
    std::vector<float> all;
    for (int begin = 0, end = kPrompt; end <= kPrompt + kDecoded; begin = end++) {
      Batch batch;
      batch.sequences.push_back({.blocks = {3, 1, 2}});
      for (int i = begin; i < end; ++i)
        batch.rows.push_back({.token = tokens[i], .position = i, .sequence = 0});
      batch.logit_rows = {end - begin - 1};
      ForwardIo io;
      runner.run(batch, io);
      all.insert(all.end(), io.logits.begin(), io.logits.end());
    }
    return all;
  };
  const auto exact = logits(made("portable")), control = logits(on_gpu(made("control")));
  ASSERT_EQ(exact.size(), control.size());
  EXPECT_NE(exact, control);
  for (size_t i = 0; i < exact.size(); ++i) ASSERT_NEAR(exact[i], control[i], 0.1) << i;
}

// What this device cannot do is refused with a sentence.
TEST_F(ModelOnGpu, Refusals) {
  const auto with = [&](auto change) {
    ModelOptions options = on_gpu(made("portable"));
    change(options);
    return options;
  };
  EXPECT_THROW(Model(with([](auto& o) { o.device = "cuda:99"; })), Error);
  EXPECT_THROW(Model(with([](auto& o) { o.device = "cuda:x"; })), UsageError);
  EXPECT_THROW(Model(with([](auto& o) { o.device = "gpu"; })), UsageError);
  EXPECT_THROW(Model(with([](auto& o) { o.instruction_set = "avx2"; })), UsageError);
  Model model(on_gpu(made("portable")));
  EXPECT_THROW(Executor(model, {.blocks = 1 << 30}), Error);  // too little memory
}

}  // namespace
}  // namespace invar
