#include "weights/hf_directory.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "model_files.h"

namespace invar {
namespace {

// A file with one tensor: the bf16 numbers 1, 2, 3, 4 in two rows.
std::string four_numbers(const std::string& name) {
  const uint16_t numbers[] = {0x3f80, 0x4000, 0x4040, 0x4080};
  return safetensors("{\"" + name + R"(":{"dtype":"BF16","shape":[2,2],"data_offsets":[0,8]}})",
                     {reinterpret_cast<const char*>(numbers), sizeof numbers});
}

std::string index_of(const std::string& weight_map) {
  return R"({"metadata":{"total_size":8},"weight_map":)" + weight_map + "}";
}

class HfDirectoryTest : public testing::Test {
 protected:
  void write(const std::string& name, const std::string& content) {
    write_file(directory_ / name, content);
  }
  std::string open_error() {
    return error_of([&] { open_checkpoint(directory_.path()); });
  }

  TempDirectory directory_;
};

TEST_F(HfDirectoryTest, ReadsBothConfigurations) {
  write("config.json", R"({"a": 1})");
  HfDirectory model = open_hf_directory(directory_.path());
  EXPECT_EQ(model.config.find("a")->as_integer(), 1);
  EXPECT_TRUE(model.generation_config.is_null());
  write("generation_config.json", R"({"b": 2})");
  model = open_hf_directory(directory_.path());
  EXPECT_EQ(model.generation_config.find("b")->as_integer(), 2);
}

TEST_F(HfDirectoryTest, RefusesWhatIsNoModelDirectory) {
  const auto error = [](const std::string& path) {
    return error_of([&] { open_hf_directory(path); });
  };
  expect_message(error(directory_ / "nothing"), "expected a model directory, found nothing");
  write("file", "x");
  expect_message(error(directory_ / "file"), "expected a model directory, found a file");
  expect_message(error(directory_.path()), "it has no config.json");
  write("config.json", "[1]");
  expect_message(error(directory_.path()), "config.json: expected a JSON object, found an array");
  write("config.json", "{");
  expect_message(error(directory_.path()), "config.json: not valid JSON");
  write("config.json", std::string(100, '[') + std::string(100, ']'));
  expect_message(error(directory_.path()), "config.json: JSON is nested deeper");
}

TEST_F(HfDirectoryTest, ReadsASingleFile) {
  write("model.safetensors", four_numbers("w"));
  const auto source = open_checkpoint(directory_.path());
  EXPECT_EQ(source->names(), std::vector<std::string>{"w"});
  EXPECT_TRUE(source->has("w"));
  EXPECT_FALSE(source->has("v"));
  EXPECT_EQ(source->info("w"), (TensorInfo{DType::bf16, {2, 2}}));
  float row[2];
  source->read_rows("w", 1, 1, DType::f32, row);
  EXPECT_EQ(row[0], 3);
  EXPECT_EQ(row[1], 4);
  bf16_t all[4];
  source->read("w", 0, 4, DType::bf16, all);
  EXPECT_EQ(all[3], 0x4080);
  expect_message(error_of([&] { source->info("v"); }), "tensor \"v\" is missing");
}

TEST_F(HfDirectoryTest, AFileCutShortWhileItIsOpenIsSaid) {
  write("model.safetensors", four_numbers("w"));
  const auto source = open_checkpoint(directory_.path());
  const std::string path = directory_ / "model.safetensors";
  const auto size = std::filesystem::file_size(path);
  bf16_t all[4];
  std::filesystem::resize_file(path, size - 2);
  source->read("w", 0, 3, DType::bf16, all);  // these are still there
  const std::string message = error_of([&] { source->read("w", 0, 4, DType::bf16, all); });
  expect_message(message, fmt::format("expected {} bytes as when it was opened", size));
  float wide[4];
  EXPECT_EQ(error_of([&] { source->read("w", 0, 4, DType::f32, wide); }), message);
  ThreadPool pool(2);  // an error of any of its threads arrives
  EXPECT_EQ(error_of([&] { check_finite(*source, "w", pool); }), message);
}

TEST_F(HfDirectoryTest, OtherTypesAreListedButNotRead) {
  write("model.safetensors",
        safetensors(R"({"i":{"dtype":"I64","shape":[1],"data_offsets":[0,8]}})", "12345678"));
  const auto source = open_checkpoint(directory_.path());
  EXPECT_TRUE(source->has("i"));
  expect_message(error_of([&] { source->info("i"); }), "BF16, F16 or F32, found I64");
}

