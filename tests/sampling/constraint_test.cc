#include "sampling/constraint.h"

#include <gtest/gtest.h>

#include <regex>
#include <unordered_set>

#include "base/error.h"
#include "sampling/grammar/languages.h"

namespace invar {
namespace {

// Every byte is a token, then some longer ones.
std::vector<std::string> vocabulary() {
  std::vector<std::string> bytes;
  for (int b = 0; b < 256; ++b) bytes.emplace_back(1, static_cast<char>(b));
  for (const char* text :
       {"ab", "abc", "{\"", "\": ", "true", "tru", "\xc3\xa9", "12", ", ", "ye", "yes"})
    bytes.emplace_back(text);
  bytes.emplace_back("");  // a special token
  return bytes;
}

std::shared_ptr<const TokenTable> tokens() {
  static const auto kTokens = std::make_shared<const TokenTable>(vocabulary());
  return kTokens;
}

bool is_allowed(Constraint& constraint, Constraint::State state, int32_t token) {
  return constraint.allowed(state)[token / 64] >> (token % 64) & 1;
}

// Whether the text is in the language, read byte by byte.
bool matches(Constraint& constraint, std::string_view text) {
  Constraint::State state = constraint.start();
  for (const char c : text) {
    const int32_t token = static_cast<unsigned char>(c);
    const Constraint::State next = constraint.next(state, token);
    EXPECT_EQ(is_allowed(constraint, state, token), !next.is_dead()) << text;
    if (next.is_dead()) return false;
    state = next;
  }
  return state.accepts;
}
bool regex(std::string_view pattern, std::string_view text) {
  Constraint constraint(grammar::regex_language(pattern), tokens());
  return matches(constraint, text);
}
bool schema(const std::string& text, std::string_view answer) {
  Constraint constraint(
      grammar::json_schema_language(json::parse(text, "test"), grammar::kAnyLayout), tokens());
  return matches(constraint, answer);
}

template <typename F>
std::string failure(F call) {
  try {
    call();
  } catch (const UsageError& error) {
    return error.what();
  }
  return "no failure";
}
std::string refused_regex(std::string_view pattern) {
  return failure([&] { grammar::regex_language(pattern); });
}
std::string refused_schema(const std::string& text) {
  return failure([&] { grammar::json_schema_language(json::parse(text, "test")); });
}
bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST(Constraint, RegularExpressions) {
  EXPECT_TRUE(regex("ab*c", "abbbc"));
  EXPECT_TRUE(regex("ab*c", "ac"));
  EXPECT_FALSE(regex("ab*c", "ab"));
  EXPECT_FALSE(regex("ab*c", "abcc"));
  EXPECT_TRUE(regex("^(yes|no|may(?:be)?)$", "maybe"));
  EXPECT_TRUE(regex("^(yes|no|may(?:be)?)$", "may"));
  EXPECT_FALSE(regex("(yes|no)", "yesno"));
  EXPECT_TRUE(regex("\\d{3}-\\d{2,4}", "123-456"));
  EXPECT_FALSE(regex("\\d{3}-\\d{2,4}", "123-4"));
  EXPECT_FALSE(regex("\\d{3}-\\d{2,4}", "123-45678"));
  EXPECT_TRUE(regex("a{2,}?", "aaaaa"));
  EXPECT_FALSE(regex("a{2,}", "a"));
  EXPECT_TRUE(regex("[^a-c\\]]+", "xyz[\n"));
  EXPECT_FALSE(regex("[^a-c\\]]+", "b"));
  EXPECT_TRUE(regex("[]a-]+", "]a-"));
  EXPECT_TRUE(regex("\\x41\\u00e9\\.\\S\\W", "A\xc3\xa9.x!"));
  EXPECT_TRUE(regex("", ""));
  EXPECT_TRUE(regex("a}", "a}"));
  EXPECT_FALSE(regex(".", "\n"));
  EXPECT_TRUE(regex("(?s)a(b|.)(?i)c", "a\nC"));
}

// Every text of up to four of these characters, beside the standard library's expressions.
void expect_as_standard(const std::string& pattern) {
  const std::regex expected(pattern);
  Constraint constraint(grammar::regex_language(pattern), tokens());
  std::vector<std::string> texts{""};
  for (size_t i = 0; i < texts.size(); ++i) {
    const std::string text = texts[i];
    EXPECT_EQ(matches(constraint, text), std::regex_match(text, expected)) << pattern << text;
    for (const char c : {'a', '7', '_', ' ', '.'})
      if (text.size() < 4) texts.push_back(text + c);
  }
}

TEST(Constraint, WordsBeginAndEndAtBoundaries) {
  for (const char* pattern :
       {"\\ba+\\b", ".*\\b.*", ".*\\Ba.*", "\\B", "(\\ba|7)\\b.*", ".?\\b(?=7)[a7]*\\b.*",
        "[a ]*\\b[ 7]*\\B\\.?", "(?:.*\\b)?a.*", "(?!a\\b).*", "\\w*\\b\\W*\\b\\w*"})
    expect_as_standard(pattern);
  EXPECT_TRUE(has(failure([] { regex("a\\bb", ""); }), "excludes itself"));
  EXPECT_TRUE(regex(".(?=\\b7).*", " 7"));
  EXPECT_FALSE(regex(".(?=\\b7).*", "_7"));
  EXPECT_TRUE(has(refused_regex("(\\ba )*"), "a \\b or \\B that is repeated"));
  EXPECT_TRUE(has(refused_regex("\\b*"), "a quantifier that follows nothing"));
  EXPECT_TRUE(regex("[\\b]", "\b"));
}

TEST(Constraint, TextsBeginAndEndWhereAnEdgeStands) {
  for (const char* never : {"a$b", "a^", "(?:a|b)^b", "(a$){2}", "(^a){2}"})
    EXPECT_TRUE(has(failure([&] { regex(never, ""); }), "excludes itself")) << never;
  EXPECT_TRUE(regex("(?=^a)a", "a"));
  EXPECT_TRUE(regex("(a$|b)*", "bba"));
  EXPECT_FALSE(regex("(a$|b)*", "bab"));
  EXPECT_TRUE(regex("(^a|b)*", "abb"));
  EXPECT_FALSE(regex("(^a|b)*", "bab"));
  EXPECT_TRUE(regex("(^|,)(x|$)", "x"));
  EXPECT_TRUE(regex("((?!ab)[a-c])*", "bacca"));
  EXPECT_FALSE(regex("((?!ab)[a-c])*", "bcab"));
}

TEST(Constraint, WordsOfJsonStringsBeginAndEndAtBoundaries) {
  const std::string form = R"({"type": "string", "pattern": "\\bcat\\b"})";
  for (const char* text : {"\"cat\"", "\"a cat\"", "\"cat.\"", "\"a\\ncat\\tb\"",
                           "\"\xc3\xa9"
                           "cat\""})
    EXPECT_TRUE(schema(form, text)) << text;
  for (const char* text : {"\"cats\"", "\"bobcat\"", "\"_cat\"", "\"cat7 \"", "\"\""})
    EXPECT_FALSE(schema(form, text)) << text;
}

TEST(Constraint, CharactersAreWholeUtf8) {
  EXPECT_TRUE(regex(".", "\xc3\xa9"));
  EXPECT_TRUE(regex(".", "\xf0\x9f\x98\x80"));
  EXPECT_FALSE(regex(".", "\xc3"));
  EXPECT_FALSE(regex(".", "\xed\xa0\x80"));      // a surrogate
  EXPECT_FALSE(regex(".", "\xc0\x80"));          // overlong
  EXPECT_FALSE(regex(".", "\xf4\x90\x80\x80"));  // above U+10FFFF
  EXPECT_TRUE(regex("[\xce\xb1-\xcf\x89]+", "\xce\xb1\xce\xb2\xcf\x89"));
  EXPECT_FALSE(regex("[\xce\xb1-\xcf\x89]", "\xcf\x8a"));
}

// Every code point at the edges of the encodings' lengths, against a range that begins or ends
// there.
TEST(Constraint, RangesOfCharactersEndWhereTheySay) {
  const char32_t edges[] = {0,       1,        0x7e,     0x7f,    0x80,    0x81,
                            0x7ff,   0x800,    0x801,    0xfff,   0x1000,  0xd7ff,
                            0xe000,  0xffff,   0x10000,  0x10001, 0x3ffff, 0x40000,
                            0xfffff, 0x100000, 0x10fffe, 0x10ffff};
  const auto encoded = [](char32_t c) {
    std::string s;
    if (c < 0x80) return std::string(1, static_cast<char>(c));
    const int size = c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
    for (int i = 0; i < size - 1; ++i, c >>= 6)
      s.insert(s.begin(), static_cast<char>(0x80 | (c & 0x3f)));
    s.insert(s.begin(), static_cast<char>((0xf00 >> size) | c));
    return s;
  };
  for (const char32_t low : edges)
    for (const char32_t high : edges) {
      if (low > high) continue;
      grammar::Language language;
      language.finish(language.character({{low, high}}));
      Constraint constraint(std::move(language), tokens());
      for (const char32_t c : edges)
        EXPECT_EQ(matches(constraint, encoded(c)), c >= low && c <= high)
            << std::hex << uint32_t(low) << " " << uint32_t(high) << " " << uint32_t(c);
    }
}

TEST(Constraint, MasksAgreeWithSingleSteps) {
  Constraint constraint(grammar::regex_language("(abc|ab|tr[u-v]e?|\xc3\xa9)+|12|yes"), tokens());
  int seen = 0;
  std::vector<Constraint::State> states{constraint.start()};
  for (size_t i = 0; i < states.size() && i < 40; ++i) {
    const Constraint::State state = states[i];
    const auto mask = constraint.allowed(state);
    const std::vector<uint64_t> copy(mask.begin(), mask.end());
    for (int32_t token = 0; token < std::ssize(vocabulary()); ++token) {
      const bool allowed = copy[token / 64] >> (token % 64) & 1;
      Constraint::State next = constraint.next(state, token);
      EXPECT_EQ(allowed, !next.is_dead()) << i << " " << token;
      seen += allowed;
      if (allowed) states.push_back(std::move(next));
    }
  }
  EXPECT_GT(seen, 12);
}

TEST(Constraint, TheStateIsAValue) {
  Constraint constraint(grammar::choice_language(std::vector<std::string>{"yes", "yard", "no"}),
                        tokens());
  const Constraint::State y = constraint.next(constraint.start(), 'y');
  EXPECT_FALSE(constraint.next(y, 'e').is_dead());
  EXPECT_FALSE(constraint.next(y, 'a').is_dead());  // another branch from the same state
  EXPECT_TRUE(constraint.next(y, 'o').is_dead());
  const Constraint::State yes = constraint.next(constraint.next(y, 'e'), 's');
  EXPECT_TRUE(yes.accepts);
  EXPECT_FALSE(yes.goes_on);
}

TEST(Constraint, JsonSchemas) {
  EXPECT_TRUE(schema(R"({"type": "integer"})", "-12"));
  EXPECT_FALSE(schema(R"({"type": "integer"})", "012"));
  EXPECT_FALSE(schema(R"({"type": "integer"})", "1.5"));
  EXPECT_TRUE(schema(R"({"type": "number"})", "-0.5e-3"));
  EXPECT_TRUE(schema(R"({"type": ["string", "null"], "maxLength": 2})", "null"));
  EXPECT_TRUE(schema(R"({"type": "string"})", "\"a\\n\\u00e9 \xc3\xa9\""));
  EXPECT_FALSE(schema(R"({"type": "string"})", "\"\n\""));
  EXPECT_FALSE(schema(R"({"type": "string"})", "\"\\ud800\""));
  EXPECT_TRUE(schema(R"({"type": "string", "minLength": 2, "maxLength": 3})", "\"\xc3\xa9z\""));
  EXPECT_FALSE(schema(R"({"type": "string", "minLength": 2, "maxLength": 3})", "\"a\""));
  EXPECT_FALSE(schema(R"({"type": "string", "maxLength": 3})", "\"abcd\""));
  EXPECT_TRUE(schema(R"({"type": "string", "pattern": "^[a-z]+.$"})", "\"ab!\""));
  EXPECT_FALSE(schema(R"({"type": "string", "pattern": "."})", "\"\"\""));
  EXPECT_TRUE(schema(R"({"type": "string", "pattern": "."})", R"("\"")"));
  EXPECT_TRUE(schema(R"({"enum": ["a", 1, null, [1, 2]]})", "[1, 2]"));
  EXPECT_TRUE(schema(R"({"const": {"a": 1.5}})", "{\"a\": 1.5}"));
  EXPECT_TRUE(schema(R"({"anyOf": [{"type": "boolean"}, {"type": "null"}]})", "false"));
  EXPECT_TRUE(schema(R"({"$defs": {"n": {"type": "null"}}, "$ref": "#/$defs/n"})", "null"));
}

TEST(Constraint, JsonLists) {
  const std::string list = R"({"type": "array", "items": {"type": "integer"}})";
  for (const char* good : {"[]", "[1]", "[1,2]", "[ 1, 2 ]", "[\n  1,\n  2\n]"})
    EXPECT_TRUE(schema(list, good)) << good;
  for (const char* bad : {"[1,]", "[,1]", "[1 2]", "[a]", "[1"})
    EXPECT_FALSE(schema(list, bad)) << bad;
  const auto counted = [](int low, int high) {
    return R"({"type": "array", "items": {"type": "null"}, "minItems": )" + std::to_string(low) +
           (high < 0 ? "" : ", \"maxItems\": " + std::to_string(high)) + "}";
  };
  const std::string answers[] = {"[]", "[null]", "[null,null]", "[null,null,null]",
                                 "[null,null,null,null]"};
  for (int low = 0; low < 4; ++low)
    for (int high = -1; high < 4; ++high)
      for (int size = 0; size < 5 && (high < 0 || high >= low); ++size)
        EXPECT_EQ(schema(counted(low, high), answers[size]),
                  size >= low && (high < 0 || size <= high))
            << low << " " << high << " " << size;
}

TEST(Constraint, JsonObjectsWithOptionalProperties) {
  const std::string object =
      R"({"type": "object", "required": ["b"], "additionalProperties": false, "properties":
      {"a": {"type": "null"}, "b": {"type": "null"}, "c": {"type": "null"}, "d": {"type": "null"}}})";
  for (const char* good : {R"({"b":null})", R"({"a":null,"b":null})", R"({"b": null, "d": null})",
                           R"({"a":null,"b":null,"c":null,"d":null})", "{\n  \"b\": null\n}"})
    EXPECT_TRUE(schema(object, good)) << good;
  for (const char* bad :
       {"{}", R"({"a":null})", R"({"b":null,})", R"({,"b":null})", R"({"c":null,"b":null})",
        R"({"b":null"c":null})", R"({"b":null,"x":null})"})
    EXPECT_FALSE(schema(object, bad)) << bad;
  const std::string loose = R"({"properties": {"a": {"type": "null"}, "b": {"type": "null"}}})";
  for (const char* good : {"{}", R"({"a":null})", R"({"b":null})", R"({"a":null,"b":null})"})
    EXPECT_TRUE(schema(loose, good)) << good;
  EXPECT_FALSE(schema(loose, R"({"b":null,"a":null})"));
  EXPECT_TRUE(schema(R"({"type": "object", "additionalProperties": {"type": "integer"}})",
                     R"({"x": 1, "y": 2})"));
  EXPECT_FALSE(schema(R"({"type": "object", "additionalProperties": {"type": "integer"}})",
                      R"({"x": "1"})"));
}

TEST(Constraint, AnyJsonObject) {
  Constraint constraint(grammar::json_object_language(grammar::kAnyLayout), tokens());
  EXPECT_TRUE(matches(constraint, R"({"a": [1, {"b": [true, null, "x"]}], "c": -1.5e3})"));
  EXPECT_TRUE(matches(constraint, "{}"));
  EXPECT_FALSE(matches(constraint, "[]"));
  EXPECT_FALSE(matches(constraint, R"({"a" 1})"));
  EXPECT_FALSE(matches(constraint, R"({"a":1)"));
}

TEST(Constraint, JsonIsCompactUnlessAnotherSpacingIsAskedFor) {
  const json::Value schema = json::parse(
      R"({"type": "object", "properties": {"a": {"type": "array", "items": {"type": "integer"}},
          "b": {"const": {"c": [1, 2]}}, "d": {}}, "required": ["a", "b", "d"]})",
      "test");
  const std::string compact = R"({"a":[1,2],"b":{"c":[1,2]},"d":{"e":[null,""]}})";
  std::string tabs, spaces;
  for (const char c : compact) {
    tabs += c == ':' ? ":\t" : std::string(1, c);
    spaces += c == ',' ? ", " : std::string(1, c);
  }
  const auto holds = [&](std::string_view whitespace, const std::string& text) {
    Constraint constraint(grammar::json_schema_language(schema, whitespace), tokens());
    return matches(constraint, text);
  };
  EXPECT_TRUE(holds(grammar::kCompact, compact));
  EXPECT_FALSE(holds(grammar::kCompact, tabs));
  EXPECT_FALSE(holds(grammar::kCompact, spaces));
  EXPECT_TRUE(holds(grammar::kAnyLayout, compact));
  EXPECT_TRUE(holds(grammar::kAnyLayout, spaces));
  EXPECT_FALSE(holds(grammar::kAnyLayout, tabs));
  EXPECT_TRUE(holds("\t?", tabs));
  EXPECT_FALSE(holds("\t?", spaces));
  // Whatever a pattern matches, white space alone stands between tokens.
  EXPECT_TRUE(holds("[ x]*", spaces));
  EXPECT_TRUE(has(failure([&] { holds("x+", compact); }), "as a pattern of spaces, found \"x+\""));
  EXPECT_TRUE(has(failure([&] { holds("(", compact); }), "("));
}

