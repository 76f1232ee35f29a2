#include "speculative/draft_tree.h"

#include <gtest/gtest.h>

namespace invar {
namespace {

// 7 -> 8 -> 9 is the trunk; 5 beside 7, 4 below 7, 3 below 4.
const DraftTree kTree = {{7, -1}, {8, 0}, {9, 1}, {5, -1}, {4, 0}, {3, 4}};

TEST(DraftTree, TrunkAndDepth) {
  EXPECT_EQ(trunk_size(kTree), 3);
  EXPECT_EQ(depth_of(kTree), 3);
  EXPECT_EQ(trunk_size({}), 0);
  EXPECT_EQ(depth_of({}), 0);
  EXPECT_EQ(trunk_size({{7, -1}, {5, -1}}), 1);
}

TEST(DraftTree, IsChecked) {
  EXPECT_EQ(check_tree(kTree, 10), "");
  EXPECT_EQ(check_tree({}, 10), "");
  EXPECT_EQ(check_tree({{1, 0}}, 10), "expected a parent before draft node 0, found 0");
  EXPECT_EQ(check_tree({{1, -2}}, 10), "expected a parent before draft node 0, found -2");
  EXPECT_EQ(check_tree({{10, -1}}, 10), "expected a token from 0 to 9 in draft node 0, found 10");
  EXPECT_EQ(check_tree({{1, -1}, {1, -1}}, 10),
            "expected different tokens below a node, found 1 in draft nodes 0 and 1");
}

TEST(DraftTree, RowsStandBelowTheRoot) {
  std::vector<BatchRow> rows = {{1, 20, 3, -1}, {2, 21, 3, -1}};
  append_rows(kTree, rows);
  const std::vector<BatchRow> expected = {{1, 20, 3, -1}, {2, 21, 3, -1}, {7, 22, 3, -1},
                                          {8, 23, 3, -1}, {9, 24, 3, -1}, {5, 22, 3, 1},
                                          {4, 23, 3, 2},  {3, 24, 3, 6}};
  EXPECT_EQ(rows, expected);
}

TEST(DraftTree, WalksAlongTokens) {
  EXPECT_EQ(child_with(kTree, -1, 7), 0);
  EXPECT_EQ(child_with(kTree, -1, 5), 3);
  EXPECT_EQ(child_with(kTree, 0, 4), 4);
  EXPECT_EQ(child_with(kTree, 4, 3), 5);
  EXPECT_EQ(child_with(kTree, 0, 9), -1);
  EXPECT_EQ(child_with(kTree, 2, 9), -1);
}

TEST(DraftTree, PruningKeepsParents) {
  DraftTree tree = kTree;
  prune(tree, 64, 2);
  EXPECT_EQ(tree, (DraftTree{{7, -1}, {8, 0}, {5, -1}, {4, 0}}));
  prune(tree, 2, 64);
  EXPECT_EQ(tree, (DraftTree{{7, -1}, {8, 0}}));
  tree = kTree;
  prune(tree, 0, 5);
  EXPECT_TRUE(tree.empty());
  tree = kTree;
  keep_trunk(tree);
  EXPECT_EQ(tree, (DraftTree{{7, -1}, {8, 0}, {9, 1}}));
}

}  // namespace
}  // namespace invar
