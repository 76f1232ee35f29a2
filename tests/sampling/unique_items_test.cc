// Arrays whose items must differ: the token that would end an item as one that is there already is
// excluded, where there are others.
#include <gtest/gtest.h>

#include "sampling/constraint_cursor.h"
#include "sampling/grammar/languages.h"

namespace invar {
namespace {

constexpr int kBytes = 256;

// A token for each byte, and some of several.
const std::vector<std::string>& vocabulary() {
  static const auto kTokens = [] {
    std::vector<std::string> tokens;
    for (int byte = 0; byte < kBytes; ++byte) tokens.emplace_back(1, static_cast<char>(byte));
    for (const char* text : {"a\"", "\"a\"", "b\"", "1,", "1]", "12", "\","})
      tokens.emplace_back(text);
    return tokens;
  }();
  return kTokens;
}

// The texts of the tokens that may follow `answer`, whose form is `schema`.
std::vector<std::string> after(const std::string& answer, const std::string& schema) {
  static const auto kTable = std::make_shared<const TokenTable>(vocabulary());
  const auto constraint = std::make_shared<Constraint>(
      grammar::json_schema_language(json::parse(schema, "test"), grammar::kCompact), kTable);
  ConstraintCursor cursor(constraint, nullptr, static_cast<int32_t>(vocabulary().size()));
  const SamplingParams params;
  for (const char byte : answer) cursor.advance(static_cast<unsigned char>(byte), params);
  const auto allowed = cursor.allowed(params);
  std::vector<std::string> texts;
  for (size_t token = 0; token < vocabulary().size(); ++token)
    if (allowed[token / 64] >> (token % 64) & 1) texts.push_back(vocabulary()[token]);
  return texts;
}

std::string unique(const std::string& items, bool is_unique = true) {
  return R"({"type": "array", "uniqueItems": )" + std::string(is_unique ? "true" : "false") +
         R"(, "items": )" + items + "}";
}

bool may_follow(const std::string& token, const std::string& answer, const std::string& schema) {
  const auto texts = after(answer, schema);
  return std::ranges::count(texts, token) > 0;
}

TEST(UniqueItems, AStringThatIsThereAlreadyDoesNotEnd) {
  for (const bool is_unique : {true, false}) {
    const std::string form = unique(R"({"type": "string"})", is_unique);
    for (const char* end : {"\"", "\","})
      EXPECT_EQ(may_follow(end, R"(["a","a)", form), !is_unique) << end;
    EXPECT_EQ(may_follow("a\"", R"(["a",")", form), !is_unique);
    EXPECT_EQ(may_follow("\"a\"", R"(["a",)", form), !is_unique);
    EXPECT_TRUE(may_follow("b\"", R"(["a",")", form));
    EXPECT_TRUE(may_follow("a\"", R"(["a","a)", form));
    EXPECT_TRUE(may_follow("a", R"(["a",")", form));
    EXPECT_TRUE(may_follow("\"", R"(["a","b)", form));
  }
}

TEST(UniqueItems, ANumberThatIsThereAlreadyGoesOn) {
  for (const bool is_unique : {true, false}) {
    const std::string form = unique(R"({"type": "integer"})", is_unique);
    for (const char* end : {",", "]"}) EXPECT_EQ(may_follow(end, "[1,1", form), !is_unique) << end;
    for (const char* end : {"1,", "1]"}) EXPECT_EQ(may_follow(end, "[1,", form), !is_unique) << end;
    EXPECT_TRUE(may_follow("2", "[1,1", form));
    EXPECT_TRUE(may_follow("12", "[1,", form));
    EXPECT_TRUE(may_follow("]", "[12,1", form));
  }
}

TEST(UniqueItems, ObjectsAndListsAreToldApartByTheirSpelling) {
  const std::string objects =
      R"({"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]})";
  const std::string lists = R"({"type": "array", "items": {"type": "integer"}})";
  for (const bool is_unique : {true, false}) {
    EXPECT_EQ(may_follow("}", R"([{"a":1},{"a":1)", unique(objects, is_unique)), !is_unique);
    EXPECT_TRUE(may_follow("}", R"([{"a":1},{"a":12)", unique(objects, is_unique)));
    EXPECT_EQ(may_follow("]", "[[1,1],[1,1", unique(lists, is_unique)), !is_unique);
    EXPECT_TRUE(may_follow(",", "[[1,1],[1", unique(lists, is_unique)));
  }
}

TEST(UniqueItems, EachArrayHasItemsOfItsOwnWhereverTheSchemaSaysSo) {
  const std::string form = R"({"type": "object", "properties": {"x": {"$ref": "#/$defs/set"},
    "y": {"anyOf": [{"$ref": "#/$defs/set"}, {"type": "null"}]}, "z": {"type": "array", "items": {"type": "string"}}},
    "required": ["x", "y", "z"], "$defs": {"set": {"type": "array", "uniqueItems": true, "items": {"type": "string"}}}})";
  EXPECT_FALSE(may_follow("\"", R"({"x":["a","a)", form));
  EXPECT_TRUE(may_follow("\"", R"({"x":["a"],"y":["a)", form));
  EXPECT_FALSE(may_follow("\"", R"({"x":["a"],"y":["a","a)", form));
  EXPECT_TRUE(may_follow("\"", R"({"x":["a"],"y":null,"z":["a","a)", form));
  const std::string nested = unique(unique(R"({"type": "string"})"));
  EXPECT_FALSE(may_follow("\"", R"([["a"],["a","a)", nested));
  EXPECT_FALSE(may_follow("]", R"([["a"],["a")", nested));
  EXPECT_TRUE(may_follow(",", R"([["a"],["a")", nested));
}

TEST(UniqueItems, WhereNothingElseMayFollowTheItemEnds) {
  const std::string form = unique(R"({"type": "string", "maxLength": 1, "pattern": "^a$"})");
  EXPECT_EQ(after(R"(["a","a)", form), (std::vector<std::string>{"\"", "\","}));
}

}  // namespace
}  // namespace invar
