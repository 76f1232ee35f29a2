// Where an answer stands in its thoughts, token by token; tests/frontend/thoughts_test.cc has the
// formats of published models.
#include "sampling/thought.h"

#include <gtest/gtest.h>

namespace invar {
namespace {

ThoughtCursor begun_cursor(std::vector<std::string> texts) {
  const auto vocab = static_cast<int32_t>(texts.size());
  auto marks = std::make_shared<const ThoughtMarks>("<think>", "</think>", std::move(texts));
  return {
      std::make_shared<const ThoughtRules>(ThoughtRules{.marks = std::move(marks), .begun = true}),
      false, vocab};
}

// A text that is too long for a string's own place was read from memory that was given back.
TEST(ThoughtCursor, ReadsTextsOfAnyLength) {
  const std::string long_text(100, 'x');
  for (const std::string text : {"</think>", "</think> and so on, at some length"}) {
    ThoughtCursor cursor = begun_cursor({"a", long_text, text});
    cursor.advance(0);
    cursor.advance(1);
    EXPECT_FALSE(cursor.is_over());
    cursor.advance(2);
    EXPECT_TRUE(cursor.is_over()) << text;
  }
}

// A model may have more rows than its tokenizer has tokens: they are none of a thought's end.
TEST(ThoughtCursor, TokensWithoutATextSayNothing) {
  ThoughtCursor cursor = begun_cursor({"</think>"});
  cursor.advance(5);
  EXPECT_FALSE(cursor.is_over());
  cursor.advance(0);
  EXPECT_TRUE(cursor.is_over());
}

}  // namespace
}  // namespace invar
