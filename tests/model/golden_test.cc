// Logits against those of an independent implementation, recorded in float64 (tests/data/golden).
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>

#include "base/json.h"
#include "engine/model_runner.h"

namespace invar {
namespace {

constexpr int kPrompts = 2, kTokens = 96, kVocab = 320;

template <typename T>
std::vector<T> read_array(const std::string& path) {
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  std::vector<T> values(static_cast<size_t>(file.tellg()) / sizeof(T));
  file.seekg(0);
  file.read(reinterpret_cast<char*>(values.data()), std::streamsize(values.size() * sizeof(T)));
  return values;
}

std::string golden_directory(const std::string& name) {
  return std::string(INVAR_SOURCE_DIR) + "/tests/data/golden/" + name;
}

Batch whole_prompts(const std::vector<int32_t>& tokens) {
  Batch batch;
  for (int s = 0; s < kPrompts; ++s) {
    batch.sequences.push_back({{2 * s, 2 * s + 1}});
    for (int i = 0; i < kTokens; ++i) {
      batch.logit_rows.push_back(static_cast<int32_t>(batch.rows.size()));
      batch.rows.push_back({tokens[s * kTokens + i], i, s});
    }
  }
  return batch;
}

class Golden : public testing::TestWithParam<const char*> {};

TEST_P(Golden, MeanErrorIsBelowTheUsualBf16Evaluation) {
  const std::string directory = golden_directory(GetParam());
  Model model({.model = directory, .threads = 2});
  ModelRunner runner(model, {.pages = 4,
                             .page_places = 64,
                             .max_rows = kPrompts * kTokens,
                             .max_logit_rows = kPrompts * kTokens});
  ForwardIo io;
  runner.run(whole_prompts(read_array<int32_t>(directory + "/tokens.i32")), io);

  const auto expected = read_array<double>(directory + "/logits.f64");
  ASSERT_EQ(io.logits.size(), expected.size());
  double total = 0, largest = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    const double error = std::fabs(io.logits[i] - expected[i]);
    total += error;
    largest = std::max(largest, error);
  }
  const double mean = total / static_cast<double>(expected.size());
  const json::Value golden = json::parse_file(directory + "/golden.json");
  const double usual = golden.find("bf16_eager_mean_abs_err")->as_number();
  std::printf("%s: mean error %.5f (usual bf16 %.5f), largest %.4f\n", GetParam(), mean, usual,
              largest);
  EXPECT_LE(mean, usual);
  EXPECT_GT(mean, 0);
}

INSTANTIATE_TEST_SUITE_P(Families, Golden,
                         testing::Values("llama-gqa", "llama3-rope-tied", "mistral-window",
                                         "qwen2-bias", "qwen3-qknorm"),
                         [](const auto& info) {
                           std::string name = info.param;
                           for (char& c : name)
                             if (c == '-') c = '_';
                           return name;
                         });

}  // namespace
}  // namespace invar
