// What forms may take, in counted work and in memory: each bound with a form just small enough.
#include <gtest/gtest.h>

#include <cstdio>
#include <functional>

#include "base/error.h"
#include "sampling/constraint.h"
#include "sampling/constraint_cursor.h"
#include "sampling/grammar/languages.h"

namespace invar {
namespace {

using grammar::Language;

std::shared_ptr<const TokenTable> tokens() {
  static const auto kTokens = [] {
    std::vector<std::string> bytes;
    for (int b = 0; b < 256; ++b) bytes.emplace_back(1, static_cast<char>(b));
    for (int a = 'a'; a <= 'z'; ++a)
      for (int b = 'a'; b <= 'z'; ++b)
        bytes.push_back({static_cast<char>(a), static_cast<char>(b), 'n'});
    return std::make_shared<const TokenTable>(bytes);
  }();
  return kTokens;
}

// `part` for each number below `count`, with % replaced by it.
std::string many(int count, const std::string& part, const std::string& between) {
  std::string all;
  for (int i = 0; i < count; ++i) {
    std::string one = part;
    for (size_t at; (at = one.find('%')) != one.npos;) one.replace(at, 1, std::to_string(i));
    all += (i ? between : "") + one;
  }
  return all;
}

std::string text_of(int count, const std::string& part) {
  return many(count, part, "");
}

Language schema(const std::string& text) {
  return grammar::json_schema_language(json::parse(text, "test"));
}

std::string refusal(const std::function<Language()>& make) {
  try {
    Constraint constraint(make(), tokens());
  } catch (const UsageError& error) {
    return error.what();
  }
  return "";
}

TEST(FormBounds, WhatStandsForTooMuchIsRefused) {
  const std::function<Language(int)> kForms[] = {
      // The alternation of an attack: thousands of ways to understand each byte.
      [](int n) { return grammar::gbnf_language("root ::= " + many(n, "[^x]{%,} \"n%\"", " | ")); },
      [](int n) { return grammar::regex_language(text_of(n, "a?")); },
      [](int n) { return grammar::regex_language(text_of(n, "(a?b?c?)*")); },
      [](int n) { return grammar::regex_language(text_of(n, "(?=[a-z]*)") + ".*"); },
      [](int n) { return grammar::regex_language("(?=.*a.{" + std::to_string(n) + "}b).*"); },
      [](int n) {
        return schema(R"({"patternProperties": {)" + many(n, R"("^a%": {"type": "string"})", ", ") +
                      "}}");
      },
      [](int n) {
        return schema(R"({"allOf": [)" + many(n, R"({"$ref": "#/$defs/a"})", ", ") +
                      R"(], "$defs": {"a": {"required": [)" + many(n, "\"r%\"", ", ") + "]}}}");
      },
  };
  for (size_t i = 0; i < std::size(kForms); ++i) {
    EXPECT_EQ(refusal([&] { return kForms[i](2); }), "") << i;
    const std::string said = refusal([&] { return kForms[i](8000); });
    EXPECT_TRUE(said.find("too large") != said.npos || said.find("more than") != said.npos)
        << i << ": " << said;
  }
}

// The same form takes the same work, whatever was compiled before.
TEST(FormBounds, WorkIsCounted) {
  const auto work = [](const std::string& pattern) {
    return grammar::Budget::kMost - grammar::regex_language(pattern).budget().left();
  };
  const int64_t first = work("(?=.*a.{5}b)[^x]{3,9}");
  EXPECT_GT(first, 100);
  work("[a-z]{1,1000}(?=.*z).*");
  EXPECT_EQ(work("(?=.*a.{5}b)[^x]{3,9}"), first);
  EXPECT_NE(work("(?=.*a.{6}b)[^x]{3,9}"), first);
}

// Words are one thing to follow, however many there are.
TEST(FormBounds, WordsAreATable) {
  const std::string words = many(3000, "w%", "|");
  Constraint constraint(grammar::regex_language("x(" + words + ")y"), tokens());
  EXPECT_LT(constraint.mask(constraint.start()).cost, 1000);
  Constraint::State state = constraint.start();
  for (const char c : std::string("xw2917")) {
    state = constraint.next(state, c);
    ASSERT_FALSE(state.is_dead()) << c;
  }
  EXPECT_FALSE(constraint.next(state, 'y').is_dead());
  EXPECT_TRUE(constraint.next(state, '1').is_dead());
}

// An engine counts the work that is done now, and none for the first mask of an answer.
TEST(FormBounds, WhatIsRememberedIsLessWork) {
  Constraint constraint(grammar::regex_language("(" + many(40, "[^x]{%,}n%", "|") + ")*"),
                        tokens());
  const auto work = [&](const Constraint::State& state) {
    int64_t work = 0;
    const int64_t cost = constraint.mask(state, work).cost;
    return std::pair(work, cost);
  };
  const Constraint::State later = constraint.next(constraint.start(), 'a');
  EXPECT_EQ(work(constraint.start()).first, 0);
  const auto [first, cost] = work(later);
  EXPECT_GE(first, cost);
  EXPECT_LT(work(later).first, cost / 10);
  constraint.forget();
  EXPECT_EQ(work(later), std::pair(first, cost));
  constraint.forget();
  EXPECT_EQ(work(constraint.start()).first, 0);
}

// What is remembered changes neither a mask nor its cost.
TEST(FormBounds, WhatIsForgottenIsFoundAgain) {
  Constraint constraint(grammar::regex_language("(" + many(40, "[^x]{%,}n%", "|") + ")*"),
                        tokens());
  std::vector<Constraint::State> states{constraint.start()};
  for (int i = 0; i < 50; ++i) states.push_back(constraint.next(states.back(), "abcdn"[i % 5]));
  std::vector<Constraint::Mask> masks;
  for (const auto& state : states) masks.push_back(constraint.mask(state));
  const size_t remembered = constraint.remembered_bytes();
  constraint.forget();
  EXPECT_LT(constraint.remembered_bytes(), size_t{32} << 10);
  EXPECT_GT(remembered, size_t{64} << 10);
  for (size_t i = states.size(); i-- > 0;) {
    const Constraint::Mask& again = constraint.mask(states[i]);
    EXPECT_EQ(again.tokens, masks[i].tokens) << i;
    EXPECT_EQ(again.cost, masks[i].cost) << i;
    EXPECT_EQ(again.name, masks[i].name) << i;
  }
}

// A place keeps what is left to read, and nothing of what was read.
TEST(FormBounds, APlaceDoesNotGrow) {
  Constraint constraint(grammar::gbnf_language("root ::= ([a-z] | \"(\" root \")\")* "), tokens());
  Constraint::State state = constraint.start();
  size_t most = 0;
  for (int i = 0; i < 3000; ++i) {
    state = constraint.next(state, "ab(c)"[i % 5]);
    ASSERT_FALSE(state.is_dead());
    most = std::max(most, state.cells.size());
  }
  EXPECT_LT(most, 32u);
  // The control: what is left to read grows.
  for (int i = 0; i < 20; ++i) state = constraint.next(state, '(');
  EXPECT_GT(state.cells.size(), most);
}

TEST(FormBounds, FormsShareAMemory) {
  const auto memory = std::make_shared<FormMemory>();
  std::vector<std::unique_ptr<Constraint>> forms;
  const auto add = [&] {
    std::string text = "{\"enum\": [";
    for (int i = 0; i < 20'000; ++i)
      text += (i ? ", " : "") + std::to_string(i * 7919 + std::ssize(forms));
    forms.push_back(std::make_unique<Constraint>(schema(text + "]}"), tokens(), memory));
  };
  EXPECT_THROW(while (forms.size() < 2000) add(), FormsFull);
  EXPECT_GT(forms.size(), 10u);
  EXPECT_LE(memory->bytes(), FormMemory::kMost);
  const size_t held = memory->bytes();
  EXPECT_GT(held, FormMemory::kMost / 2);
  forms.resize(forms.size() / 2);
  EXPECT_LT(memory->bytes(), held * 6 / 10);
  EXPECT_NO_THROW(add());
  forms.clear();
  EXPECT_EQ(memory->bytes(), 0u);
}

// A cursor's error comes at the same token for every schedule: here with and without others, and
// with everything forgotten between.
TEST(FormBounds, AnAnswerEndsWhereItsOwnWorkDoes) {
  const auto language = grammar::regex_language("(" + many(100, "[^x]{%,}n%", "|") + ")*");
  const auto tokens_until_error = [&](Constraint& constraint, bool forgets) {
    Constraint::State state = constraint.start();
    ConstraintTally tally;
    int i = 0;
    try {
      for (; i < 2000; ++i) {
        if (forgets && i % 7 == 0) constraint.forget();
        tally.add(constraint.mask(state));
        int64_t cost = 0;
        state = constraint.next(state, 'a' + i % 20, cost);
        tally.add_token(cost);
      }
    } catch (const Error&) {
    }
    return i;
  };
  Constraint own(language, tokens()), shared(language, tokens());
  const int alone = tokens_until_error(own, false);
  EXPECT_GT(alone, 2);
  EXPECT_LT(alone, 2000);
  EXPECT_EQ(tokens_until_error(shared, true), alone);
  EXPECT_EQ(tokens_until_error(shared, false), alone);
  Constraint few(grammar::regex_language("[a-z]*"), tokens());
  EXPECT_EQ(tokens_until_error(few, true), 2000);
}

}  // namespace
}  // namespace invar
