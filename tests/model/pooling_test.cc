#include "model/pooling.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "../weights/model_files.h"
#include "base/error.h"

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
  Pooling read() { return read_pooling(directory_.string()); }
  void expect_refused(const std::string& part) {
    try {
      read();
      ADD_FAILURE() << "expected a refusal with " << part;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
    }
  }
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
  EXPECT_EQ(read(), (Pooling{Pooling::Kind::last, true, true}));
  write("modules.json", modules(""));
  EXPECT_EQ(read(), (Pooling{Pooling::Kind::last, true, false}));
  write("1_Pooling/config.json", R"({"pooling_mode": "cls"})");
  EXPECT_EQ(read(), (Pooling{Pooling::Kind::first, true, false}));
  fs::remove(directory_ / "modules.json");
  write("1_Pooling/config.json", R"({"pooling_mode_mean_tokens": true})");
  EXPECT_EQ(read(), (Pooling{Pooling::Kind::mean, true, false}));
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
  write("modules.json", modules(R"(, {"path": "3", "type": "models.Dense"})"));
  expect_refused("models.Dense");
  write("modules.json", modules(R"(, {"path": "../other", "type": "models.Pooling"})"));
  expect_refused("inside the directory");
  write("modules.json", R"({"a": 1})");
  expect_refused("expected a list");
}

}  // namespace
}  // namespace invar
