#include "weights/dummy_source.h"

#include <cmath>

#include "model_files.h"

namespace invar {
namespace {

const std::vector<DummyTensor> kTensors = {
    {"matrix", {300, 70}, 0, 0.03},
    {"norm", {128}, 1, 0.1},
    {"zero", {40}, 0.5, 0},
    {"large", {int64_t{1} << 20, int64_t{1} << 15}, 0, 1},
};

std::vector<float> read(const DummySource& source, const char* name, int64_t first, int64_t count) {
  std::vector<float> values(count);
  source.read(name, first, count, DType::f32, values.data());
  return values;
}

TEST(DummySource, ElementsAreTheDefinitions) {
  const DummySource source(kTensors, 7);
  const float scale = static_cast<float>(0.03 / std::sqrt(21845.0));
  std::vector<bf16_t> all(300 * 70);
  source.read("matrix", 0, std::ssize(all), DType::bf16, all.data());
  for (int64_t i = 0; i < std::ssize(all); ++i)
    ASSERT_EQ(all[i], dummy_element(7, hash_of_name("matrix"), i, 0, scale)) << i;
}

TEST(DummySource, IndicesAbove32BitsAreTheDefinitions) {
  const DummySource source(kTensors, 0xfedcba9876543210);
  const float scale = static_cast<float>(1 / std::sqrt(21845.0));
  const int64_t first = (int64_t{1} << 34) - 37;  // group numbers pass 32 bits inside
  const std::vector<float> values = read(source, "large", first, 100);
  for (int64_t i = 0; i < 100; ++i)
    ASSERT_EQ(values[i], bf16_to_f32(dummy_element(0xfedcba9876543210, hash_of_name("large"),
                                                   first + i, 0, scale)));
}

// The bits are part of what a seed means: they must never change. (Made by a second
// implementation.)
TEST(DummySource, ElementsAreTheRecordedOnes) {
  EXPECT_EQ(hash_of_name(""), 0xcbf29ce484222325u);
  EXPECT_EQ(hash_of_name("foobar"), 0x85944171f73967e8u);  // from the authors of FNV
  const bf16_t expected[] = {0x3f12, 0xbfae, 0x3eec, 0xbeac, 0x3f72, 0xbea0};
  for (int i = 0; i < 6; ++i)
    EXPECT_EQ(dummy_element(1, hash_of_name("w"), i, 0, 0x1p-7f), expected[i]) << i;
}

TEST(DummySource, AnyPartIsAPartOfTheWhole) {
  const DummySource source(kTensors, 3);
  const std::vector<float> whole = read(source, "matrix", 0, 300 * 70);
  for (const int64_t first : {0, 1, 2, 3, 4, 5, 63, 1021, 5000})
    for (const int64_t count : {0, 1, 3, 16, 17, 70, 1024, 3000}) {
      const std::vector<float> part = read(source, "matrix", first, count);
      for (int64_t i = 0; i < count; ++i) ASSERT_EQ(part[i], whole[first + i]);
    }
  std::vector<float> rows(2 * 70);
  source.read_rows("matrix", 11, 2, DType::f32, rows.data());
  EXPECT_TRUE(std::equal(rows.begin(), rows.end(), whole.begin() + 11 * 70));
}

TEST(DummySource, SeedsAndNamesMatter) {
  const DummySource a({{"x", {64}, 0, 1}, {"y", {64}, 0, 1}}, 1), b({{"x", {64}, 0, 1}}, 2);
  EXPECT_NE(read(a, "x", 0, 64), read(a, "y", 0, 64));
  EXPECT_NE(read(a, "x", 0, 64), read(b, "x", 0, 64));
}

TEST(DummySource, MomentsAreThoseAskedFor) {
  const DummySource source(kTensors, 5);
  const auto check = [&](const char* name, int64_t count, double mean, double deviation) {
    double sum = 0, squares = 0;
    for (const float x : read(source, name, 0, count)) {
      sum += x;
      squares += (x - mean) * (x - mean);
    }
    EXPECT_NEAR(sum / count, mean, 5 * deviation / std::sqrt(count));
    EXPECT_NEAR(std::sqrt(squares / count), deviation, 0.02 * deviation);
  };
  check("matrix", 300 * 70, 0, 0.03);
  check("large", 1 << 20, 0, 1);
  EXPECT_EQ(read(source, "zero", 0, 40), std::vector<float>(40, 0.5f));
}

TEST(DummySource, ListsItsTensors) {
  const DummySource source(kTensors, 5);
  EXPECT_EQ(source.names(), (std::vector<std::string>{"large", "matrix", "norm", "zero"}));
  EXPECT_EQ(source.info("matrix"), (TensorInfo{DType::bf16, {300, 70}}));
  expect_message(error_of([&] { source.info("x"); }), "seed 5: tensor \"x\" is missing");
}

}  // namespace
}  // namespace invar