TEST(Constraint, WhatIsNotUnderstoodIsRefused) {
  for (const char* bad :
       {"(",         ")",         "(a",      "[a",      "*",          "a{",         "a{2",
        "a{3,1}",    "a{100001}", "(?<=a)",  "(?<n a)", "\\1",        "\\p{Lx}",    "\\",
        "((?=a)a)*", "(?=a)*",    "$*",      "(^)^+",   "((?!a)b)*c", "((?!^a)b)*", "\\xg0",
        "a\\ud800",  "[b-a]",     "[\\d-z]", "\xff",    "{"})
    EXPECT_NE(refused_regex(bad), "no failure") << bad;
  EXPECT_TRUE(has(refused_regex("ab(?#c)"), "character 4"));
  EXPECT_TRUE(has(refused_regex(std::string(1000, '(')), "too many groups"));
  EXPECT_TRUE(has(refused_regex("((a{1000}){1000}){1000}"), "too large"));
  // Each of 90 repetitions copies what it repeats. Were that not counted, a bound of bytes would
  // refuse it after some ten seconds.
  std::string nested = std::string(90, '(') + "^|$";
  for (int i = 0; i < 100; ++i) nested += "|a";
  for (int i = 0; i < 90; ++i) nested += ")*";
  EXPECT_TRUE(has(refused_regex(nested + "$"), "steps to find"));
  EXPECT_TRUE(has(refused_schema(R"({"type": "thing"})"), "\"thing\""));
  EXPECT_TRUE(has(refused_schema(R"({"$ref": "#"})"), "begins with itself"));
  EXPECT_TRUE(has(refused_schema(R"({"$ref": "#/$defs/x"})"), "does not have"));
  EXPECT_TRUE(has(refused_schema(R"({"enum": []})"), "enum"));
  EXPECT_TRUE(has(refused_schema("3"), "expected an object"));
  EXPECT_TRUE(has(failure([] { grammar::choice_language({}); }), "at least one"));
}

// (a|b)*a and then n times (a|b) need 2^n states when they are made deterministic.
std::string many_states() {
  std::string pattern = "(a|b)*a";
  for (int i = 0; i < 30; ++i) pattern += "(a|b)";
  return pattern;
}

// Every text of up to 8 letters a and b is a token: one step looks far ahead.
std::shared_ptr<const TokenTable> long_tokens() {
  std::vector<std::string> bytes = {"a", "b"};
  for (size_t i = 0; bytes[i].size() < 8; ++i)
    for (const char c : {'a', 'b'}) bytes.push_back(bytes[i] + c);
  return std::make_shared<const TokenTable>(bytes);
}

// Tokens that an answer of random letters gets before it has needed too many states.
int tokens_before_the_limit(Constraint& constraint, uint64_t seed) {
  ConstraintTally tally;
  Constraint::State state = constraint.start();
  for (int i = 0; i < 1000; ++i) {
    try {
      tally.add(constraint.mask(state));
      seed = seed * 6364136223846793005u + 1442695040888963407u;
      int64_t cost = 0;
      state = constraint.next(state, static_cast<int32_t>(seed >> 63), cost);
      tally.add_token(cost);
    } catch (const Error&) {
      return i;
    }
  }
  return 1000;
}

// As a counter that no token brings to its end, it needs few.
TEST(Constraint, CountersAreNotUnrolled) {
  Constraint constraint(grammar::regex_language("(a|b)*a(a|b){30}"), long_tokens());
  for (uint64_t seed = 1; seed <= 3; ++seed)
    EXPECT_EQ(tokens_before_the_limit(constraint, seed), 1000);
}

TEST(Constraint, AnAnswerHasALimitOfStatesOfItsOwn) {
  const auto table = long_tokens();
  const auto language = grammar::regex_language(many_states());
  Constraint shared(language, table);
  std::vector<int> alone, together;
  for (uint64_t seed = 1; seed <= 6; ++seed) {
    Constraint own(language, table);
    alone.push_back(tokens_before_the_limit(own, seed));
    EXPECT_GT(alone.back(), 10);
    EXPECT_LT(alone.back(), 1000);
    together.push_back(tokens_before_the_limit(shared, seed));
  }
  // What others have made neither helps nor harms, though all of it is kept.
  EXPECT_EQ(together, alone);
  // The control: an answer that needs few states has no limit.
  Constraint few(grammar::regex_language("(a|b)*"), table);
  EXPECT_EQ(tokens_before_the_limit(few, 1), 1000);
}

// 2^15 texts are tokens, and behind each stands another state.
TEST(Constraint, OneStepIsBounded) {
  std::vector<std::string> bytes = {"a", "b"};
  for (size_t i = 0; bytes[i].size() < 15; ++i)
    for (const char c : {'a', 'b'}) bytes.push_back(bytes[i] + c);
  const auto table = std::make_shared<const TokenTable>(bytes);
  EXPECT_THROW(Constraint(grammar::regex_language(many_states()), table), UsageError);
}

bool gbnf(std::string_view grammar, std::string_view text) {
  Constraint constraint(grammar::gbnf_language(grammar), tokens());
  return matches(constraint, text);
}
std::string refused_gbnf(std::string_view text) {
  return failure([&] { Constraint(grammar::gbnf_language(text), tokens()); });
}

TEST(Constraint, Grammars) {
  const char* sums = R"gbnf(# sums of names and numbers
root   ::= sum "\n"
sum    ::= term (("+" | '-') term)*   # from left to right
term   ::= [a-z_]+ | [0-9]{1,3}
         | "(" sum ")"
)gbnf";
  for (const char* good : {"a+1\n", "12-x_y\n", "((a)+(b-123))\n"}) EXPECT_TRUE(gbnf(sums, good));
  for (const char* bad : {"a+1", "a+\n", "1234\n", "((a)\n", "A\n", "a)\n"})
    EXPECT_FALSE(gbnf(sums, bad)) << bad;
  EXPECT_TRUE(gbnf("root ::= [^\\x41-\\x43\\]] . \"\\u00e9\"", "D\n\xc3\xa9"));
  EXPECT_FALSE(gbnf("root ::= [^\\x41-\\x43]", "B"));
  EXPECT_TRUE(gbnf("root ::= a|b\na ::= \"x\"{2}\nb ::= \"y\"{2,}", "yyy"));
  // What a rule ends with is no deeper than the rule.
  EXPECT_TRUE(gbnf("root ::= \"a\" root | \"b\"", std::string(5000, 'a') + "b"));
}

TEST(Constraint, GrammarsThatAreRefused) {
  EXPECT_TRUE(has(refused_gbnf("root ::= root \"a\" | \"b\""), "begins with itself"));
  EXPECT_TRUE(has(refused_gbnf("root ::= a\na ::= \"b\"* a"), "begins with itself"));
  EXPECT_TRUE(has(refused_gbnf("root ::= a"), "\"a\""));
  EXPECT_TRUE(has(refused_gbnf("a ::= \"b\""), "\"root\""));
  EXPECT_TRUE(has(refused_gbnf("root ::= \"a\" root"), "excludes itself"));
  EXPECT_TRUE(has(refused_gbnf("root ::= \"a\"\nroot ::= \"b\""), "second rule"));
  for (const char* bad : {"root", "root ::= (", "root ::= \"a", "root ::= [a", "root ::= )",
                          "root ::= \"a\"{2", "root ::= <tool>", "root ::= \"\\q\"", "= \"a\""})
    EXPECT_TRUE(has(refused_gbnf(bad), "in line 1")) << bad << ": " << refused_gbnf(bad);
}

// Rules lie within one another up to a limit, and every text that is allowed can be ended there.
TEST(Constraint, TheStackIsBounded) {
  const char* nested = "root ::= \"(\" root \")\" | \"x\"";
  const int most = grammar::Language::kMaxDepth;
  const auto text = [](int depth) {
    return std::string(depth, '(') + "x" + std::string(depth, ')');
  };
  EXPECT_TRUE(gbnf(nested, text(most)));
  EXPECT_FALSE(gbnf(nested, text(most + 1)));
  // The innermost rule needs two more: the first of them is not begun without room for the second.
  const char* pairs = "root ::= \"(\" pair \")\" | \"x\"\npair ::= \"[\" root \"]\"";
  Constraint constraint(grammar::gbnf_language(pairs), tokens());
  Constraint::State state = constraint.start();
  for (int i = 0; i < 1000 && state.goes_on; ++i) {
    const bool opens = is_allowed(constraint, state, '(') || is_allowed(constraint, state, '[');
    const char* kNext = opens ? "([" : "x])";
    int32_t token = -1;
    for (const char* c = kNext; *c; ++c)
      if (is_allowed(constraint, state, *c)) token = *c;
    ASSERT_GE(token, 0) << i;
    state = constraint.next(state, token);
  }
  EXPECT_TRUE(state.accepts);
}

// A counter far from its end needs no mask of its own; near it, each place has one.
TEST(Constraint, CountersShareMasks) {
  Constraint constraint(
      grammar::json_schema_language(json::parse(R"({"type": "string", "maxLength": 90000})", "x")),
      tokens());
  Constraint::State state = constraint.next(constraint.start(), '"');
  std::unordered_set<uint64_t> masks;
  ConstraintTally tally;
  for (int i = 0; i < 90000; ++i) {
    masks.insert(constraint.mask(state).name);
    int64_t cost = 0;
    tally.add(constraint.mask(state));
    state = constraint.next(state, 'a', cost);
    tally.add_token(cost);
  }
  EXPECT_LT(masks.size(), 12u);
  EXPECT_FALSE(is_allowed(constraint, state, 'a'));
  EXPECT_TRUE(is_allowed(constraint, state, '"'));
}

const char* kCall = R"({"type": "object", "properties": {"name": {"const": "f"},
  "arguments": {"type": "object", "properties": {"days": {"type": "integer"}},
                "required": ["days"], "additionalProperties": false}},
  "required": ["name", "arguments"]})";
const std::string kGood = R"({"name": "f", "arguments": {"days": 3}})",
                  kBad = R"({"name": "f", "arguments": {"days": "x"}})";

bool calls(bool once, std::string_view text) {
  static const json::Value schema = json::parse(kCall, "test");
  Constraint constraint(grammar::marked_calls_language(schema, {"<call>", "</call>"}, once),
                        tokens());
  return matches(constraint, text);
}

TEST(Constraint, CallsAmongText) {
  const std::string good = "<call>" + kGood + "</call>", bad = "<call>" + kBad + "</call>";
  for (const bool once : {false, true}) {
    for (const char* text : {"", "x", "a < b <c> <ca <<call </call>", "<", "<call", "\xff", "{"})
      EXPECT_TRUE(calls(once, text)) << text;
    EXPECT_TRUE(calls(once, good));
    EXPECT_TRUE(calls(once, "so <<ca" + good));
    EXPECT_TRUE(calls(once, "<call>\n" + kGood + "\n</call>"));
    // Behind the mark a call comes, and it is the schema's.
    EXPECT_FALSE(calls(once, "<call>x"));
    EXPECT_FALSE(calls(once, "<call>"));
    EXPECT_FALSE(calls(once, bad));
    EXPECT_FALSE(calls(once, "<call>" + kGood + "x"));
    EXPECT_EQ(calls(once, good + " and then"), !once);
    EXPECT_EQ(calls(once, good + good), !once);
    EXPECT_FALSE(calls(once, good + bad));
  }
  std::string many;
  for (int i = 0; i < 200; ++i) many += "<c" + good;  // more than rules may lie in one another
  EXPECT_TRUE(calls(false, many));
}

TEST(Constraint, ACallOrText) {
  Constraint constraint(grammar::bare_call_language(json::parse(kCall, "test")), tokens());
  for (const std::string& text : {std::string(), std::string("x {"), std::string(" <b>"), kGood,
                                  "\n" + kGood, kGood + "\n", std::string("<")})
    EXPECT_TRUE(matches(constraint, text)) << text;
  for (const std::string& text : {kBad, kGood + "x", " " + kBad, std::string("{"),
                                  "<|python_tag|>" + kBad, std::string("{}")})
    EXPECT_FALSE(matches(constraint, text)) << text;
}

// Beside a schema of the answer there are calls alone, or JSON of it.
TEST(Constraint, CallsOrAnAnswer) {
  const json::Value schema = json::parse(kCall, "test"),
                    answer = json::parse(R"({"const": "x"})", "test");
  const std::string good = "<call>" + kGood + "</call>", bad = "<call>" + kBad + "</call>";
  for (const bool once : {false, true}) {
    Constraint constraint(
        grammar::marked_calls_language(schema, {"<call>", "</call>"}, once, answer), tokens());
    EXPECT_TRUE(matches(constraint, "\"x\""));
    EXPECT_TRUE(matches(constraint, good));
    EXPECT_EQ(matches(constraint, good + "\n" + good), !once);
    for (const std::string& text : {std::string(), std::string("\"y\""), std::string("text"), bad,
                                    good + "\"x\"", "so " + good, "\"x\"" + good})
      EXPECT_FALSE(matches(constraint, text)) << text;
  }
}

// As qwen3_coder writes calls.
grammar::TagWords coder_words() {
  return {.call = "<function=",
          .name_end = ">",
          .call_end = "</function>",
          .key = "<parameter=",
          .key_end = ">",
          .text_key_end = ">",
          .value = "",
          .value_end = "</parameter>",
          .has_lines = true,
          .bare = "<function="};
}

std::vector<grammar::CallForm> call_forms() {
  return {{.name = "f",
           .parameters = {{.name = "path",
                           .is_required = true,
                           .is_text = true,
                           .texts = {},
                           .schema = json::parse(R"({"type": "string"})", "test")},
                          {.name = "mode",
                           .is_text = false,
                           .texts = {"a", "b"},
                           .schema = json::parse(R"({"enum": ["a", "b"]})", "test")},
                          {.name = "days",
                           .is_required = true,
                           .is_text = false,
                           .texts = {},
                           .schema = json::parse(R"({"type": "integer"})", "test")}}},
          {.name = "g", .is_strict = false, .parameters = {}}};
}

TEST(Constraint, CallsAsQwen3CoderWritesThem) {
  const std::string open = "<tool_call>\n<function=f>\n", close = "</function>\n</tool_call>";
  const auto set = [](const std::string& name, const std::string& value) {
    return "<parameter=" + name + ">\n" + value + "\n</parameter>\n";
  };
  const std::string path = set("path", "a\n</param <b>\n"), days = set("days", "3");
  const std::string good = open + path + days + close;
  for (const bool once : {false, true}) {
    Constraint constraint(grammar::tag_calls_language(call_forms(), coder_words(),
                                                      {"<tool_call>", "</tool_call>"}, once, {}),
                          tokens());
    for (const std::string& text :
         {std::string(), std::string("a <b> <funct <tool"), good, "so <" + good,
          open + path + set("mode", "b") + days + close, open + set("path", "") + days + close,
          std::string("<tool_call>\n<function=g>\nanything <parameter\n</function>\n</tool_call>")})
      EXPECT_TRUE(matches(constraint, text)) << text;
    for (const std::string& text :
         {open + days + close, open + path + close, open + days + path + close,
          open + path + set("mode", "c") + days + close, open + path + set("days", "x") + close,
          open + path + set("other", "x") + days + close,
          std::string("<tool_call>\n<function=h>\n</function>\n</tool_call>"),
          std::string("<function=f>\n"), std::string("<tool_call>")})
      EXPECT_FALSE(matches(constraint, text)) << text;
    EXPECT_EQ(matches(constraint, good + "\n" + good), !once);
  }
}

// A schema's rules hold for the text as it is written.
TEST(Constraint, TextsOfQwen3CodersCallsAreHeldToTheirSchemas) {
  const auto matches_with = [](const std::string& schema, const std::string& text) {
    const std::vector<grammar::CallForm> forms = {
        {.name = "f",
         .parameters = {{.name = "x",
                         .is_required = true,
                         .is_text = true,
                         .texts = {},
                         .schema = json::parse(schema, "test")}}}};
    Constraint constraint(grammar::tag_calls_language(forms, coder_words(),
                                                      {"<tool_call>", "</tool_call>"}, true, {}),
                          tokens());
    return matches(constraint, "<tool_call>\n<function=f>\n<parameter=x>\n" + text +
                                   "\n</parameter>\n</function>\n</tool_call>");
  };
  const std::string named = R"({"type": "string", "pattern": "^[a-c]+\n?[a-c]*$"})",
                    dated = R"({"type": "string", "format": "date"})",
                    counted = R"({"type": "string", "minLength": 2, "maxLength": 3})";
  for (const auto& [schema, good, bad] :
       {std::array{named, std::string("abc"), std::string("abd")},
        std::array{named, std::string("ab\nc"), std::string("")},
        std::array{dated, std::string("2026-11-28"), std::string("2026-13-28")},
        std::array{counted, std::string("\u00e4\u00e4\u00e4"), std::string("aaaa")},
        std::array{counted, std::string("a\n"), std::string("a")}}) {
    EXPECT_TRUE(matches_with(schema, good)) << schema << good;
    EXPECT_FALSE(matches_with(schema, bad)) << schema << bad;
    EXPECT_TRUE(matches_with(R"({"type": "string"})", bad)) << bad;  // the control
  }
  // The first end is the text's.
  EXPECT_FALSE(matches_with(R"({"type": "string", "minLength": 1})", "a\n</parameter>\n"));
  EXPECT_THROW(matches_with(R"({"type": "string", "pattern": 3})", "a"), UsageError);
}

TEST(Constraint, CallsByName) {
  const grammar::CallWords ways[] = {{"<c>", "<s>", "<e>"},
                                     {"<c>function<s>", "\n```json\n", "\n```<e>"}};
  const grammar::NamedCall calls[] = {
      {"f",
       json::parse(
           R"({"type": "object", "properties": {"days": {"type": "integer"}}, "required": ["days"]})",
           "test")},
      {"g", json::parse(R"({"type": "object", "properties": {}, "additionalProperties": false})",
                        "test")}};
  const grammar::CallWords plain[] = {{"", "[ARGS]", ""}};
  const std::string one = R"(<c>f<s>{"days": 3}<e>)", other = "<c>g<s>{}<e>",
                    fenced = "<c>function<s>g\n```json\n{}\n```<e>";
  for (const bool once : {false, true}) {
    Constraint constraint(grammar::named_calls_language(calls, ways, {"<a>", "</a>", true}, once,
                                                        {}, grammar::Spelling::json),
                          tokens());
    for (const std::string& text : {std::string("text"), "<a>" + one + "</a>",
                                    "<a>" + other + "</a>", "so <a>" + fenced + "</a>"})
      EXPECT_TRUE(matches(constraint, text)) << text;
    for (const std::string& text :
         {std::string("<a></a>"), "<a>" + one, std::string(R"(<a><c>f<s>{"days": "x"}<e></a>)"),
          std::string("<a><c>h<s>{}<e></a>"), std::string("<a><c>g<s>{}</a>")})
      EXPECT_FALSE(matches(constraint, text)) << text;
    EXPECT_EQ(matches(constraint, "<a>" + one + "\n" + other + "</a>"), !once);
    Constraint bare(grammar::named_calls_language(calls, plain, {"[TOOL_CALLS]", ""}, once, {},
                                                  grammar::Spelling::json),
                    tokens());
    EXPECT_TRUE(matches(bare, "[TOOL_CALLS]g[ARGS]{}"));
    EXPECT_EQ(matches(bare, R"(x [TOOL_CALLS]g[ARGS]{}[TOOL_CALLS]f[ARGS]{"days": 1})"), !once);
    EXPECT_FALSE(matches(bare, "[TOOL_CALLS]g[ARGS]{} [TOOL_CALLS]h"));
  }
}

// Messages as gpt_oss writes them behind "<|start|>assistant".
TEST(Constraint, CallsInChannels) {
  const grammar::NamedCall calls[] = {
      {"f", json::parse(R"({"type": "object", "properties": {"days": {"type": "integer"}},
                            "required": ["days"], "additionalProperties": false})",
                        "test")},
      {"g", json::parse(R"({"type": "object"})", "test")}};
  const auto call = [](const std::string& name, const std::string& type,
                       const std::string& arguments) {
    return "<|channel|>commentary to=functions." + name + type + "<|message|>" + arguments;
  };
  const std::string json = " <|constrain|>json", next = "<|start|>assistant";
  const std::string good = call("f", json, R"({"days": 3})"),
                    bad = call("f", json, R"({"days": "x"})"),
                    turned = R"( to=functions.f<|channel|>commentary json<|message|>{"days": 3})",
                    words = "<|channel|>commentary<|message|>I look <|up|> a <| b.<|end|>" + next;
  for (const bool once : {false, true}) {
    Constraint constraint(grammar::channel_calls_language(calls, once, {}), tokens());
    for (const std::string& text :
         {good, good + "<|call|>", turned, call("g", "", R"({"x": [1]})"), words + good,
          words + words + turned, std::string("<|channel|>final<|message|>"),
          std::string("<|channel|>final<|message|>a <| b <|call|x"),
          words + "<|channel|>final<|message|>So."})
      EXPECT_TRUE(matches(constraint, text)) << text;
    for (const std::string& text :
         {bad, bad + "<|call|>", call("h", json, "{}"), good + "x", good + "<|end|>", words + bad,
          std::string("<|channel|>commentary to=f<|message|>{}"), std::string("text"),
          std::string("<|channel|>final<|message|>a<|start|>"),
          "<|channel|>final<|message|>a<|end|>" + next + good,
          std::string("<|channel|>analysis<|message|>a<|end|>") + next + good})
      EXPECT_FALSE(matches(constraint, text)) << text;
    EXPECT_EQ(matches(constraint, good + "<|call|>" + next + turned), !once);
    EXPECT_FALSE(matches(constraint, good + "<|call|>" + next + bad));
    Constraint beside(
        grammar::channel_calls_language(calls, once, json::parse(R"({"const": 1})", "test")),
        tokens());
    for (const std::string& text : {good, std::string("<|channel|>final<|message|>1"),
                                    std::string("<|channel|>final <|constrain|>json<|message|>1")})
      EXPECT_TRUE(matches(beside, text)) << text;
    EXPECT_FALSE(matches(beside, "<|channel|>final<|message|>2"));
  }
}

