#include "speculative/replay.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace invar {
namespace {

using Tokens = std::vector<int32_t>;

DraftTree propose(const ReplayOptions& options, const Tokens& tokens) {
  Replay proposer(options, {{1, {10, 11, 12, 13}}});
  std::vector<DraftTree> trees(1);
  const DraftRequest request{.id = 1, .tokens = tokens, .prompt_size = 2, .most = 64};
  proposer.propose({&request, 1}, trees);
  EXPECT_EQ(check_tree(trees[0], options.vocab), "");
  return trees[0];
}

TEST(Replay, KnowsWhatComes) {
  const ReplayOptions right{.num_speculative_tokens = 3, .vocab = 20};
  EXPECT_EQ(propose(right, {1, 2}), (DraftTree{{10, -1}, {11, 0}, {12, 1}}));
  EXPECT_EQ(propose(right, {1, 2, 10, 11}), (DraftTree{{12, -1}, {13, 0}}));
  EXPECT_TRUE(propose(right, {1, 2, 10, 11, 12, 13}).empty());
}

TEST(Replay, AndSpoilsAsManyAsItIsTold) {
  ReplayOptions options{.num_speculative_tokens = 1, .right = 0, .vocab = 20};
  EXPECT_NE(propose(options, {1, 2})[0].token, 10);
  options.right = 0.7;
  int right = 0;
  for (uint64_t seed = 0; seed < 2000; ++seed) {
    options.seed = seed;
    right += propose(options, {1, 2})[0].token == 10;
  }
  EXPECT_NEAR(right, 1400, 80);
  options = {.num_speculative_tokens = 2, .last_is_wrong = true, .vocab = 20};
  EXPECT_EQ(propose(options, {1, 2})[0].token, 10);
  EXPECT_NE(propose(options, {1, 2})[1].token, 11);
}

TEST(Replay, BranchesHideTheAnswerAmongOthers) {
  for (uint64_t seed = 0; seed < 50; ++seed) {
    const DraftTree tree =
        propose({.num_speculative_tokens = 4, .branches = 3, .vocab = 20, .seed = seed}, {1, 2});
    int32_t at = -1;
    for (const int32_t token : {10, 11, 12, 13}) {
      at = child_with(tree, at, token);
      ASSERT_GE(at, 0);
    }
    EXPECT_EQ(tree.size(), 12);
  }
  EXPECT_THROW(Replay({.num_speculative_tokens = 33, .branches = 2, .vocab = 20}, {}), UsageError);
}

}  // namespace
}  // namespace invar
