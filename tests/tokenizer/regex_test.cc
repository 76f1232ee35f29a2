#include "tokenizer/regex.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "tiny_files.h"
#include "tokenizer/pre_tokenizer.h"

namespace invar::tokenizer {
namespace {

std::vector<std::string> pieces_of(const std::vector<PreTokenizerStep>& steps, std::string text) {
  Pieces pieces;
  pieces.text = std::move(text);
  pieces.spans = {{0, static_cast<uint32_t>(pieces.text.size())}};
  pre_tokenize(steps, true, pieces);
  std::vector<std::string> out;
  for (const Span span : pieces.spans) out.emplace_back(span.of(pieces.text));
  return out;
}

std::vector<std::string> split(const char* pattern, SplitBehavior behavior, std::string text,
                               bool invert = false) {
  return pieces_of({Split{Regex(pattern, "test"), behavior, invert}}, std::move(text));
}

using Strings = std::vector<std::string>;

TEST(PreTokenizer, Llama3Pattern) {
  const auto cut = [](const char* text) {
    return split(kLlama3Pattern, SplitBehavior::kIsolated, text);
  };
  EXPECT_EQ(cut("Hello world's  1234567 x!\n\n  y \t"),
            (Strings{"Hello", " world", "'s", " ", " ", "123", "456", "7", " x", "!\n\n", " ", " y",
                     " \t"}));
  EXPECT_EQ(cut("I'LL don'\xc5\xbf"),
            (Strings{"I", "'LL", " don", "'\xc5\xbf"}));  // long s is an s
  EXPECT_EQ(cut("caf\xc3\xa9 \xe6\x97\xa5\xe6\x9c\xac"),
            (Strings{"caf\xc3\xa9", " \xe6\x97\xa5\xe6\x9c\xac"}));
}

TEST(PreTokenizer, Behaviors) {
  using B = SplitBehavior;
  const char* text = "--a-b--";
  EXPECT_EQ(split("-", B::kRemoved, text), (Strings{"a", "b"}));
  EXPECT_EQ(split("-", B::kIsolated, text), (Strings{"-", "-", "a", "-", "b", "-", "-"}));
  EXPECT_EQ(split("-", B::kMergedWithPrevious, text), (Strings{"-", "-", "a-", "b-", "-"}));
  EXPECT_EQ(split("-", B::kMergedWithNext, text), (Strings{"-", "-a", "-b", "-", "-"}));
  EXPECT_EQ(split("-", B::kContiguous, text), (Strings{"--", "a", "-", "b", "--"}));
  EXPECT_EQ(split("[ab]", B::kRemoved, text, true), (Strings{"a", "b"}));
}

TEST(PreTokenizer, EachPieceIsATextOfItsOwn) {
  // In "1a" the first split leaves "a" alone, so that nothing stands before it for the second.
  EXPECT_EQ(pieces_of({Split{Regex("\\d", "t"), SplitBehavior::kIsolated},
                       Split{Regex("(?<=\\d)a", "t"), SplitBehavior::kRemoved}},
                      "1a2"),
            (Strings{"1", "a", "2"}));
}

TEST(PreTokenizer, PrefixSpaceAndMetaspace) {
  EXPECT_EQ(pieces_of({PrefixSpace{}, Split{Regex(" ?a+", "t"), SplitBehavior::kIsolated}}, "aa a"),
            (Strings{" aa", " a"}));
  const Metaspace metaspace{"_", Metaspace::Prepend::kFirst};
  EXPECT_EQ(pieces_of({metaspace}, "a  b"), Strings{"_a__b"});
  EXPECT_EQ(pieces_of({metaspace}, " a"), Strings{"_a"});
  EXPECT_EQ(pieces_of({Split{Regex::literal("|"), SplitBehavior::kRemoved}, metaspace}, "a|b c"),
            (Strings{"_a", "b_c"}));
}

TEST(Regex, WhiteSpaceIsUnicodes) {
  // U+180E is none (PCRE2's own \s takes it), U+0085 is (JavaScript's does not take it).
  EXPECT_EQ(split("\\s+", SplitBehavior::kRemoved, "a\xe1\xa0\x8e b"),
            (Strings{"a\xe1\xa0\x8e", "b"}));
  EXPECT_EQ(split("[^\\S]+", SplitBehavior::kRemoved, "a\xc2\x85 b"), (Strings{"a", "b"}));
  EXPECT_EQ(split("[\\S]+", SplitBehavior::kIsolated, "a\xe1\xa0\x8e b"),
            (Strings{"a\xe1\xa0\x8e", " ", "b"}));
}

// Lines as Oniguruma has them: pieces that Hugging Face's tokenizers made.
TEST(Regex, AnchorsAreOfLines) {
  const auto pieces = [](const char* pattern, const char* text) {
    return split(pattern, SplitBehavior::kIsolated, text);
  };
  EXPECT_EQ(pieces("\\s+$", "a\na\n"), (Strings{"a\na", "\n"}));
  EXPECT_EQ(pieces("\\s+$", "a \n b  "), (Strings{"a", " ", "\n b", "  "}));
  EXPECT_EQ(pieces("a$", "aa a\na"), (Strings{"aa ", "a", "\n", "a"}));
  EXPECT_EQ(pieces("^a", "aa a\na\n"), (Strings{"a", "a a\n", "a", "\n"}));
  EXPECT_EQ(pieces("^\\s+", "a \n b  "), (Strings{"a \n", " ", "b  "}));
  EXPECT_EQ(pieces("^\\s+", "a\n\na"), (Strings{"a\n", "\n", "a"}));
}

// Classes as Oniguruma has them: pieces that Hugging Face's tokenizers made of Kimi's pattern,
// whose words hold no Han. \xe3\x80\x81 is no Han, though Han texts use it.
TEST(Regex, ClassesIntersect) {
  constexpr const char* kKimi =
      R"([\p{Han}]+|)"
      R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*)"
      R"([\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|)"
      R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+)"
      R"([\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|)"
      R"(\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
  const auto cut = [](const char* pattern, const char* text) {
    return split(pattern, SplitBehavior::kIsolated, text);
  };
  EXPECT_EQ(
      cut(kKimi, "我don't 说HTTPServer's 中、文12345x"),
      (Strings{"我", "don't", " ", "说", "HTTPServer's", " ", "中", "、", "文", "123", "45", "x"}));
  EXPECT_EQ(cut(kKimi, "〇々ー〆 ABCd中E国'S"),
            (Strings{"〇々", "ー〆", " ABCd", "中", "E", "国", "'S"}));
  EXPECT_EQ(cut("[a-f&&[d-z&&[^e]]]+", "abdefd"), (Strings{"ab", "d", "e", "fd"}));
  EXPECT_EQ(cut("\\P{Han}+", "中、文"), (Strings{"中", "、", "文"}));
  EXPECT_EQ(cut("\\p{^Han}+", "中、文"), (Strings{"中", "、", "文"}));
}

