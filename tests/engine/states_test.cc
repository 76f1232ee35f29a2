// Layers with states in the engine: an answer has the same bits whatever neighbours, chunks,
// drafts, ranks, stages and memory it meets, and whether it begins with a snapshot of another one's
// states.
#include <gtest/gtest.h>

#include "base/error.h"
#include "engine_answers.h"
#include "model/families/presets.h"
#include "weights/model_files.h"

namespace invar {
namespace {

using namespace testing_engine;

class States : public ::testing::TestWithParam<const char*> {
 protected:
  States() {
    const std::string name = GetParam(), family = name.substr(0, name.find(' '));
    DecoderSpec spec = override_spec(preset_spec("tiny"), {.family = family});
    for (LayerSpec& layer : spec.layer_specs)
      if (layer.experts() && name != family) layer.experts()->latent = 48;
    ThreadPool pool(2);
    make_model(directory_.path(), {spec, {}, {}}, 7, pool);
  }

  ModelOptions model() const {
    return {.model = directory_.path(), .load_format = "auto", .threads = 2};
  }

  TempDirectory directory_;
};

TEST_P(States, AnAnswerIsTheSameAloneAndAmongOthers) {
  Model of_states(model());
  const auto expected = alone(of_states);
  for (const std::string& policy : scheduler_names())
    EXPECT_EQ(answers_of(of_states, options_of(policy)), expected) << policy;
  EngineOptions small = options_of();
  small.scheduler.max_num_batched_tokens = 80;
  small.block_size = 64;
  EXPECT_EQ(answers_of(of_states, small), expected);
  EngineOptions ahead = options_of();
  ahead.async_scheduling = true;
  EXPECT_EQ(answers_of(of_states, ahead), expected);
}

// The control: other weights.
TEST_P(States, OtherWeightsGiveOtherAnswers) {
  Model of_states(model());
  ModelOptions options = model();
  options.load_format = "dummy:8";
  Model other(options);
  EXPECT_NE(alone(other), alone(of_states));
}

TEST_P(States, ASnapshotGivesTheSameAnswers) {
  Model of_states(model());
  const auto expected = alone(of_states);
  for (const int slots : {32, 64, 128}) {
    EngineOptions options = options_of();
    options.block_size = slots;
    options.scheduler.max_num_seqs = 32;
    Engine engine(of_states, options);
    Tally first, again;
    EXPECT_EQ(answers_of(engine, &first), expected) << slots;
    EXPECT_EQ(answers_of(engine, &again), expected) << slots;
    EXPECT_EQ(again.cached > first.cached, slots <= 64) << again.cached;  // prompts of up to 101
  }
}

TEST_P(States, NoDraftShows) {
  Model of_states(model());
  expect_no_draft_shows(of_states);
}

TEST_P(States, NorDoRanksStagesSetsAndLittleMemory) {
  Model of_states(model());
  expect_no_preemption_shows(of_states);
  expect_same_answers(model(), {[](ModelOptions& o) { o.layer_cuts = {1, 3}; }});
}

// The gated delta rule; short convolutions; Mamba 2 in layers of one part each; Kimi Delta
// Attention and latents; Mamba 2 beside attention; experts that read a latent vector.
INSTANTIATE_TEST_SUITE_P(Families, States,
                         ::testing::Values("qwen3_next", "lfm2_moe", "nemotron_h", "kimi_linear",
                                           "falcon_h1", "nemotron_h latent"));

using LargeStates = States;

TEST_P(LargeStates, MemoryThatHoldsNoStatesIsRefused) {
  Model of_states(model());
  EngineOptions options = options_of();
  options.kv_bytes = 1 << 20;
  try {
    Engine engine(of_states, options);
    FAIL() << "expected a refusal";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("not enough memory for the states of sequences: 8"),
              std::string::npos)
        << error.what();
  }
}

INSTANTIATE_TEST_SUITE_P(Families, LargeStates, ::testing::Values("qwen3_next"));

}  // namespace
}  // namespace invar
