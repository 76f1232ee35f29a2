// Products of e4m3 numbers in a model: one answer for every schedule, instruction set and number of
// threads and ranks, in both orders; and the directory that it is read from.
#include "byte_model.h"
#include "weights/hf_directory.h"

namespace invar {
namespace {

using namespace testing_model;

class Fp8Model : public ByteModel {
 protected:
  Fp8Model() : ByteModel("fp8", "fp8") {}
};

TEST_F(Fp8Model, HasOneAnswerUnderEverySchedule) {
  expect_one_answer_under_every_schedule();
}

TEST_F(Fp8Model, HasOneAnswerOnEverySetThreadAndRank) {
  expect_one_answer_on_every_set_thread_and_rank(2);
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

// By rows: also made of bf16 when it is opened.
class Fp8RowModel : public ByteModel {
 protected:
  Fp8RowModel() : ByteModel("fp8-row", "fp8-row") {}
};

TEST_F(Fp8RowModel, HasOneAnswerUnderEverySchedule) {
  expect_one_answer_under_every_schedule();
}

TEST_F(Fp8RowModel, HasOneAnswerOnEverySetThreadAndRank) {
  expect_one_answer_on_every_set_thread_and_rank(2);
}

TEST_F(Fp8RowModel, IsThatOfTheBf16ModelAndNotItsTwin) {
  ModelOptions made = options(), twin = options(), groups = options();
  made.model = files_ / "bf16";
  twin.weights = "auto";
  groups.weights = "fp8";
  EXPECT_EQ(Model(made).identity(), "invar-1/portable/fp8-row/row8.8");
  EXPECT_EQ(hashes(made), hashes(options()));
  EXPECT_NE(hashes(twin), hashes(options()));
  // Its runs have 128 columns at most, a group each, whose sums the two modes scale alike.
  EXPECT_EQ(hashes(groups), hashes(options()));
  made.ranks = 2;
  made.executor = "threads";
  EXPECT_EQ(hashes(made), hashes(options()));
}

TEST_F(Fp8RowModel, RefusesScalesOfBlocks) {
  write_fp8(files_ / "bf16", files_ / "blocks", pool_);
  ModelOptions blocks = options();
  blocks.model = files_ / "blocks";
  EXPECT_EQ(error_of([&] { Model model(blocks); }),
            "--weights fp8-row is for matrices with 128 k columns that are bf16, or f8_e4m3 with "
            "scales of rows or of whole tensors, and this model has none");
}

}  // namespace
}  // namespace invar
