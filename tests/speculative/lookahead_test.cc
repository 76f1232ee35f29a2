#include "speculative/lookahead.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace invar {
namespace {

using Tokens = std::vector<int32_t>;

DraftTree propose(Proposer& proposer, const Tokens& tokens, int32_t most = 64) {
  std::vector<DraftTree> trees(1);
  const DraftRequest request{.id = 1, .tokens = tokens, .prompt_size = 1, .most = most};
  proposer.propose({&request, 1}, trees);
  EXPECT_EQ(check_tree(trees[0], 1 << 20), "");
  return trees[0];
}

TEST(Lookahead, DraftsItsSequencesNgramsTheLatestFirst) {
  Lookahead proposer({.window = 0, .ngram = 3, .guesses = 2});
  // After 1 came (2, 3), then (5, 6), then (2, 3) again.
  EXPECT_EQ(propose(proposer, {1, 2, 3, 1, 5, 6, 1, 2, 3, 1}),
            (DraftTree{{2, -1}, {3, 0}, {5, -1}, {6, 2}}));
  EXPECT_EQ(propose(proposer, {1, 2, 3, 1, 5, 6, 1, 2, 3, 1}, 3),
            (DraftTree{{2, -1}, {3, 0}, {5, -1}}));
  proposer.forget(1);
  EXPECT_TRUE(propose(proposer, {1}).empty());
}

TEST(Lookahead, TheWindowsDiagonalsBecomeNgrams) {
  Lookahead proposer({.window = 2, .ngram = 3, .guesses = 2});
  EXPECT_EQ(proposer.argmax_reader(), &proposer);
  EXPECT_EQ(Lookahead({.window = 0}).argmax_reader(), nullptr);
  // The window begins with the sequence's tokens, as a chain.
  EXPECT_EQ(propose(proposer, {7, 8, 9}), (DraftTree{{7, -1}, {8, 0}}));
  // Behind the root 100, behind 7 comes 40, behind 8 comes 41: the second row.
  proposer.observe_argmax(1, Tokens{100, 40, 41});
  EXPECT_EQ(propose(proposer, {7, 8, 9, 100}), (DraftTree{{7, -1}, {8, 0}, {40, 0}, {41, 1}}));
  // Behind 40 comes 50 and behind 41 comes 51: the n-grams 7 40 50 and 8 41 51.
  proposer.observe_argmax(1, Tokens{101, 0, 0, 50, 51});
  EXPECT_EQ(propose(proposer, {7, 8, 9, 100, 7}),
            (DraftTree{{40, -1}, {50, 0}, {8, -1}, {9, 2}, {41, 0}, {51, 4}}));
}

// A tree that the engine cut says nothing of the nodes that are gone.
TEST(Lookahead, WhatWasNotComputedIsNotLearned) {
  Lookahead proposer({.window = 2, .ngram = 3, .guesses = 2});
  propose(proposer, {7, 8, 9});
  proposer.observe_argmax(1, Tokens{100});
  proposer.observe_argmax(1, Tokens{100, 1, 2, 3});  // twice: nothing more is known
  EXPECT_EQ(propose(proposer, {7, 8, 9, 100}, 2), (DraftTree{{7, -1}, {8, 0}}));
  proposer.observe_argmax(2, Tokens{1, 2});  // of nobody
}

TEST(Lookahead, OptionsAreChecked) {
  EXPECT_EQ(Lookahead({}).most_nodes(), 56);
  EXPECT_THROW(Lookahead({.ngram = 1}), UsageError);
  EXPECT_THROW(Lookahead({.guesses = 0}), UsageError);
  EXPECT_THROW(Lookahead({.window = 10}), UsageError);
}

}  // namespace
}  // namespace invar