// Twenty parameters that may be left out: each is read once.
TEST(Constraint, ManyKeywordsThatNobodyNeeds) {
  grammar::CallForm form{.name = "f", .parameters = {}};
  for (int i = 0; i < 40; ++i)
    form.parameters.push_back({.name = fmt::format("k{}", i),
                               .texts = {},
                               .schema = json::parse(R"({"type": "integer"})", "test")});
  Constraint constraint(grammar::pythonic_calls_language({&form, 1}, true, {}), tokens());
  for (const char* text : {"[f()]", "[f(k0=1)]", "[f(k3=1, k39=2)]"})
    EXPECT_TRUE(matches(constraint, text)) << text;
  for (const char* text : {"[f(k3=1, k2=2)]", "[f(, k1=1)]", "[f(k1=1,)]"})
    EXPECT_FALSE(matches(constraint, text)) << text;
}

TEST(Constraint, PythonicCalls) {
  for (const bool once : {false, true}) {
    Constraint constraint(grammar::pythonic_calls_language(call_forms(), once, {}), tokens());
    for (const char* text :
         {"", "text [", R"([f(path="a", days=3)])", R"([f(path="", mode="b", days=-1)])", "[g()]"})
      EXPECT_TRUE(matches(constraint, text)) << text;
    for (const char* text : {"[", "[]", R"([f(path="a")])", R"([f(days=3, path="a")])",
                             R"([f(path=a, days=3)])", R"([f(path="a", days=3)] x)",
                             R"([f(path="a", mode="c", days=3)])", "[g(x=1)]", "[h()]", " ["})
      EXPECT_FALSE(matches(constraint, text)) << text;
    EXPECT_EQ(matches(constraint, "[g(), g()]"), !once);
    Constraint beside(grammar::pythonic_calls_language(call_forms(), once,
                                                       json::parse(R"({"const": 1})", "test")),
                      tokens());
    EXPECT_TRUE(matches(beside, "1"));
    EXPECT_TRUE(matches(beside, "[g()]"));
    EXPECT_FALSE(matches(beside, "text"));
  }
}

TEST(Constraint, AMarkMayBeginWithinItself) {
  const json::Value schema = json::parse(kCall, "test");
  Constraint constraint(grammar::marked_calls_language(schema, {"[[", "]]"}, true), tokens());
  for (const std::string& text :
       {std::string("a [ b [c"), "[[" + kGood + "]]", "a [b [[" + kGood + "]]"})
    EXPECT_TRUE(matches(constraint, text)) << text;
  for (const std::string& text : {"[[" + kBad + "]]", std::string("a [[b"), "[[[" + kGood + "]]"})
    EXPECT_FALSE(matches(constraint, text)) << text;
  EXPECT_TRUE(has(failure([&] {
                    grammar::marked_calls_language(schema, {"", "]]"}, true);
                  }),
                  "mark"));
}

}  // namespace
}  // namespace invar
