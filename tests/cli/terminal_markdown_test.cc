// Markdown on a terminal: what has which style, and that no text is lost however it is cut.
#include "cli/terminal_markdown.h"

#include <gtest/gtest.h>

#include <random>

namespace invar::cli {
namespace {

// The text with [b:...] around bold parts and [c:...] around code.
std::string shown(const std::vector<std::string>& pieces) {
  TerminalMarkdown markdown;
  std::string out;
  TextStyle now = TextStyle::plain;
  const auto change = [&](TextStyle style) {
    if (style == now) return;
    if (now != TextStyle::plain) out += "]";
    if (style != TextStyle::plain) out += style == TextStyle::bold ? "[b:" : "[c:";
    now = style;
  };
  const auto add = [&](const std::vector<StyledText>& parts) {
    for (const auto& [style, text] : parts) {
      change(style);
      out += text;
    }
  };
  for (const std::string& piece : pieces) add(markdown.add(piece));
  add(markdown.finish());
  change(TextStyle::plain);
  return out;
}

TEST(TerminalMarkdown, MarksAreStyledAndStay) {
  EXPECT_EQ(shown({"# Title\ntext"}), "[b:# Title]\ntext");
  EXPECT_EQ(shown({"a **bold** word"}), "a [b:**bold**] word");
  EXPECT_EQ(shown({"* **One**: two\n"}), "* [b:**One**]: two\n");
  EXPECT_EQ(shown({"call `f(**x)` now"}), "call [c:`f(**x)`] now");
  EXPECT_EQ(shown({"``a`b`` c"}), "[c:``a`b``] c");
  EXPECT_EQ(shown({"```py\nx = 1  # **no**\n\n```\nafter"}),
            "[c:```py\nx = 1  # **no**\n\n```]\nafter");
  EXPECT_EQ(shown({"~~~\n```\n~~~\n`a`"}), "[c:~~~\n```\n~~~]\n[c:`a`]");
}

TEST(TerminalMarkdown, WhatIsNoMarkIsPlain) {
  for (const char* text : {"2**3 * 4", "a ** b ** c", "#hashtag", "####### seven", "***\n", "5 # 6",
                           "plain\n\n* item\n"})
    EXPECT_EQ(shown({text}), text);
  EXPECT_EQ(shown({"an `open code\nnext line"}), "an [c:`open code]\nnext line");
  EXPECT_EQ(shown({"**open\nnext"}), "[b:**open]\nnext");
}

TEST(TerminalMarkdown, CutsMakeNoDifferenceAndNoTextIsLost) {
  std::mt19937 random(54);
  constexpr std::string_view kBytes = "**``~~## ab\n\n1\xc3\xa9";
  for (int round = 0; round < 2000; ++round) {
    std::string text;
    for (size_t i = random() % 60; i > 0; --i) text += kBytes[random() % kBytes.size()];
    std::vector<std::string> pieces(1), bytes;
    for (const char byte : text) {
      if (random() % 3 == 0) pieces.emplace_back();
      pieces.back() += byte;
      bytes.emplace_back(1, byte);
    }
    ASSERT_EQ(shown(pieces), shown({text})) << text;
    ASSERT_EQ(shown(bytes), shown({text})) << text;
    std::string kept;
    TerminalMarkdown markdown;
    for (const auto& part : markdown.add(text)) kept += part.text;
    for (const auto& part : markdown.finish()) kept += part.text;
    ASSERT_EQ(kept, text);
  }
}

}  // namespace
}  // namespace invar::cli
