// What the pre-tokenizers of tokenizer.json cut text into.
#include "tokenizer/pre_tokenizer.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tokenizer/hf_pipeline_json.h"

namespace invar::tokenizer {
namespace {

using Words = std::vector<std::string>;

Words cut(const char* description, const std::string& text) {
  const json::Value document = json::parse(description, "test");
  const PreTokenizerRules rules = read_pre_tokenizer(JsonField(document, "test"));
  Pieces pieces{text, {{0, static_cast<uint32_t>(text.size())}}};
  pre_tokenize(rules.steps, true, pieces);
  Words words;
  for (const Span span : pieces.spans) words.emplace_back(span.of(pieces.text));
  return words;
}

Words punctuation(const char* behavior, const std::string& text) {
  return cut(fmt::format(R"({{"type": "Punctuation", "behavior": "{}"}})", behavior).c_str(), text);
}

TEST(PreTokenizer, PunctuationInAllItsBehaviors) {
  const std::string text = "the-final--countdown";
  EXPECT_EQ(punctuation("Removed", text), (Words{"the", "final", "countdown"}));
  EXPECT_EQ(punctuation("Isolated", text), (Words{"the", "-", "final", "-", "-", "countdown"}));
  EXPECT_EQ(punctuation("Contiguous", text), (Words{"the", "-", "final", "--", "countdown"}));
  EXPECT_EQ(punctuation("MergedWithPrevious", text), (Words{"the-", "final-", "-", "countdown"}));
  EXPECT_EQ(punctuation("MergedWithNext", text), (Words{"the", "-final", "-", "-countdown"}));
  EXPECT_EQ(cut(R"({"type": "Punctuation"})", "Hey friend!     How are you?!?"),
            (Words{"Hey friend", "!", "     How are you", "?", "!", "?"}));
}

// ASCII's symbols and Unicode's punctuation, of other symbols none.
TEST(PreTokenizer, WhatIsPunctuation) {
  for (const char* c : {"!",
                        "/",
                        ":",
                        "@",
                        "[",
                        "\\",
                        "]",
                        "^",
                        "_",
                        "`",
                        "{",
                        "|",
                        "}",
                        "~",
                        "$",
                        "+",
                        "<",
                        "=",
                        ">",
                        "-",
                        "\"",
                        "\xc2\xbf",
                        "\xe2\x80\x94",
                        "\xe3\x80\x82"})
    EXPECT_EQ(punctuation("Isolated", std::string("a") + c + "b").size(), 3u) << c;
  for (const char* c : {" ", "1", "Z", "\xe2\x82\xac", "\xc3\x97", "\xcc\x81"})
    EXPECT_EQ(punctuation("Isolated", std::string("a") + c + "b").size(), 1u) << c;
}

// Falcon's: stages behind ByteLevel see its spelling of the bytes.
TEST(PreTokenizer, StagesBehindByteLevelSeeTheSpelling) {
  const char* falcon = R"({"type": "Sequence", "pretokenizers": [
      {"type": "Punctuation", "behavior": "Contiguous"},
      {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
      {"type": "Digits", "individual_digits": false},
      {"type": "Split", "pattern": {"Regex": "[0-9][0-9][0-9]"}, "behavior": "Isolated",
       "invert": false}]})";
  EXPECT_EQ(cut(falcon, "In 12345 days, I've..."),
            (Words{"In", " ", "123", "45", " days", ",", " I", "'", "ve", "..."}));
  // U+00B2 is spelled as two characters, of which the second is a digit; so is the end of U+732B.
  EXPECT_EQ(cut(falcon, "x\xc2\xb2"), (Words{"x", "\xc2", "\xb2"}));
  EXPECT_EQ(cut(falcon, "\xc3\xa9t\xc3\xa9"), (Words{"\xc3\xa9t\xc3\xa9"}));
}

}  // namespace
}  // namespace invar::tokenizer
