#include "tokenizer/bpe.h"

#include <gtest/gtest.h>

#include <random>

#include "base/error.h"

namespace invar::tokenizer {
namespace {

// The definition: look at all pairs, merge the best, begin again.
std::vector<int32_t> merged_by_definition(const std::vector<Merge>& merges,
                                          std::vector<int32_t> symbols) {
  while (true) {
    const Merge* best = nullptr;
    size_t place = 0;
    for (size_t i = 0; i + 1 < symbols.size(); ++i)
      for (const Merge& merge : merges)
        if (merge.left == symbols[i] && merge.right == symbols[i + 1] &&
            (!best || merge.rank < best->rank)) {
          best = &merge;
          place = i;
        }
    if (!best) return symbols;
    symbols[place] = best->result;
    symbols.erase(symbols.begin() + place + 1);
  }
}

TEST(Bpe, BothWaysOfMergingKeepToTheDefinition) {
  std::mt19937 random(1);
  int heap_merges = 0;
  for (int round = 0; round < 300; ++round) {
    std::vector<Merge> merges;
    const int letters = 2 + round % 4;
    int tokens = letters;
    for (int i = 0; i < 12; ++i) {
      Merge merge{static_cast<int32_t>(random() % tokens), static_cast<int32_t>(random() % tokens),
                  tokens, static_cast<uint32_t>(round % 3 == 0 ? i / 2 : i)};  // ranks may be equal
      bool known = false;
      for (const Merge& other : merges)
        known |= other.left == merge.left && other.right == merge.right;
      if (known) continue;
      merges.push_back(merge);
      ++tokens;
    }
    std::vector<int32_t> symbols(random() % 120);
    for (int32_t& s : symbols) s = static_cast<int32_t>(random() % letters);
    const auto expected = merged_by_definition(merges, symbols);
    if (symbols.size() > 60 && expected.size() < symbols.size()) ++heap_merges;
    const MergeTable table(merges);
    merge_all(table, symbols);
    ASSERT_EQ(symbols, expected);
  }
  EXPECT_GT(heap_merges, 50);  // the heap was at work
}

BpeRules character_rules(std::string_view space_mark = "") {
  BpeRules rules;
  rules.space_mark = space_mark;
  rules.by_bytes = false;
  rules.tokens = {{"a", 0}, {"b", 1}, {"_", 2}, {"ab", 3}, {"_a", 4}, {"_ab", 5}, {"__", 6}};
  rules.merges = {{0, 1, 3, 0}, {2, 3, 5, 1}, {2, 0, 4, 2}, {2, 2, 6, 3}};
  return rules;
}

std::vector<int32_t> encode(const Bpe& bpe, std::string_view word) {
  std::vector<int32_t> symbols, out;
  bpe.encode(word, symbols, out);
  return out;
}

TEST(Bpe, UnknownCharacters) {
  BpeRules rules = character_rules();
  EXPECT_THROW(encode(Bpe(rules), "aé"), UsageError);
  rules.unk_id = 9;
  EXPECT_EQ(encode(Bpe(rules), "aéèb"), (std::vector<int32_t>{0, 9, 9, 1}));
  rules.fuse_unk = true;
  EXPECT_EQ(encode(Bpe(rules), "aéèbé"), (std::vector<int32_t>{0, 9, 1, 9}));
  rules.byte_ids.assign(256, -1);
  rules.byte_ids[0xc3] = 10;
  EXPECT_EQ(encode(Bpe(rules), "aé"), (std::vector<int32_t>{0, 9}));  // all bytes or none
  rules.byte_ids[0xa9] = 11;
  EXPECT_EQ(encode(Bpe(rules), "aé"), (std::vector<int32_t>{0, 10, 11}));
}

TEST(Bpe, CuttingBeforeSpaceMarksChangesNothing) {
  std::mt19937 random(2);
  const Bpe with(character_rules("_")), without(character_rules());
  // A token with the mark inside: cutting there would lose it.
  BpeRules crossing = character_rules();
  crossing.tokens.push_back({"b_", 7});
  crossing.merges.push_back({1, 2, 7, 4});
  const Bpe crossing_without(crossing);
  crossing.space_mark.assign(1, '_');
  const Bpe crossing_with(crossing);
  for (int round = 0; round < 500; ++round) {
    std::string text(random() % 30, 'a');
    for (char& c : text) c = "ab_"[random() % 3];
    ASSERT_EQ(encode(with, text), encode(without, text)) << text;
    ASSERT_EQ(encode(crossing_with, text), encode(crossing_without, text)) << text;
  }
  EXPECT_EQ(encode(crossing_with, "b_b_"), (std::vector<int32_t>{7, 7}));
}

TEST(Bpe, IgnoreMergesTakesWholeWordsFirst) {
  BpeRules rules = character_rules();
  rules.tokens.push_back({"aba", 7});  // no merges lead to it
  EXPECT_EQ(encode(Bpe(rules), "aba"), (std::vector<int32_t>{3, 0}));
  rules.ignore_merges = true;
  EXPECT_EQ(encode(Bpe(rules), "aba"), (std::vector<int32_t>{7}));
  EXPECT_EQ(encode(Bpe(rules), "abab"), (std::vector<int32_t>{3, 3}));
}

// A quadratic merger would need hours.
TEST(Bpe, AMegabyteWithoutSpaces) {
  BpeRules rules = character_rules();
  rules.merges.push_back({3, 3, 7, 4});
  const Bpe bpe(rules);
  std::string text;
  for (int i = 0; i < 500000; ++i) text += "ab";
  EXPECT_EQ(encode(bpe, text), std::vector<int32_t>(250000, 7));
}

}  // namespace
}  // namespace invar::tokenizer
