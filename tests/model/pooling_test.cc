#include "model/pooling.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "../weights/model_files.h"
#include "base/error.h"
#include "base/thread_pool.h"

namespace invar {
namespace {

namespace fs = std::filesystem;

class PoolingFiles : public testing::Test {
 protected:
  void SetUp() override {
    directory_ = own_.path();
    fs::create_directories(directory_ / "1_Pooling");
  }
  void write(const std::string& name, const std::string& text) {
    std::ofstream(directory_ / name) << text;
  }
  Pooling read() { return read_pooling(directory_.string(), kHidden); }
  void expect_refused(const std::string& part) {
    try {
      read();
      ADD_FAILURE() << "expected a refusal with " << part;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
    }
  }
  // A module of the directory, whose matrix has these rows.
  void write_dense(const std::string& name, int64_t inputs, const std::vector<float>& weights,
                   const std::string& more) {
    const auto outputs = std::ssize(weights) / inputs;
    fs::create_directories(directory_ / name);
    const std::string header = fmt::format(
        R"({{"linear.weight": {{"dtype": "F32", "shape": [{}, {}], "data_offsets": [0, {}]}}}})",
        outputs, inputs, 4 * weights.size());
    const std::string_view bytes(reinterpret_cast<const char*>(weights.data()), 4 * weights.size());
    write_file((directory_ / name / "model.safetensors").string(), safetensors(header, bytes));
    write(name + "/config.json",
          fmt::format(R"({{"in_features": {}, "out_features": {}{}}})", inputs, outputs, more));
  }
  static constexpr int64_t kHidden = 2;
  const TempDirectory own_;
  fs::path directory_;
};

std::string modules(const std::string& more) {
  return R"([{"path": "", "type": "sentence_transformers.models.Transformer"},
             {"path": "1_Pooling", "type": "sentence_transformers.models.Pooling"})" +
         more + "]";
}

TEST_F(PoolingFiles, SayNothingWhereThereAreNone) {
  EXPECT_EQ(read(), Pooling());
}

TEST_F(PoolingFiles, AreReadInBothSpellings) {
  write("modules.json", modules(R"(, {"path": "2", "type": "Normalize"})"));
  write("1_Pooling/config.json",
        R"({"pooling_mode_lasttoken": true, "pooling_mode_mean_tokens": false})");
  EXPECT_EQ(read(), (Pooling{Pooling::Kind::last, true, {}, true}));
  write("modules.json", modules(""));
  EXPECT_EQ(read(), (Pooling{Pooling::Kind::last, true, {}, false}));
  write("1_Pooling/config.json", R"({"pooling_mode": "cls"})");
  EXPECT_EQ(read(), (Pooling{Pooling::Kind::first, true, {}, false}));
  fs::remove(directory_ / "modules.json");
  write("1_Pooling/config.json", R"({"pooling_mode_mean_tokens": true})");
  EXPECT_EQ(read(), (Pooling{Pooling::Kind::mean, true, {}, false}));
}

TEST_F(PoolingFiles, OfOtherKindsAreRefused) {
  write("modules.json", modules(""));
  expect_refused("1_Pooling/config.json");
  write("1_Pooling/config.json", R"({"pooling_mode_max_tokens": true})");
  expect_refused("found max_tokens");
  write("1_Pooling/config.json",
        R"({"pooling_mode_cls_token": true, "pooling_mode_lasttoken": true})");
  expect_refused("found cls_token and lasttoken");
  write("1_Pooling/config.json", R"({})");
  expect_refused("found none");
  write("1_Pooling/config.json", R"({"pooling_mode": "mean"})");
  write("modules.json", modules(R"(, {"path": "3", "type": "models.WordWeights"})"));
  expect_refused("models.WordWeights");
  write("modules.json", modules(R"(, {"path": "../other", "type": "models.Pooling"})"));
  expect_refused("inside the directory");
  write("modules.json", R"({"a": 1})");
  expect_refused("expected a list");
}

TEST_F(PoolingFiles, DenseModulesAreAppliedInTurn) {
  write("1_Pooling/config.json", R"({"pooling_mode": "mean"})");
  write(
      "modules.json",
      modules(R"(, {"path": "2", "type": "models.Dense"}, {"path": "3", "type": "models.Dense"})"));
  write_dense("2", 2, {1, 2, 3, 4, 5, 6}, R"(, "activation_function": "torch.nn.Identity")");
  write_dense("3", 3, {1, 1, -1}, R"(, "activation_function": "torch.nn.ReLU")");
  const Pooling pooling = read();
  ASSERT_EQ(pooling.dense.size(), 2u);
  EXPECT_EQ(pooling.outputs(kHidden), 1);
  const ScopedFlushToZero flush;
  const std::vector<float> inner = pooling.dense[0].apply(std::vector<float>{1, 10});
  EXPECT_EQ(inner, (std::vector<float>{21, 43, 65}));
  EXPECT_EQ(pooling.dense[1].apply(std::vector<float>{1, 2, 1}), std::vector<float>{2});
  EXPECT_EQ(pooling.dense[1].apply(inner), std::vector<float>{0});
  // Other numbers are another module; one that does not fit is refused.
  write_dense("3", 3, {1, 1, -2}, R"(, "activation_function": "torch.nn.ReLU")");
  EXPECT_NE(read(), pooling);
  write_dense("3", 2, {1, 1}, R"(, "activation_function": "torch.nn.ReLU")");
  expect_refused("of 3 inputs");
  write_dense("3", 3, {1, 1, -1}, R"(, "activation_function": "torch.nn.Mish")");
  expect_refused("torch.nn.Mish");
}

}  // namespace
}  // namespace invar
