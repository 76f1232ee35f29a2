// Gemma 4: layers that read the keys and values of earlier ones, heads of their own sizes, what
// tokens bring to each layer, experts beside a dense network. An answer is the same however it is
// computed.
#include <gtest/gtest.h>

#include "base/error.h"
#include "engine_answers.h"
#include "model/families/presets.h"
#include "weights/model_files.h"

namespace invar {
namespace {

using namespace testing_engine;

struct Shape {
  std::string preset;
  SpecOverrides overrides;
};

// Late layers share; heads of 512 and keys as values; experts.
const Shape kShapes[] = {
    {"tiny", {.family = "gemma4_text", .layers = 6}},
    {"gemma-4-26b-a4b",
     {.hidden = 64,
      .layers = 6,
      .heads = 4,
      .kv_heads = 2,
      .head_dim = 32,
      .ffn = 64,
      .vocab = kVocab,
      .experts = 8,
      .chosen_experts = 2}},
};

class SharedKeys : public ::testing::TestWithParam<size_t> {
 protected:
  SharedKeys() {
    const Shape& shape = kShapes[GetParam()];
    DecoderSpec spec = override_spec(preset_spec(shape.preset), shape.overrides);
    for (LayerSpec& layer : spec.layer_specs)
      if (layer.window() > 0) layer.attention()->window = 24;
    ThreadPool pool(2);
    make_model(directory_.path(), {spec, {}, {}}, 7, pool);
  }

  ModelOptions model() const {
    return {.model = directory_.path(), .load_format = "auto", .threads = 2};
  }

  TempDirectory directory_;
};

TEST_P(SharedKeys, AnAnswerIsTheSameAloneAndAmongOthers) {
  Model shared(model());
  const auto expected = alone(shared);
  for (const std::string& policy : scheduler_names())
    EXPECT_EQ(answers_of(shared, options_of(policy)), expected) << policy;
  for (const int rows : {9, 17, 80}) {
    EngineOptions small = options_of();
    small.scheduler.max_num_batched_tokens = rows;
    small.block_size = 64;
    EXPECT_EQ(answers_of(shared, small), expected) << rows;
  }
  Engine engine(shared, options_of());
  Tally first, again;
  EXPECT_EQ(answers_of(engine, &first), expected);
  EXPECT_EQ(answers_of(engine, &again), expected);
  EXPECT_GT(again.cached, first.cached);
}

// The control: other weights.
TEST_P(SharedKeys, OtherWeightsGiveOtherAnswers) {
  Model shared(model());
  ModelOptions options = model();
  options.load_format = "dummy:8";
  Model other(options);
  EXPECT_NE(alone(other), alone(shared));
}

TEST_P(SharedKeys, NoDraftShows) {
  Model shared(model());
  expect_no_draft_shows(shared);
}

TEST_P(SharedKeys, NorDoRanksSetsAndLittleMemory) {
  Model shared(model());
  expect_no_preemption_shows(shared);
  expect_same_answers(model());
}

// In 8 bits a layer that shares keys reads what is stored of another one.
TEST_P(SharedKeys, ACacheOf8BitsAnswersTheSameInAnyPieces) {
  ModelOptions options = model();
  options.kv_cache_dtype = "int8";
  Model shared(options);
  const auto expected = alone(shared);
  EngineOptions small = options_of();
  small.scheduler.max_num_batched_tokens = 17;
  EXPECT_EQ(answers_of(shared, small), expected);
  Model exact(model());
  EXPECT_NE(alone(exact), expected);  // the control
}

INSTANTIATE_TEST_SUITE_P(Shapes, SharedKeys, ::testing::Values(0, 1));

// Late layers read what lies in another stage.
TEST(SharedKeysOfOneStage, StagesAreRefused) {
  TempDirectory directory;
  ThreadPool pool(2);
  make_model(directory.path(),
             {override_spec(preset_spec("tiny"), {.family = "gemma4_text"}), {}, {}}, 7, pool);
  try {
    Model model({.model = directory.path(), .threads = 1, .layer_cuts = {2}});
    FAIL() << "expected a refusal";
  } catch (const UsageError& error) {
    EXPECT_STREQ(
        error.what(),
        "the gemma4_text model has layers that read what is of other layers, which are one "
        "pipeline stage: expected 1, found 2");
  }
}

}  // namespace
}  // namespace invar
