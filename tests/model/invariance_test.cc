// The promise at the level of the model: the logits' bits at a position depend on the token prefix
// alone. Every test has a control that must differ, so that a comparison that compares nothing is
// noticed.
#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "base/error.h"
#include "kernels/select.h"
#include "schedules.h"

namespace invar {
namespace {

using namespace testing_model;

constexpr int kVocab = 512;

ModelOptions tiny(const char* preset = "tiny") {
  return {.model = preset, .load_format = "dummy:7", .threads = 2};
}

RunnerLimits limits(int block_size = 64) {
  return {.blocks = 64, .block_size = block_size, .max_rows = 512, .max_logit_rows = 512};
}

std::vector<Tokens> some_sequences() {
  return {random_tokens(150, kVocab, 1), random_tokens(33, kVocab, 2),
          random_tokens(128, kVocab, 3), random_tokens(1, kVocab, 4)};
}

std::vector<Digests> plain(const ModelOptions& options = tiny(), int block_size = 64) {
  Model model(options);
  Executor runner(model, limits(block_size));
  return one_by_one(runner, some_sequences());
}

TEST(ModelInvariance, ChunksNeighboursAndPlacesInTheBatchDoNotShow) {
  Model model(tiny());
  Executor runner(model, limits());
  const auto expected = plain();
  for (const int max_chunk : {1, 7, 40, 150})
    EXPECT_EQ(random_schedule(runner, some_sequences(), 10 + max_chunk, max_chunk), expected)
        << max_chunk;
  auto other = some_sequences();
  other[0][20] ^= 1;  // the control: one other token changes its position and those after it, only
  const auto changed = random_schedule(runner, other, 5, 40);
  for (int i = 0; i < 150; ++i) EXPECT_EQ(changed[0][i] == expected[0][i], i < 20) << i;
  EXPECT_EQ(changed[2], expected[2]);
}

TEST(ModelInvariance, BlockSizesAndThreadsDoNotShow) {
  const auto expected = plain();
  for (const int block_size : {32, 128}) EXPECT_EQ(plain(tiny(), block_size), expected);
  for (const int threads : {1, 3, 8}) {
    ModelOptions options = tiny();
    options.threads = threads;
    EXPECT_EQ(plain(options), expected) << threads;
  }
  ModelOptions other = tiny();
  other.load_format = "dummy:8";
  EXPECT_NE(plain(other), expected);
}

TEST(ModelInvariance, InstructionSetsDoNotShow) {
  ModelOptions options = tiny();
  options.instruction_set = "scalar";
  const auto expected = plain(options);
  for (const std::string& set : instruction_sets()) {
    options.instruction_set = set;
    if (is_supported(set)) {
      EXPECT_EQ(plain(options), expected) << set;
    } else {
      std::printf("not run: %s is not available on this machine\n", set.c_str());
    }
  }
}

TEST(ModelInvariance, RanksAndLayerCutsDoNotShow) {
  const auto expected = plain();
  for (const int ranks : {2, 4, 8}) {
    ModelOptions options = tiny();
    options.ranks = ranks;
    EXPECT_EQ(plain(options), expected) << ranks << " ranks";
  }
  Model model(tiny());
  for (int cut = 1; cut < model.spec().layers; ++cut) {
    ModelOptions options = tiny();
    options.layer_cuts = {cut};
    options.ranks = cut % 2 + 1;
    EXPECT_EQ(plain(options), expected) << "cut after layer " << cut;
  }
  ModelOptions three = tiny();
  three.ranks = 3;
  EXPECT_THROW(Model{three}, UsageError);
}

// Rows that choose experts: chunks, neighbours, ranks that share the experts out, stages.
TEST(ModelInvariance, ExpertsDoNotShowWhereTheyAreNorWhoElseChoseThem) {
  const auto expected = plain(tiny("tiny-moe"));
  Model model(tiny("tiny-moe"));
  Executor runner(model, limits());
  for (const int max_chunk : {1, 40})
    EXPECT_EQ(random_schedule(runner, some_sequences(), 10 + max_chunk, max_chunk), expected)
        << max_chunk;
  for (const int ranks : {2, 4, 8}) {
    ModelOptions options = tiny("tiny-moe");
    options.ranks = ranks;
    options.layer_cuts = {ranks / 2 % 3 + 1};
    EXPECT_EQ(plain(options), expected) << ranks << " ranks";
  }
  ModelOptions other = tiny("tiny-moe");
  other.load_format = "dummy:8";
  EXPECT_NE(plain(other), expected);
}

TEST(ModelInvariance, HopperIsAnotherArithmeticAndAsInvariant) {
  ModelOptions options = tiny();
  options.arithmetic = "hopper";
  Model model(options);
  Executor runner(model, limits(32));
  const auto expected = plain(options);
  EXPECT_NE(expected, plain());
  EXPECT_EQ(random_schedule(runner, some_sequences(), 3, 30), expected);
  options.ranks = 2;
  EXPECT_EQ(plain(options), expected);
}

// The baseline is a conventional arithmetic, not a broken one: its logits are near, and they move.
TEST(ModelInvariance, ControlIsNearAndMovesWithTheChunks) {
  const auto last_logits = [](const char* arithmetic, int chunk) {
    ModelOptions options = tiny();
    options.arithmetic = arithmetic;
    Model model(options);
    Executor runner(model, limits());
    const Tokens tokens = random_tokens(150, kVocab, 1);
    ForwardIo io;
    for (int done = 0; done < 150; done += chunk) {
      Batch batch;
      batch.sequences.push_back({{0, 1, 2}});
      for (int i = done; i < std::min(150, done + chunk); ++i)
        batch.rows.push_back({tokens[i], i, 0});
      batch.logit_rows = {static_cast<int>(batch.rows.size()) - 1};
      runner.run(batch, io);
    }
    return std::vector<float>(io.logits.begin(), io.logits.end());
  };
  const auto exact = last_logits("portable", 150);
  float range = 0;
  for (const float x : exact) range = std::max(range, std::fabs(x));
  std::set<std::vector<float>> different;
  for (const int chunk : {1, 7, 40, 150}) {
    const auto baseline = last_logits("control", chunk);
    different.insert(baseline);
    for (int i = 0; i < kVocab; ++i) ASSERT_NEAR(baseline[i], exact[i], 0.05f * range) << chunk;
  }
  EXPECT_EQ(different.size(), 4u);
}

// ---- Trees ----

TEST(ModelInvariance, TreeNodesEqualPlainDecodingOfTheirPaths) {
  PositionHasher hash;
  for (const int block_size : {32, 64, 128}) {
    Model model(tiny());
    Executor runner(model, limits(block_size));
    for (uint32_t seed = 0; seed < 6; ++seed) {
      // Bases around block and split edges, so that paths cross them.
      const int base = std::vector<int>{0, 27, 63, 100, 126, 127}[seed];
      const Tokens prefix = random_tokens(base, kVocab, 40 + seed);
      const Tree tree = random_tree(base, 8, 8, kVocab, seed);

      if (base) Stepper(runner, {prefix}).step({{0, base}});
      std::vector<Digest> expected;
      for (const Tokens& path : tree.path) {
        Tokens whole = prefix;
        whole.insert(whole.end(), path.begin(), path.end());
        Stepper stepper(runner, {whole});
        stepper.skip(0, base);  // its blocks hold the prefix already
        stepper.step({{0, static_cast<int>(path.size())}});
        expected.push_back(stepper.digests()[0].back());
      }

      const Batch batch = batch_of(tree, base, block_size);
      ForwardIo io;
      runner.run(batch, io);
      bool any_sibling_differs = false;
      for (size_t i = 0; i < tree.rows.size(); ++i) {
        const Digest digest = hash(io.logits.subspan(i * kVocab, kVocab));
        EXPECT_EQ(digest, expected[i]) << "base " << base << ", node " << i;
        any_sibling_differs |= i > 0 && digest != expected[i - 1];
      }
      EXPECT_TRUE(any_sibling_differs);
    }
  }
}

TEST(ModelInvariance, AuxHiddenStatesAreTheResidualStreamAndStagesPassThemOn) {
  Model model(tiny());
  RunnerLimits with_aux_hidden = limits();
  with_aux_hidden.max_aux_layers = 2;
  Executor runner(model, with_aux_hidden);
  const Tokens tokens = random_tokens(20, kVocab, 9);
  Batch batch;
  batch.sequences.push_back({{0}});
  for (int i = 0; i < 20; ++i) batch.rows.push_back({tokens[i], i, 0});
  batch.aux_layers = {0, model.spec().layers - 1};
  ForwardIo io;
  runner.run(batch, io);
  const size_t size = 20 * static_cast<size_t>(model.spec().hidden);
  ASSERT_EQ(io.aux_hidden.size(), 2 * size);
  const std::vector<float> aux_hidden(io.aux_hidden.begin(), io.aux_hidden.end());

  batch.aux_layers.clear();
  batch.layer_end = 1;
  runner.run(batch, io);
  EXPECT_TRUE(std::equal(io.hidden.begin(), io.hidden.end(), aux_hidden.begin()));
  EXPECT_FALSE(std::equal(io.hidden.begin(), io.hidden.end(), aux_hidden.begin() + size));
}

}  // namespace
}  // namespace invar
