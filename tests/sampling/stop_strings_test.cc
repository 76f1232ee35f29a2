#include "sampling/stop_strings.h"

#include <gtest/gtest.h>

#include <random>

#include "base/error.h"

namespace invar {
namespace {

// What an answer shows of `pieces`, and what is shown behind each of them.
struct Shown {
  std::string text, found;
  std::vector<std::string> after;
  bool stopped = false;

  bool operator==(const Shown&) const = default;
};

Shown show(const std::vector<std::string>& stops, const std::vector<std::string>& pieces,
           bool include = false) {
  StopStrings reader(StopSet(stops), include);
  Shown shown;
  for (const std::string& piece : pieces) {
    shown.stopped = reader.push(piece, shown.text);
    shown.after.push_back(shown.text);
    if (shown.stopped) break;
  }
  shown.found = reader.found();
  if (!shown.stopped) reader.finish(shown.text);
  return shown;
}

// The definition: looks at everything again with each piece.
Shown defined(const std::vector<std::string>& stops, const std::vector<std::string>& pieces,
              bool include) {
  Shown shown;
  std::string all;
  for (const std::string& piece : pieces) {
    all += piece;
    for (size_t end = 1; end <= all.size() && !shown.stopped; ++end)
      for (const std::string& stop : stops)
        if (std::string_view(all).substr(0, end).ends_with(stop) &&
            stop.size() > shown.found.size())
          shown.stopped = true, shown.found = stop, shown.text = all.substr(0, end);
    if (shown.stopped && !include) shown.text.resize(shown.text.size() - shown.found.size());
    size_t held = 0;
    for (const std::string& stop : stops)
      for (size_t n = 1; n < stop.size() && n <= all.size(); ++n)
        if (all.ends_with(std::string_view(stop).substr(0, n))) held = std::max(held, n);
    if (!shown.stopped) shown.text = all.substr(0, all.size() - held);
    shown.after.push_back(shown.text);
    if (shown.stopped) return shown;
  }
  shown.text = all;
  return shown;
}

TEST(StopStrings, AnEndIsHeldBackForEveryStop) {
  for (const std::vector<std::string>& stops :
       {std::vector<std::string>{"##", "END"}, {"END", "##"}}) {
    EXPECT_EQ(show(stops, {"a#", "b"}).after, (std::vector<std::string>{"a", "a#b"}));
    EXPECT_EQ(show(stops, {"aEN", "b"}).after, (std::vector<std::string>{"a", "aENb"}));
    EXPECT_EQ(show(stops, {"aEN", "D"}).text, "a");
    EXPECT_EQ(show(stops, {"a#", "#"}).text, "a");
  }
}

TEST(StopStrings, OfTwoThatEndTogetherTheLongerOneCounts) {
  for (const std::vector<std::string>& stops :
       {std::vector<std::string>{"the end", "end"}, {"end", "the end"}}) {
    EXPECT_EQ(show(stops, {"at the end."}).found, "the end");
    EXPECT_EQ(show(stops, {"at the ", "end."}).text, "at ");
    EXPECT_EQ(show(stops, {"at an end."}).text, "at an ");
  }
}

TEST(StopStrings, TheOneThatEndsFirstCounts) {
  EXPECT_EQ(show({"abcd", "bc"}, {"xabcd"}).text, "xa");
  EXPECT_EQ(show({"abc", "ab"}, {"xabc"}).found, "ab");
  EXPECT_EQ(show({"ab"}, {"xab", "y"}, true).text, "xab");
}

// A failed match may contain the beginning of another one.
TEST(StopStrings, WhatIsHeldBackIsTheLongestBeginning) {
  EXPECT_EQ(show({"aab"}, {"aa", "a", "b"}).after, (std::vector<std::string>{"", "a", "a"}));
  EXPECT_EQ(show({"abab!", "bac"}, {"aba", "c"}).text, "a");
  EXPECT_EQ(show({"abc"}, {"ab"}).text, "ab");  // the end of the answer
}

TEST(StopStrings, AreThoseOfTheDefinition) {
  std::mt19937 random(5);
  const auto text = [&](size_t longest) {
    std::string made(1 + random() % longest, 'a');
    for (char& c : made) c = static_cast<char>('a' + random() % 3);
    return made;
  };
  int stopped = 0;
  for (int round = 0; round < 3000; ++round) {
    std::vector<std::string> stops(random() % 5), pieces(1 + random() % 8);
    for (std::string& stop : stops) stop = text(6);
    for (std::string& piece : pieces) piece = text(5);
    const bool include = random() % 2;
    const Shown shown = show(stops, pieces, include);
    ASSERT_EQ(shown, defined(stops, pieces, include)) << round;
    stopped += shown.stopped;
  }
  EXPECT_GT(stopped, 1000);
  EXPECT_LT(stopped, 2700);
}

TEST(StopStrings, EachCountsOnceAndNoneIsEmpty) {
  EXPECT_EQ(StopSet({"b", "a", "b"}).strings(), (std::vector<std::string>{"b", "a"}));
  EXPECT_EQ(StopSet(std::vector<std::string>(1000, "same")).memory_bytes(),
            StopSet({"same"}).memory_bytes());
  EXPECT_THROW(StopSet({"a", ""}), UsageError);
}

}  // namespace
}  // namespace invar
