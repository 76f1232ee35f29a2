// Products of integers in a model: one answer for every schedule, instruction set, number of
// threads and ranks, in both orders; and what is refused.
#include <gtest/gtest.h>

#include "../weights/model_files.h"
#include "kernels/select.h"
#include "model/families/make_model.h"
#include "model/families/presets.h"
#include "model/families/quantised_checkpoint.h"
#include "schedules.h"

namespace invar {
namespace {

using namespace testing_model;

class Int8Model : public testing::Test {
 protected:
  Int8Model() {
    ThreadPool pool(2);
    make_model(files_ / "bf16", {.spec = preset_spec("tiny")}, 7, pool);
    write_w8a8(files_ / "bf16", files_ / "int8", pool);
  }
  ModelOptions options() const { return {.model = files_ / "int8", .threads = 2}; }

  static std::vector<Tokens> sequences() {
    return {random_tokens(90, 512, 1), random_tokens(33, 512, 2), random_tokens(1, 512, 4)};
  }
  static RunnerLimits limits() { return {.blocks = 64, .max_rows = 512, .max_logit_rows = 512}; }
  static std::vector<Digests> hashes(const ModelOptions& options) {
    Model model(options);
    Executor runner(model, limits());
    return one_by_one(runner, sequences());
  }

  TempDirectory files_;
};

TEST_F(Int8Model, HasOneAnswerUnderEverySchedule) {
  for (const char* order : {"portable", "hopper"}) {
    ModelOptions served = options();
    served.arithmetic = order;
    Model model(served);
    EXPECT_EQ(model.identity(), std::string("invar-1/") + order + "/int8/row8.8");
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

TEST_F(Int8Model, HasOneAnswerOnEverySetThreadAndRank) {
  ModelOptions served = options();
  served.instruction_set = "scalar";
  const auto expected = hashes(served);
  for (const std::string& set : instruction_sets())
    for (const int ranks : {1, 2, 4}) {
      if (!is_supported(set) || (set == "scalar" && ranks > 2)) continue;
      served.instruction_set = set;
      served.ranks = ranks;
      EXPECT_EQ(hashes(served), expected) << set << " " << ranks << " ranks";
    }
  served = options();
  served.threads = 4;
  EXPECT_EQ(hashes(served), expected);
}

// The twin is another arithmetic, of bf16, and near.
TEST_F(Int8Model, HasATwin) {
  ModelOptions twin = options(), original = options();
  twin.weights = "twin";
  original.model = files_ / "bf16";
  EXPECT_EQ(Model(twin).identity(), "invar-1/portable/bf16/row8.8");
  const auto of_twin = hashes(twin);
  EXPECT_NE(of_twin, hashes(options()));
  EXPECT_NE(of_twin, hashes(original));
}

TEST_F(Int8Model, StaysSmallInMemory) {
  ModelOptions twin = options();
  twin.weights = "twin";
  EXPECT_LT(Model(options()).weight_bytes(), Model(twin).weight_bytes());
}

// What the configuration says otherwise is another format.
TEST_F(Int8Model, RefusesOtherConfigurations) {
  const auto message_of = [&](const std::string& from, const std::string& to) {
    const std::string path = files_ / "int8/config.json", text = read_file(path);
    std::string changed = text;
    const size_t at = text.find(from);
    EXPECT_NE(at, text.npos) << from;
    write_file(path, changed.replace(at, from.size(), to));
    const std::string message = error_of([&] { Model model(options()); });
    write_file(path, text);
    return message;
  };
  expect_message(message_of(R"("num_bits": 8)", R"("num_bits": 4)"),
                 "expected 8 as num_bits of weights, found 4");
  expect_message(message_of(R"("channel")", R"("group")"), R"(expected "channel" as strategy)");
  expect_message(message_of(R"("token")", R"("tensor")"), R"(expected "token" as strategy)");
  expect_message(message_of(R"("dynamic": true)", R"("dynamic": false)"),
                 "dynamic of input_activations");
  expect_message(message_of(R"("compressed-tensors")", R"("gptq")"), "compressed-tensors");
  expect_message(message_of(R"("quant_method")", R"("kv_cache_scheme": {}, "quant_method")"),
                 "kv_cache_scheme");
  expect_message(message_of(R"("config_groups")", R"("other_groups")"), "config_groups");
}

TEST_F(Int8Model, RefusesControlAndIsRefusedInPlaceOfItsTwin) {
  ModelOptions served = options();
  served.arithmetic = "control";
  expect_message(error_of([&] { Model model(served); }), "use --weights twin");
  ModelOptions original = options();
  original.model = files_ / "bf16";
  Model model(original);
  expect_message(error_of([&] { model.take(files_ / "int8"); }), "expected matrices of the type");
}

}  // namespace
}  // namespace invar
