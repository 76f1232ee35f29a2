#include "frontend/constraint_compiler.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "tokenizer/make_tokenizer.h"

namespace invar {
namespace {

const Tokenizer& tokenizer() {
  static const Tokenizer kTokenizer = Tokenizer::from_texts(make_tokenizer(400, 1).texts, "made");
  return kTokenizer;
}

std::shared_ptr<Constraint> regex(ConstraintCompiler& compiler, const std::string& pattern) {
  return compiler.compile(json::Object{{"regex", pattern}});
}

std::string refusal(ConstraintCompiler& compiler, const std::string& pattern) {
  try {
    regex(compiler, pattern);
  } catch (const UsageError& error) {
    return error.what();
  }
  return "";
}

TEST(ConstraintCompiler, WhatWasRefusedIsNotTriedAgain) {
  ConstraintCompiler compiler(tokenizer());
  const std::string pattern = "(?=.*a.{18}b)(?=.*c.{17}d).*";
  const std::string said = refusal(compiler, pattern);
  EXPECT_NE(said.find("too large"), said.npos) << said;
  for (int i = 0; i < 50; ++i) EXPECT_EQ(refusal(compiler, pattern), said);
  EXPECT_EQ(compiler.compiled(), 1);
  // The control: another form is.
  EXPECT_EQ(refusal(compiler, "[a-z]+"), "");
  EXPECT_EQ(compiler.compiled(), 2);
}

TEST(ConstraintCompiler, RequestsForTheSameShareAConstraint) {
  ConstraintCompiler compiler(tokenizer());
  const auto first = regex(compiler, "[a-z]{3}");
  EXPECT_EQ(regex(compiler, "[a-z]{3}"), first);
  EXPECT_NE(regex(compiler, "[a-z]{4}"), first);
  EXPECT_EQ(compiler.compiled(), 2);
}

// Of many forms that no answer has, few bytes are kept.
TEST(ConstraintCompiler, MemoryIsGivenBack) {
  ConstraintCompiler compiler(tokenizer());
  const auto form = [&](int i) {
    std::string pattern;
    for (int k = 0; k < 400; ++k)
      pattern += "[^" + std::string(1, static_cast<char>('a' + k % 26)) + "]{" +
                 std::to_string(i + k) + "}";
    return regex(compiler, pattern);
  };
  std::vector<std::shared_ptr<Constraint>> held;
  for (int i = 0; i < 400; ++i) held.push_back(form(i));
  const size_t most = compiler.form_bytes();
  EXPECT_GT(most, size_t{4} << 20);  // the control: what answers hold is there
  held.clear();
  EXPECT_LE(compiler.form_bytes(), size_t{4} << 20);
}

// Where answers hold all that there is room for, another form is told to come later, and fits then.
TEST(ConstraintCompiler, FormsAreFewEnoughForTheirMemory) {
  ConstraintCompiler compiler(tokenizer());
  std::vector<std::shared_ptr<Constraint>> held;
  const auto form = [&](size_t i) {
    json::Array words;
    for (size_t k = 0; k < 4096; ++k) words.push_back(std::to_string(100'000'007 * (k + 1) + i));
    return compiler.compile(json::Object{{"choice", std::move(words)}});
  };
  EXPECT_THROW(while (held.size() < 1000) held.push_back(form(held.size())), FormsFull);
  EXPECT_LE(compiler.form_bytes(), FormMemory::kMost);
  const size_t next = held.size();
  EXPECT_THROW(form(next), FormsFull);  // not kept as a refusal
  held.resize(next / 2);
  EXPECT_TRUE(form(next));
}

// Clients may name this form, too.
TEST(ConstraintCompiler, CallsThatMakeNoSenseAreRefused) {
  ConstraintCompiler compiler(tokenizer());
  for (const char* form :
       {R"({"forms": 5})", R"({"forms": []})", R"({"forms": [{}]})",
        R"({"forms": [{"name": "f", "strict": true, "parameters": [{}]}]})",
        R"({"named": [], "words": []})", R"({"named": [{}]})",
        R"({"named": [{"name": "f", "arguments": {}}], "words": [{}]})",
        R"({"named": 1, "words": 2})", R"({"answer": 3})", R"({"channels": true, "named": []})",
        R"({"channels": true, "named": [{"name": "f"}]})"}) {
    json::Value calls = json::parse(form, "test");
    for (const char* open : {"<a>", ""}) {
      calls.set("open", open);
      calls.set("close", "</a>");
      calls.set("once", true);
      calls.set("call", 5);
      EXPECT_THROW(compiler.compile(json::Object{{"calls", calls}}), UsageError) << form;
    }
  }
}

}  // namespace
}  // namespace invar
