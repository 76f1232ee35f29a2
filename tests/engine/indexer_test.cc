// Layers whose indexer chooses the positions that a row attends to: an answer is the same however
// it is computed, and it depends on the choice.
#include <gtest/gtest.h>

#include "base/error.h"
#include "engine_answers.h"
#include "model/families/presets.h"
#include "weights/model_files.h"

namespace invar {
namespace {

using namespace testing_engine;

constexpr int kMost = 20;  // of prompts of up to 101 tokens

// Each layer has an indexer, or most share what an earlier one chose.
class Indexers : public ::testing::TestWithParam<const char*> {
 protected:
  Indexers() { make(directory_, kMost); }

  static void make(const TempDirectory& directory, int most) {
    DecoderSpec spec = override_spec(preset_spec("tiny"), {.family = GetParam(), .layers = 5});
    for (LayerSpec& layer : spec.layer_specs) layer.attention()->latent->indexer->most = most;
    ThreadPool pool(2);
    make_model(directory.path(), {spec, {}, {}}, 7, pool);
  }
  ModelOptions model() const {
    return {.model = directory_.path(), .load_format = "auto", .threads = 2};
  }

  TempDirectory directory_;
};

TEST_P(Indexers, AnAnswerIsTheSameAloneAndAmongOthers) {
  Model sparse(model());
  const auto expected = alone(sparse);
  for (const std::string& policy : scheduler_names())
    EXPECT_EQ(answers_of(sparse, options_of(policy)), expected) << policy;
  for (const int rows : {9, 17, 80}) {
    EngineOptions small = options_of();
    small.scheduler.max_num_batched_tokens = rows;
    small.block_size = rows == 17 ? 64 : 128;
    EXPECT_EQ(answers_of(sparse, small), expected) << rows;
  }
  EngineOptions ahead = options_of();
  ahead.async_scheduling = true;
  EXPECT_EQ(answers_of(sparse, ahead), expected);
  Engine engine(sparse, options_of());
  Tally first, again;
  EXPECT_EQ(answers_of(engine, &first), expected);
  EXPECT_EQ(answers_of(engine, &again), expected);
  EXPECT_GT(again.cached, first.cached);
}

// The control: a choice of one position more.
TEST_P(Indexers, AnswersDependOnHowManyPositionsAreChosen) {
  TempDirectory other;
  make(other, kMost + 1);
  Model sparse(model()), wider({.model = other.path(), .load_format = "auto", .threads = 2});
  EXPECT_NE(alone(wider), alone(sparse));
}

TEST_P(Indexers, NoDraftShows) {
  Model sparse(model());
  expect_no_draft_shows(sparse);
}

TEST_P(Indexers, NorDoRanksSetsAndLittleMemory) {
  Model sparse(model());
  expect_no_preemption_shows(sparse);
  expect_same_answers(model());
}

INSTANTIATE_TEST_SUITE_P(Families, Indexers, ::testing::Values("deepseek_v32", "glm_moe_dsa"));

using OwnIndexers = Indexers;

TEST_P(OwnIndexers, NorDoStages) {
  Model sparse(model());
  ModelOptions options = model();
  options.layer_cuts = {1, 3};
  Model stages(options);
  EXPECT_EQ(answers_of(stages, options_of()), alone(sparse));
}

INSTANTIATE_TEST_SUITE_P(Families, OwnIndexers, ::testing::Values("deepseek_v32"));

using SharedIndexers = Indexers;

std::string refusal_of(const ModelOptions& options) {
  try {
    Model model(options);
  } catch (const UsageError& error) {
    return error.what();
  }
  return "none";
}

// Layers that share an index read what lies in another stage.
TEST_P(SharedIndexers, StagesAreRefused) {
  ModelOptions stages = model();
  stages.layer_cuts = {2};
  EXPECT_EQ(refusal_of(stages),
            "the glm_moe_dsa model has layers that read what is of other layers, which are one "
            "pipeline stage: expected 1, found 2");
}

INSTANTIATE_TEST_SUITE_P(Families, SharedIndexers, ::testing::Values("glm_moe_dsa"));

}  // namespace
}  // namespace invar
