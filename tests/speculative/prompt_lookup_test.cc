#include "speculative/prompt_lookup.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "base/error.h"

namespace invar {
namespace {

using Tokens = std::vector<int32_t>;

int64_t find(const Tokens& tokens, int32_t min, int32_t max) {
  std::vector<int32_t> border;
  return find_continuation(tokens, min, max, border);
}

// What find_continuation means, tried at every place.
int64_t find_slowly(const Tokens& tokens, int32_t min, int32_t max) {
  const int64_t n = std::ssize(tokens);
  for (int64_t length = std::min<int64_t>(max, n - 1); length >= min; --length)
    for (int64_t begin = 0; begin + length < n; ++begin)
      if (std::equal(tokens.end() - length, tokens.end(), tokens.begin() + begin))
        return begin + length;
  return -1;
}

TEST(PromptLookup, FindsTheEarliestOfTheLongestMatches) {
  EXPECT_EQ(find({1, 2, 3, 9, 1, 2, 3, 8, 1, 2, 3}, 2, 5), 3);
  EXPECT_EQ(find({5, 1, 2, 7, 4, 1, 2, 6, 4, 1, 2}, 2, 5), 7);
  EXPECT_EQ(find({1, 2, 3}, 1, 5), -1);
  EXPECT_EQ(find({1, 9, 1}, 2, 5), -1);
  EXPECT_EQ(find({1}, 1, 5), -1);
}

TEST(PromptLookup, AgreesWithTryingEveryPlace) {
  std::mt19937 random(1);
  int found = 0;
  for (int i = 0; i < 3000; ++i) {
    Tokens tokens(1 + random() % 40);
    for (int32_t& token : tokens) token = static_cast<int32_t>(random() % 3);
    const int32_t min = 1 + static_cast<int32_t>(random() % 4),
                  max = min + static_cast<int32_t>(random() % 4);
    const int64_t expected = find_slowly(tokens, min, max);
    ASSERT_EQ(find(tokens, min, max), expected) << testing::PrintToString(tokens) << min << max;
    found += expected >= 0;
  }
  EXPECT_GT(found, 1000);
  EXPECT_LT(found, 2990);
}

TEST(PromptLookup, ProposesAChainOfAtMostSoMany) {
  PromptLookup proposer({.num_speculative_tokens = 3, .prompt_lookup_min = 2});
  const Tokens tokens = {1, 2, 3, 4, 5, 6, 1, 2}, other = {1, 2, 3};
  std::vector<DraftTree> trees(3);
  const std::vector<DraftRequest> requests = {
      {.tokens = tokens, .most = 8}, {.tokens = tokens, .most = 1}, {.tokens = other, .most = 8}};
  proposer.propose(requests, trees);
  EXPECT_EQ(trees[0], (DraftTree{{3, -1}, {4, 0}, {5, 1}}));
  EXPECT_EQ(trees[1], (DraftTree{{3, -1}}));
  EXPECT_TRUE(trees[2].empty());
}

TEST(PromptLookup, OptionsAreChecked) {
  EXPECT_THROW(PromptLookup({.prompt_lookup_min = 0}), UsageError);
  EXPECT_THROW(PromptLookup({.prompt_lookup_min = 3, .prompt_lookup_max = 2}), UsageError);
  EXPECT_THROW(PromptLookup({.num_speculative_tokens = 0}), UsageError);
  EXPECT_THROW(PromptLookup({.num_speculative_tokens = 65}), UsageError);
}

}  // namespace
}  // namespace invar