// What two engines would read differently never gets through. The right column does, or the test
// shows nothing.
TEST(Regex, RefusesWhatEnginesReadDifferently) {
  const std::pair<const char*, const char*> cases[] = {
      {"[^\\p{L}&&[^\\p{Han}]]+", "[\\p{L}&&[^\\p{Han}]]+"},
      {"[\\p{L}&&\\p{Han}]+", "[\\p{L}&]+"},
      {"[\\p{L}&&[^\\p{Han}]a]+", "[\\p{L}&&[^\\p{Han}a]]+"},
      {"[a&&[\\p{Han", "[a&&[\\p{Han}]]"},
      {"[a&&[a&&[a&&[a&&[a&&[a&&[a&&[a&&[a&&[a]]]]]]]]]]", "[a&&[a&&[a]]]"},
      {"[a[bc]]", "[a\\[bc]"},
      {"\\w+", "\\p{L}+"},
      {"a\\b", "a\\x62"},
      {"a*", "a+"},
      {"(?i)a", "(?i:a)"},
      {"(?<n>a)", "(?<=a)b"},
      {"a{1,2}+", "\\p{L}+"},
      {"a{,2}b", "a{0,2}b"},
      {"a(", "a\\("},
      {"[a", "[]a]"},
  };
  for (const auto& [refused, taken] : cases) {
    EXPECT_THROW(Regex(refused, "test"), Error) << refused;
    EXPECT_NO_THROW(Regex(taken, "test")) << taken;
  }
}

TEST(Regex, LongRunsAndHopelessPatternsEnd) {
  for (const char* c : {" ", "a", "7", "!", "\n", "\xe3\x81\x82"}) {
    std::string run;
    while (run.size() < 300000) run += c;
    std::string joined;
    for (const auto& piece : split(kLlama3Pattern, SplitBehavior::kIsolated, run)) joined += piece;
    EXPECT_EQ(joined, run);
  }
  EXPECT_THROW(split("(?:a+)+\\d", SplitBehavior::kIsolated, std::string(5000, 'a')), UsageError);
}

}  // namespace
}  // namespace invar::tokenizer
