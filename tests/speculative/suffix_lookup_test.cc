#include "speculative/suffix_lookup.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "base/error.h"

namespace invar {
namespace {

using Tokens = std::vector<int32_t>;

Tokens random_tokens(std::mt19937& random, int size, int vocab) {
  Tokens tokens(size);
  for (int32_t& token : tokens) token = static_cast<int32_t>(random() % vocab);
  return tokens;
}

// The longest end of tokens[0, size) that occurs before, and where its first occurrence ends.
std::pair<int, int> longest_earlier(const Tokens& tokens, int size) {
  for (int length = size - 1; length > 0; --length)
    for (int begin = 0; begin + length < size; ++begin)
      if (std::equal(tokens.begin() + begin, tokens.begin() + begin + length,
                     tokens.begin() + size - length))
        return {length, begin + length};
  return {0, 0};
}

TEST(SuffixAutomaton, FindsTheLongestEarlierOccurrence) {
  std::mt19937 random(3);
  int found = 0;
  for (int round = 0; round < 300; ++round) {
    const Tokens tokens = random_tokens(random, 60, 2 + round % 4);
    SuffixAutomaton automaton;
    SuffixAutomaton::Match match;
    for (int i = 0; i < std::ssize(tokens); ++i) {
      automaton.follow(match, tokens[i]);
      automaton.append(tokens[i]);
      automaton.settle(match);
      const auto [length, end] = longest_earlier(tokens, i + 1);
      ASSERT_EQ(match.length, length) << testing::PrintToString(tokens) << " " << i;
      if (length > 0) {
        ASSERT_EQ(automaton.continuation(match), end);
      }
      found += length > 2;
    }
  }
  EXPECT_GT(found, 5000);
}

TEST(SuffixLookup, DraftsAsLongAsTheMatch) {
  SuffixLookup proposer({});
  Tokens tokens = {1, 2, 3, 4, 5, 6, 7, 1, 2, 3};
  const auto propose = [&](int32_t most) {
    std::vector<DraftTree> trees(1);
    const DraftRequest request{.id = 1, .tokens = tokens, .prompt_size = 10, .most = most};
    proposer.propose({&request, 1}, trees);
    return trees[0];
  };
  EXPECT_EQ(propose(8), (DraftTree{{4, -1}, {5, 0}, {6, 1}}));
  EXPECT_EQ(propose(2), (DraftTree{{4, -1}, {5, 0}}));
  tokens.push_back(4);
  EXPECT_EQ(propose(8), (DraftTree{{5, -1}, {6, 0}, {7, 1}, {1, 2}}));
  tokens.push_back(9);
  EXPECT_TRUE(propose(8).empty());
}

TEST(SuffixLookup, EarlierAnswersOfTheSameOwnerOnly) {
  SuffixLookup proposer({});
  const Tokens first = {8, 8, 1, 2, 3, 4, 5}, second = {9, 1, 2};
  const auto propose = [&](int64_t id, const Tokens& tokens, int prompt, const char* corpus) {
    std::vector<DraftTree> trees(1);
    const DraftRequest request{
        .id = id, .tokens = tokens, .prompt_size = prompt, .most = 8, .corpus = corpus};
    proposer.propose({&request, 1}, trees);
    return trees[0];
  };
  propose(1, first, 2, "a");
  EXPECT_TRUE(propose(2, second, 3, "a").empty());
  proposer.forget(1);
  proposer.forget(1);
  EXPECT_EQ(propose(3, second, 3, "a"), (DraftTree{{3, -1}, {4, 0}}));
  EXPECT_TRUE(propose(4, second, 3, "b").empty());
  EXPECT_TRUE(propose(5, second, 3, "").empty());
  EXPECT_TRUE(propose(6, {7, 8, 8}, 3, "a").empty()) << "prompts are not kept";
}

// Clients name corpora (cache_salt): one for each request must not take memory without end.
TEST(SuffixLookup, CorporaOfManyNamesAreBounded) {
  SuffixLookup proposer({.corpus_tokens = 1000});
  const auto answer = [&](int64_t id, const std::string& corpus, int32_t tokens) {
    const Tokens text(static_cast<size_t>(1 + tokens), 7);
    std::vector<DraftTree> trees(1);
    const DraftRequest request{
        .id = id, .tokens = text, .prompt_size = 1, .most = 8, .corpus = corpus};
    proposer.propose({&request, 1}, trees);
    proposer.forget(id);
  };
  for (int64_t id = 0; id < 500; ++id) {
    answer(id, "salt" + std::to_string(id), 99);
    ASSERT_LE(proposer.kept_tokens(), 1000);
  }
  EXPECT_EQ(proposer.kept_tokens(), 1000);
  EXPECT_EQ(proposer.kept_corpora(), 10);

  // What is used stays, what was not used for longest goes.
  answer(1000, "salt490", 1);
  answer(1001, "new", 99);
  EXPECT_EQ(proposer.kept_corpora(), 9) << "salt491 and salt492 are forgotten";
  EXPECT_EQ(proposer.kept_tokens(), 902);
  answer(1002, "large", 2000);
  EXPECT_EQ(proposer.kept_tokens(), 0) << "an answer that alone is too long";

  SuffixLookup many({.corpus_tokens = 1 << 20});
  std::vector<DraftTree> trees(1);
  const Tokens text = {7, 8};
  for (int64_t id = 0; id < 3000; ++id) {
    const std::string corpus = std::to_string(id);
    const DraftRequest request{
        .id = id, .tokens = text, .prompt_size = 1, .most = 8, .corpus = corpus};
    many.propose({&request, 1}, trees);
    many.forget(id);
  }
  EXPECT_EQ(many.kept_corpora(), 1024);
}

TEST(SuffixLookup, OptionsAreChecked) {
  EXPECT_THROW(SuffixLookup({.num_speculative_tokens = 0}), UsageError);
  EXPECT_THROW(SuffixLookup({.max_spec_factor = 0}), UsageError);
  EXPECT_THROW(SuffixLookup({.min_match = 0}), UsageError);
}

}  // namespace
}  // namespace invar
