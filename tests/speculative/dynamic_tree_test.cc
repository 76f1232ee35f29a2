// Trees of what a drafter is sure of.
#include "speculative/dynamic_tree.h"

#include <gtest/gtest.h>

namespace invar {
namespace {

// Two below the root, two below each, and one far below.
const std::vector<ScoredNode> kNodes = {{10, -1, -0.5F}, {11, -1, -1.0F}, {20, 0, -2.0F},
                                        {21, 0, -2.5F},  {22, 1, -1.5F},  {23, 1, -2.0F},
                                        {30, 4, -1.6F}};

TEST(DynamicTree, TheBestAreKeptAndTiesGoToTheEarlier) {
  EXPECT_EQ(best_of(kNodes, 2, 2), (std::vector<int32_t>{4, 6}));
  EXPECT_EQ(best_of(kNodes, 2, 3), (std::vector<int32_t>{2, 4, 6}));
  EXPECT_EQ(best_of(kNodes, 0, 99).size(), kNodes.size());
  EXPECT_TRUE(best_of(kNodes, 7, 2).empty());
}

TEST(DynamicTree, TheSurestPathIsTheTrunk) {
  EXPECT_EQ(tree_of_best(kNodes, 4), (DraftTree{{10, -1}, {11, -1}, {22, 1}, {30, 2}}));
  EXPECT_EQ(tree_of_best(kNodes, 5), (DraftTree{{10, -1}, {20, 0}, {11, -1}, {22, 2}, {30, 3}}));
  EXPECT_EQ(trunk_size(tree_of_best(kNodes, 5)), 2);
  EXPECT_TRUE(tree_of_best({}, 5).empty());
  for (int32_t count = 1; count <= 7; ++count) {
    const DraftTree tree = tree_of_best(kNodes, count);
    EXPECT_EQ(std::ssize(tree), count);
    EXPECT_EQ(check_tree(tree, 100), "");
  }
}

}  // namespace
}  // namespace invar
