// Products of e4m3 numbers in a model: one answer for every schedule, instruction set and number of
// threads and ranks, in both orders; and the directory that it is read from.
#include <gtest/gtest.h>

#include "../weights/model_files.h"
#include "kernels/select.h"
#include "model/families/make_model.h"
#include "model/families/presets.h"
#include "model/families/quantised_checkpoint.h"
#include "schedules.h"
#include "weights/hf_directory.h"

namespace invar {
namespace {

using namespace testing_model;

class Fp8Model : public testing::Test {
 protected:
  Fp8Model() {
    make_model(files_ / "bf16", {.spec = preset_spec("tiny")}, 7, pool_);
    write_fp8(files_ / "bf16", files_ / "fp8", pool_);
  }
  ModelOptions options() const { return {.model = files_ / "fp8", .weights = "fp8", .threads = 2}; }

  static std::vector<Tokens> sequences() {
    return {random_tokens(60, 512, 1), random_tokens(33, 512, 2), random_tokens(1, 512, 4)};
  }
  static RunnerLimits limits() { return {.blocks = 64, .max_rows = 512, .max_logit_rows = 512}; }
  static std::vector<Digests> hashes(const ModelOptions& options) {
    Model model(options);
    Executor runner(model, limits());
    return one_by_one(runner, sequences());
  }

  ThreadPool pool_{2};
  TempDirectory files_;
};

TEST_F(Fp8Model, HasOneAnswerUnderEverySchedule) {
  for (const char* order : {"portable", "hopper"}) {
    ModelOptions served = options();
    served.arithmetic = order;
    Model model(served);
    EXPECT_EQ(model.identity(), std::string("invar-1/") + order + "/fp8/row8.8");
    Executor runner(model, limits());
    const auto expected = one_by_one(runner, sequences());
    for (const int max_chunk : {7, 40, 90})
      EXPECT_EQ(random_schedule(runner, sequences(), 10 + max_chunk, max_chunk), expected)
          << order << " " << max_chunk;
    auto other = sequences();
    other[0][20] ^= 1;  // the control
    EXPECT_NE(random_schedule(runner, other, 5, 40)[0], expected[0]) << order;
  }
}

TEST_F(Fp8Model, HasOneAnswerOnEverySetThreadAndRank) {
  ModelOptions served = options();
  served.instruction_set = "scalar";
  const auto expected = hashes(served);
  for (const std::string& set : instruction_sets())
    for (const int ranks : {1, 2}) {
      if (!is_supported(set) || (set == "scalar" && ranks > 1)) continue;
      served.instruction_set = set;
      served.ranks = ranks;
      EXPECT_EQ(hashes(served), expected) << set << " " << ranks << " ranks";
    }
  served = options();
  served.threads = 4;
  EXPECT_EQ(hashes(served), expected);
}

TEST_F(Fp8Model, IsNotItsTwinOrTheOriginal) {
  ModelOptions twin = options(), original = options();
  twin.weights = original.weights = "auto";
  original.model = files_ / "bf16";
  EXPECT_EQ(Model(twin).identity(), "invar-1/portable/bf16/row8.8");
  const auto of_twin = hashes(twin);
  EXPECT_NE(of_twin, hashes(options()));
  EXPECT_NE(of_twin, hashes(original));
  EXPECT_LT(Model(options()).weight_bytes(), Model(original).weight_bytes());
}

// The largest weight of a block of 128 x 128 is 448 of its scales.
TEST_F(Fp8Model, IsWrittenByBlocks) {
  const auto before = open_checkpoint(files_ / "bf16"), after = open_checkpoint(files_ / "fp8");
  const std::string name = "model.layers.1.mlp.down_proj.weight";  // [128][512]
  EXPECT_EQ(after->info(name + "_scale_inv").shape, (std::vector<int64_t>{1, 4}));
  std::vector<float> scales(4), weights(128 * 512);
  after->read(name + "_scale_inv", 0, 4, DType::f32, scales.data());
  before->read(name, 0, std::ssize(weights), DType::f32, weights.data());
  std::vector<float> largest(4);
  for (size_t i = 0; i < weights.size(); ++i)
    largest[i % 512 / 128] = std::max(largest[i % 512 / 128], std::fabs(weights[i]));
  for (int b = 0; b < 4; ++b) EXPECT_EQ(scales[b], largest[b] / 448);
  EXPECT_EQ(error_of([&] { write_fp8(files_ / "fp8", files_ / "again", pool_); }),
            (files_ / "fp8") +
                ": expected weights that are not quantised yet, found a "
                "quantization_config");
}

}  // namespace
}  // namespace invar
