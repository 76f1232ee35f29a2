#include "tokenizer/added_tokens.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

namespace invar::tokenizer {
namespace {

struct Token {
  const char* content;
  bool single_word = false, lstrip = false, rstrip = false, special = true;
};

// Tokens as [id:text], what lies between as it is.
std::string found(const std::vector<Token>& tokens, std::string_view text,
                  bool parse_special = true) {
  AddedTokenFinder finder;
  for (size_t i = 0; i < tokens.size(); ++i) {
    const Token& t = tokens[i];
    finder.add(
        {static_cast<int32_t>(i), t.content, t.single_word, t.lstrip, t.rstrip, false, t.special},
        t.content);
  }
  std::string out;
  finder.find(text, parse_special, [&](Span span, int32_t id) {
    out += id < 0 ? fmt::format("{}|", span.of(text)) : fmt::format("[{}:{}]", id, span.of(text));
  });
  return out;
}

TEST(AddedTokens, LongestFromTheLeft) {
  const std::vector<Token> tokens = {{"<a>"}, {"<a><b>"}, {"b>c"}};
  EXPECT_EQ(found(tokens, "x<a><b>c<a>b>cy"), "x|[1:<a><b>]c|[0:<a>][2:b>c]y|");
  EXPECT_EQ(found(tokens, "<a"), "<a|");
  EXPECT_EQ(found(tokens, ""), "");
}

TEST(AddedTokens, SpecialTokensMayBeText) {
  const std::vector<Token> tokens = {{"<s>"}, {"<t>", false, false, false, false}};
  EXPECT_EQ(found(tokens, "a<s><t>"), "a|[0:<s>][1:<t>]");
  EXPECT_EQ(found(tokens, "a<s><t>", false), "a<s>|[1:<t>]");
}

TEST(AddedTokens, Strip) {
  const std::vector<Token> tokens = {{"<l>", false, true}, {"<r>", false, false, true}};
  EXPECT_EQ(found(tokens, "a \xc2\x85<l> b"), "a|[0: \xc2\x85<l>] b|");
  EXPECT_EQ(found(tokens, "a <r> \xe3\x80\x80 b"), "a |[1:<r> \xe3\x80\x80 ]b|");
  EXPECT_EQ(found(tokens, "<r>  <l>"), "[1:<r>  ][0:<l>]");  // the space is taken once
}

TEST(AddedTokens, SingleWord) {
  const std::vector<Token> tokens = {{"yes", true}};
  EXPECT_EQ(found(tokens, "yes yes, ayes yes\xcc\x81 yes_ \xc3\xa9yes"),
            "[0:yes] |[0:yes], ayes yes\xcc\x81 yes_ \xc3\xa9yes|");
}

TEST(AddedTokens, HundredsThatBeginAlike) {
  std::vector<std::string> names;
  for (int i = 0; i < 256; ++i) names.push_back("<|reserved_" + std::to_string(i) + "|>");
  std::vector<Token> tokens;
  for (const auto& name : names) tokens.push_back({name.c_str()});
  EXPECT_EQ(found(tokens, "<|reserved_<|reserved_25|><|reserved_256|>"),
            "<|reserved_|[25:<|reserved_25|>]<|reserved_256|>|");
}

}  // namespace
}  // namespace invar::tokenizer
