// A model whose matrices are stored in blocks has the bits of the bf16 model that they stand for:
// on every instruction set, for one rank and two, in both orders.
#include <gtest/gtest.h>

#include "../weights/blocks_source.h"
#include "../weights/model_files.h"
#include "kernels/select.h"
#include "model/families/make_model.h"
#include "model/families/presets.h"
#include "schedules.h"
#include "weights/checkpoint_writer.h"

namespace invar {
namespace {

using namespace testing_model;

class Directories : public testing::Test {
 protected:
  ModelOptions write(const std::string& name, const Form& form, const char* preset = "tiny") {
    const DecoderSpec spec = preset_spec(preset);
    ThreadPool pool(2);
    write_checkpoint(files_ / name, InBlocks(dummy_weights(spec, 7), form), pool);
    write_model_texts(files_ / name, {.spec = spec}, {});
    return {.model = files_ / name, .threads = 2};
  }

  static std::vector<Digests> hashes(const ModelOptions& options) {
    Model model(options);
    Executor runner(model, {.blocks = 64, .max_rows = 512, .max_logit_rows = 512});
    const int vocab = model.spec().vocab;
    return one_by_one(runner, {random_tokens(20, vocab, 1), random_tokens(1, vocab, 4)});
  }

  TempDirectory files_;
};

using BlocksInAModel = Directories;

TEST_F(BlocksInAModel, HaveTheBitsOfTheTensorThatTheyStandFor) {
  ModelOptions stored = write("stored", {}), twin = write("twin", {.is_stored = false});
  ModelOptions changed = write("changed", {.changed = "model.layers.1.mlp.down_proj.weight"});
  for (const char* order : {"portable", "hopper"}) {
    stored.arithmetic = twin.arithmetic = changed.arithmetic = order;
    const auto expected = hashes(twin);
    EXPECT_NE(hashes(changed), expected) << order;
    for (const std::string& set : instruction_sets())
      for (const int ranks : {1, 2}) {
        if (!is_supported(set)) continue;
        stored.instruction_set = set;
        stored.ranks = ranks;
        EXPECT_EQ(hashes(stored), expected) << order << " " << set << " " << ranks << " ranks";
      }
  }
}

// q, k and v meet the same input and stand in one matrix: where they are stored in different ways
// it holds what they stand for.
TEST_F(BlocksInAModel, MayStandBesideOtherMatrices) {
  const auto some = [](std::string_view name) {
    for (const char* other : {"v_proj", "layers.0.mlp", "embed"})
      if (name.find(other) != name.npos) return false;
    return true;
  };
  const ModelOptions stored = write("stored", {.has_blocks = some});
  const ModelOptions twin = write("twin", {.is_stored = false, .has_blocks = some});
  EXPECT_EQ(hashes(stored), hashes(twin));
}

TEST_F(BlocksInAModel, StaySmallInMemoryAndSayMode) {
  const Model stored(write("stored", {})), twin(write("twin", {.is_stored = false}));
  EXPECT_LT(stored.weight_bytes() * 10, twin.weight_bytes() * 6);
  EXPECT_EQ(stored.identity(), twin.identity());
}

TEST_F(BlocksInAModel, AreExpandedForTheBaseline) {
  ModelOptions stored = write("stored", {}), twin = write("twin", {.is_stored = false});
  stored.arithmetic = twin.arithmetic = "control";
  EXPECT_EQ(hashes(stored), hashes(twin));
}

TEST_F(BlocksInAModel, AreNotTakenOverByAModelOfOtherStorage) {
  const ModelOptions stored = write("stored", {}), twin = write("twin", {.is_stored = false});
  Model model(twin);
  expect_message(error_of([&] { model.take(stored.model); }), "other storage types");
}

}  // namespace
}  // namespace invar
