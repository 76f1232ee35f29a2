// Pieces of weights that come in bodies become a checkpoint.
#include "server/weight_spool.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>

#include "base/error.h"
#include "base/json.h"
#include "server/trainer_bodies.h"

namespace invar::server {
namespace {

namespace fs = std::filesystem;

// A tensor of one f32.
std::string piece(const std::string& name) {
  const std::string header =
      "{\"" + name + R"(": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}})";
  const uint64_t length = header.size();
  std::string bytes(sizeof length, '\0');
  std::memcpy(bytes.data(), &length, sizeof length);
  return bytes + header + "abcd";
}

struct Folder {
  Folder() : path(fs::temp_directory_path() / fmt::format("invar-spool-{}", getpid())) {
    fs::create_directories(path / "model");
    for (const char* name : {"config.json", "model.safetensors", "tokenizer.json"})
      std::ofstream(path / "model" / name) << name;
  }
  ~Folder() { fs::remove_all(path); }
  WeightSpool::Options options(size_t most = 1 << 20) const {
    return {.parent = path.string(), .model = (path / "model").string(), .most_bytes = most};
  }
  fs::path path;
};

TEST(WeightSpool, PiecesAreACheckpointBesideTheModelsOtherFiles) {
  const Folder folder;
  fs::path directory;
  {
    WeightSpool spool(folder.options());
    EXPECT_EQ(spool.add(piece("a")).tensors, 1u);
    EXPECT_EQ(spool.add(piece("b")).bytes, 2 * piece("a").size());
    directory = spool.finish();
    const json::Value index =
        json::parse_file((directory / "model.safetensors.index.json").string());
    EXPECT_EQ(index.find("weight_map")->as_object().size(), 2u);
    EXPECT_TRUE(fs::exists(directory / "config.json"));
    EXPECT_TRUE(fs::exists(directory / "tokenizer.json"));
    EXPECT_FALSE(fs::exists(directory / "model.safetensors")) << "the model's own weights";
  }
  EXPECT_FALSE(fs::exists(directory));
}

TEST(WeightSpool, WhatIsNoPieceIsRefused) {
  const Folder folder;
  WeightSpool spool(folder.options(200));
  const auto refuses = [&](const std::string& bytes, const char* words) {
    try {
      spool.add(bytes);
      ADD_FAILURE() << words;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find(words), std::string::npos) << error.what();
    }
  };
  refuses("", "without its header");
  refuses(std::string(32, '\xff'), "without its header");
  refuses(std::string("\x02\0\0\0\0\0\0\0{}", 10), "expected tensors");
  refuses(std::string("\x02\0\0\0\0\0\0\0[]", 10), "as an object");
  refuses(std::string("\x02\0\0\0\0\0\0\0{,", 10), "header of safetensors");
  EXPECT_THROW(spool.finish(), UsageError);
  spool.add(piece("a"));
  refuses(piece("a"), "each tensor once");
  spool.add(piece("b"));
  refuses(piece("c"), "--max-update-gib");
}

TEST(TrainerBodies, VersionsArePlainTextsOrNumbers) {
  EXPECT_EQ(version_of(json::Object{{"weight_version", 3}}, "x"), "3");
  EXPECT_EQ(version_of(json::Object{{"weight_version", "a b"}}, "x"), "a b");
  EXPECT_EQ(version_of(json::Object{}, "x"), "x");
  EXPECT_ANY_THROW(version_of(json::Object{{"weight_version", "a\nb"}}, "x"));
  EXPECT_EQ(text_of(json::Object{{"a", nullptr}, {"b", "c"}}, {"a", "b"}), "c");
}

}  // namespace
}  // namespace invar::server
