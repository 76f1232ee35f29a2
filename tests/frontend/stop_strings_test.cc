#include "frontend/stop_strings.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/error.h"

namespace invar {
namespace {

// What is shown, piece by piece, "|" between; "!" and the stop string where one was found.
std::string shown(StopStrings stops, const std::vector<std::string>& pieces) {
  std::string all;
  for (const std::string& piece : pieces) {
    std::string out;
    const bool is_over = stops.push(piece, out);
    all += out + "|";
    if (is_over) return all + "!" + stops.found();
  }
  std::string rest;
  stops.finish(rest);
  return all + rest;
}

std::vector<std::string> letters(const std::string& text) {
  std::vector<std::string> all;
  for (const char c : text) all.emplace_back(1, c);
  return all;
}

TEST(StopStrings, HoldsBackOnlyWhatCouldBecomeOne) {
  EXPECT_EQ(shown(StopStrings(), {"any", "thing"}), "any|thing|");
  EXPECT_EQ(shown(StopStrings({"END"}), {"an E", "N", "x"}), "an ||ENx|");
  EXPECT_EQ(shown(StopStrings({"END"}), {"an EN"}), "an |EN");
  EXPECT_EQ(shown(StopStrings({"END"}), {"an EN", "D more"}), "an ||!END");
  EXPECT_EQ(shown(StopStrings({"END"}, true), {"an EN", "D more"}), "an |END|!END");
  // A beginning within a beginning.
  EXPECT_EQ(shown(StopStrings({"aab"}), letters("aaab")), "||a||!aab");
}

TEST(StopStrings, HoldsBackForEveryOneOfThem) {
  EXPECT_EQ(shown(StopStrings({"xyz", "END"}), {"an E", "ND"}), "an ||!END");
  EXPECT_EQ(shown(StopStrings({"END", "xyz"}), {"an E", "ND"}), "an ||!END");
  // The longest end that begins one counts, whichever it begins.
  EXPECT_EQ(shown(StopStrings({"bc!", "abc?"}), {"-abc", "?"}), "-||!abc?");
  EXPECT_EQ(shown(StopStrings({"abc?", "bc!"}), {"-abc", "!"}), "-|a|!bc!");
}

TEST(StopStrings, TheOneThatEndsFirstCountsAndOfTwoTheLonger) {
  EXPECT_EQ(shown(StopStrings({"longer", "on"}), {"a longer one"}), "a l|!on");
  EXPECT_EQ(shown(StopStrings({"er", "longer"}), {"a longer one"}), "a |!longer");
  EXPECT_EQ(shown(StopStrings({"longer", "er"}), {"a longer one"}), "a |!longer");
}

TEST(StopStrings, TheSameHoweverTheTextIsCut) {
  const std::string text = "abacabadabacabaeabacab";
  const std::vector<std::vector<std::string>> lists = {
      {"abad"}, {"cabae", "dab"}, {"bae", "abae", "e"}, {"zz", "acabaeab"}, {"never"}};
  for (const auto& list : lists)
    for (const bool include : {false, true}) {
      std::string whole;
      StopStrings at_once(list, include);
      if (!at_once.push(text, whole)) at_once.finish(whole);
      for (size_t size = 1; size < text.size(); ++size) {
        StopStrings stops(list, include);
        std::string out;
        bool is_over = false;
        for (size_t at = 0; at < text.size() && !is_over; at += size)
          is_over = stops.push(std::string_view(text).substr(at, size), out);
        if (!is_over) stops.finish(out);
        EXPECT_EQ(out, whole) << size;
        EXPECT_EQ(stops.found(), at_once.found());
      }
    }
}

TEST(StopStrings, AnEmptyOneIsRefused) {
  EXPECT_THROW(StopStrings({"a", ""}), UsageError);
}

}  // namespace
}  // namespace invar
