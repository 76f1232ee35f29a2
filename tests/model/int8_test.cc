// Products of integers in a model: one answer for every schedule, instruction set, number of
// threads and ranks, in both orders; and what is refused.
#include "byte_model.h"

namespace invar {
namespace {

using namespace testing_model;

class Int8Model : public ByteModel {
 protected:
  Int8Model() : ByteModel("int8", "auto") {}
};

TEST_F(Int8Model, HasOneAnswerUnderEverySchedule) {
  expect_one_answer_under_every_schedule();
}

TEST_F(Int8Model, HasOneAnswerOnEverySetThreadAndRank) {
  expect_one_answer_on_every_set_thread_and_rank(4);
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
