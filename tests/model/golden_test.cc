// Logits against those of an independent implementation, recorded in float64 (tests/data/golden).
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <map>

#include "../weights/model_files.h"
#include "base/json.h"
#include "engine/executor.h"
#include "weights/checkpoint_writer.h"
#include "weights/hf_directory.h"

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

// The same tensors, said to be stored in f32: the weight mode f32 of numerics 0.1.
class WidenedSource : public TensorSource {
 public:
  explicit WidenedSource(std::unique_ptr<TensorSource> stored) : stored_(std::move(stored)) {
    for (const std::string& name : stored_->names())
      infos_[name] = {DType::f32, stored_->info(name).shape};
  }
  const std::vector<std::string>& names() const override { return stored_->names(); }
  bool has(std::string_view name) const override { return stored_->has(name); }
  const TensorInfo& info(std::string_view name) const override {
    return infos_.at(std::string(name));
  }
  void read(std::string_view name, int64_t first, int64_t count, DType as,
            void* out) const override {
    stored_->read(name, first, count, as, out);
  }
  std::string where(std::string_view name) const override { return stored_->where(name); }

 private:
  std::unique_ptr<TensorSource> stored_;
  std::map<std::string, TensorInfo> infos_;
};

struct Errors {
  double mean = 0, largest = 0;
};

// Of the logits of both prompts, against those recorded.
Errors errors_of(const std::string& model_directory, const std::string& golden) {
  Model model({.model = model_directory, .threads = 2});
  Executor runner(model, {.blocks = 4,
                          .block_size = 64,
                          .max_rows = kPrompts * kTokens,
                          .max_logit_rows = kPrompts * kTokens});
  ForwardIo io;
  runner.run(whole_prompts(read_array<int32_t>(golden + "/tokens.i32")), io);

  const auto expected = read_array<double>(golden + "/logits.f64");
  EXPECT_EQ(io.logits.size(), expected.size());
  Errors errors;
  for (size_t i = 0; i < expected.size(); ++i) {
    const double error = std::fabs(io.logits[i] - expected[i]);
    errors.mean += error / static_cast<double>(expected.size());
    errors.largest = std::max(errors.largest, error);
  }
  return errors;
}

class Golden : public testing::TestWithParam<const char*> {};

TEST_P(Golden, MeanErrorIsBelowTheUsualBf16Evaluation) {
  const std::string golden = golden_directory(GetParam());
  const Errors errors = errors_of(golden, golden);
  const json::Value recorded = json::parse_file(golden + "/golden.json");
  const double usual = recorded.find("bf16_eager_mean_abs_err")->as_number();
  std::printf("%s, weights bf16: mean error %.5f (usual bf16 %.5f), largest %.4f\n", GetParam(),
              errors.mean, usual, errors.largest);
  EXPECT_LE(errors.mean, usual);
  EXPECT_GT(errors.mean, 0);
}

// Not exact, as numerics 0.1 says: q, k, v, p and the cache are bf16 in this mode too.
TEST_P(Golden, F32WeightsAreCloserAndNotExact) {
  const std::string golden = golden_directory(GetParam());
  const TempDirectory directory;
  ThreadPool pool(1);
  write_checkpoint(directory.path(), WidenedSource(open_checkpoint(golden)), pool);
  write_file(directory / "config.json", read_file(golden + "/config.json"));
  const Errors rounded = errors_of(golden, golden), f32 = errors_of(directory.path(), golden);
  std::printf("%s, weights f32: mean error %.5f, largest %.4f\n", GetParam(), f32.mean,
              f32.largest);
  EXPECT_LT(f32.mean, rounded.mean);
  EXPECT_GT(f32.mean, 1e-5);
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