TEST_F(HfDirectoryTest, ReadsShards) {
  write("one.safetensors", four_numbers("b"));
  write("sub/two.safetensors", four_numbers("a"));
  write("model.safetensors.index.json",
        index_of(R"({"b":"one.safetensors","a":"sub/two.safetensors"})"));
  const auto source = open_checkpoint(directory_.path());
  EXPECT_EQ(source->names(), (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(source->info("b").elements(), 4);
}

TEST_F(HfDirectoryTest, RefusesABadIndex) {
  expect_message(open_error(), "found neither");
  write("pytorch_model.bin", "x");
  expect_message(open_error(), "save it as safetensors");
  const char* index = "model.safetensors.index.json";
  write(index, "[]");
  expect_message(open_error(), "index.json: expected a JSON object");
  write(index, "{}");
  expect_message(open_error(), "expected an object as weight_map, found nothing");
  write(index, index_of("[]"));
  expect_message(open_error(), "expected an object as weight_map, found an array");
  write(index, index_of("{}"));
  expect_message(open_error(), "the weight_map is empty");
  write(index, index_of(R"({"a":1})"));
  expect_message(open_error(), "expected a file name for tensor \"a\", found an integer");
  write(index, index_of(R"({"a":"one.safetensors"})"));
  expect_message(open_error(), "the shard \"one.safetensors\" is missing");
}

TEST_F(HfDirectoryTest, RefusesShardsOutsideTheDirectory) {
  for (const char* name : {"../x", "/etc/passwd", "a/../../x", "", "x\\u0000y", ".."}) {
    write("model.safetensors.index.json", index_of(std::string("{\"a\":\"") + name + "\"}"));
    expect_message(open_error(), "expected shards inside the directory");
  }
}

TEST_F(HfDirectoryTest, RefusesMisplacedAndRepeatedTensors) {
  write("one.safetensors", four_numbers("a"));
  write("two.safetensors", four_numbers("b"));
  const char* index = "model.safetensors.index.json";
  write(index, index_of(R"({"a":"two.safetensors","b":"two.safetensors"})"));
  expect_message(open_error(),
                 "tensor \"a\" is not in \"two.safetensors\", where the index has it");
  write("two.safetensors", four_numbers("a"));
  write(index, index_of(R"({"a":"two.safetensors"})"));
  EXPECT_NO_THROW(open_checkpoint(directory_.path()));
  write("two.safetensors", four_numbers("b"));
  write("three.safetensors", four_numbers("b"));
  write(index, index_of(R"({"a":"one.safetensors","b":"two.safetensors"})"));
  EXPECT_NO_THROW(open_checkpoint(directory_.path()));
  const std::string both = safetensors(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
                                       R"("b":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})",
                                       "xy");
  write("two.safetensors", both);
  write(index, index_of(R"({"b":"two.safetensors"})"));
  expect_message(open_error(),
                 "index.json: expected every tensor of \"two.safetensors\" in the weight_map, "
                 "found no \"a\"");
  write(index, index_of(R"({"a":"one.safetensors","b":"two.safetensors"})"));
  expect_message(open_error(), "tensor \"a\" stands in ");
}

TEST_F(HfDirectoryTest, ABrokenShardIsNamed) {
  write("one.safetensors", four_numbers("a").substr(0, 70));
  write("model.safetensors.index.json", index_of(R"({"a":"one.safetensors"})"));
  expect_message(open_error(), "one.safetensors: tensor \"a\": ends at byte");
}

TEST(Convert, EveryHalfFloatIsExact) {
  std::vector<uint16_t> halves(65536 + 3);
  for (size_t i = 0; i < halves.size(); ++i) halves[i] = static_cast<uint16_t>(i);
  std::vector<float> wide(halves.size());
  ScopedFlushToZero flush;  // as on pool threads: must not touch subnormal halves
  convert_elements(halves.data(), DType::f16, std::ssize(halves), DType::f32, wide.data());
  for (size_t i = 0; i < halves.size(); ++i) {
    const float expected = f16_to_f32(halves[i]);
    if (expected != expected) continue;
    ASSERT_EQ(std::bit_cast<uint32_t>(wide[i]), std::bit_cast<uint32_t>(expected)) << i;
  }
}

TEST(Convert, RoundsToBf16AsTheDefinitionSays) {
  std::vector<float> values;
  for (uint32_t i = 0; i < 100000; ++i) values.push_back(std::bit_cast<float>(i * 42949u + 7));
  std::vector<bf16_t> rounded(values.size()), widened(values.size());
  convert_elements(values.data(), DType::f32, std::ssize(values), DType::bf16, rounded.data());
  for (size_t i = 0; i < values.size(); ++i) ASSERT_EQ(rounded[i], f32_to_bf16(values[i]));

  std::vector<uint16_t> halves(10000);
  for (size_t i = 0; i < halves.size(); ++i) halves[i] = static_cast<uint16_t>(i * 3 + 1);
  convert_elements(halves.data(), DType::f16, std::ssize(halves), DType::bf16, widened.data());
  for (size_t i = 0; i < halves.size(); ++i)
    ASSERT_EQ(widened[i], f32_to_bf16(f16_to_f32(halves[i])));
}

TEST_F(HfDirectoryTest, NonFiniteWeightsAreNamed) {
  const int64_t rows = 100, columns = 200;
  std::vector<float> values(rows * columns, 1.0f);
  const auto write_values = [&] {
    write("model.safetensors",
          safetensors(R"({"w":{"dtype":"F32","shape":[100,200],"data_offsets":[0,80000]}})",
                      {reinterpret_cast<const char*>(values.data()), values.size() * 4}));
  };
  ThreadPool pool(2);
  write_values();
  EXPECT_NO_THROW(check_finite(*open_checkpoint(directory_.path()), "w", pool));
  for (const float bad : {std::nanf(""), -std::numeric_limits<float>::infinity()})
    for (const int64_t index : {0, 4095, 4096, 12345, 19999}) {
      std::fill(values.begin(), values.end(), std::numeric_limits<float>::max());
      values[index] = values.back() = bad;
      write_values();
      const auto source = open_checkpoint(directory_.path());
      expect_message(error_of([&] { check_finite(*source, "w", pool); }),
                     fmt::format("tensor \"w\": expected finite weights, found {} in row {}, "
                                 "column {}",
                                 bad, index / columns, index % columns));
    }
}

TEST(NonFinite, IsFoundInEveryType) {
  std::vector<uint16_t> halves(9000, 0x7bff);  // the largest finite f16, an ordinary bf16
  EXPECT_EQ(first_non_finite(halves.data(), DType::f16, 9000), -1);
  EXPECT_EQ(first_non_finite(halves.data(), DType::bf16, 9000), -1);
  halves[8999] = 0xfc00;  // -infinity in f16, an ordinary bf16
  EXPECT_EQ(first_non_finite(halves.data(), DType::f16, 9000), 8999);
  EXPECT_EQ(first_non_finite(halves.data(), DType::bf16, 9000), -1);
  halves[4097] = 0x7f81;
  EXPECT_EQ(first_non_finite(halves.data(), DType::bf16, 9000), 4097);
  EXPECT_EQ(first_non_finite(halves.data(), DType::bf16, 0), -1);
}

// A scale that is no number makes all elements of its block none.
TEST(NonFinite, IsFoundInEveryScaleOfABlock) {
  int types = 0;
  for (const StorageType& storage : kStorageTypes) {
    if (!storage.has_blocks()) continue;
    ++types;
    const bool is_mxfp4 = storage.type == DType::mxfp4, is_e4m3 = storage.type == DType::e4m3;
    for (int half = 0; half < (is_mxfp4 || is_e4m3 ? 1 : storage.halves); ++half)
      for (int64_t bad = 0; bad < 5; ++bad) {
        std::vector<uint8_t> blocks(static_cast<size_t>(5 * storage.bytes()));
        EXPECT_EQ(first_non_finite(blocks.data(), storage.type, 5 * storage.block), -1);
        uint8_t* block = blocks.data() + bad * storage.bytes();
        if (is_mxfp4)
          block[0] = 255;
        else if (is_e4m3)
          block[3] = 0x7f, block[2] = 0x80;
        else
          block[storage.halves_at + 2 * half + 1] = 0x7c;
        EXPECT_EQ(first_non_finite(blocks.data(), storage.type, 5 * storage.block),
                  bad * storage.block)
            << storage.name << " half " << half;
      }
  }
  EXPECT_GT(types, 10);
}

}  // namespace
}  // namespace invar
