// The prompts of benchmarks consist of the model's tokens, however long they are.
#include "bench/bench_prompt.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace invar::cli {
namespace {

TEST(BenchPrompt, HasTokensOfTheVocabularyAtAnyLength) {
  for (const int64_t sequence : {0, 255, 100000}) {
    const auto prompt = bench_prompt(sequence, 200000, 128256);
    ASSERT_EQ(prompt.size(), 200000);
    const auto [least, most] = std::ranges::minmax(prompt);
    EXPECT_GE(least, 0);
    EXPECT_LT(most, 128256);
    EXPECT_GT(most, 100000);
  }
}

// Recorded figures are of these.
TEST(BenchPrompt, StaysWhatItWas) {
  EXPECT_EQ(bench_prompt(3, 3, 1000), (std::vector<int32_t>{768, 497, 226}));
}

}  // namespace
}  // namespace invar::cli
