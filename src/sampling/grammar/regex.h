// Regular expressions as ECMAScript and Python write them, as far as they are regular.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "sampling/grammar/language.h"

namespace invar::grammar {

// How deep groups and counts may lie within one another, and the largest count.
constexpr int kMaxNesting = 100, kMaxRepetitions = 100'000;

CodePoints complement(CodePoints ranges);

// The ways to write a character: as UTF-8, or as it stands within a JSON string.
class Characters {
 public:
  enum class Spelling { plain, json };
  Characters(Language& language, Spelling spelling) : language_(language), spelling_(spelling) {}

  Language::Expr of(const CodePoints& ranges);
  Language::Expr any() { return of({{0, 0x10ffff}}); }
  // Any number of them.
  Language::Expr anything() { return language_.repeat(any(), 0, kEndless); }
  Language& language() { return language_; }

 private:
  bool is_itself(char32_t c) const;
  Table table_of(const CodePoints& plain, const std::shared_ptr<Budget>& budget) const;
  static const Table& table_of_any(Spelling spelling);
  static Language::Expr json(Language& language, const CodePoints& ranges);

  Language& language_;
  const Spelling spelling_;
  std::map<CodePoints, Language::Expr> known_;
};

namespace regex {

struct Node {
  // kBegin, kEnd: a ^ or $ that is not around the whole.
  enum Kind {
    kCharacter,
    kSequence,
    kChoice,
    kRepeat,
    kLook,
    kBoundary,
    kBegin,
    kEnd
  } kind = kSequence;
  CodePoints ranges = {};
  std::vector<Node> children = {};
  int low = 0, high = 0;  // of a repetition; high below 0: without end
  // The places of the ^ and $ of a sequence that is the whole or one of its alternatives.
  int begin_at = -1, end_at = -1;
  bool negated = false;  // of a look-ahead; of a boundary: \B
};

// Throws UsageError for what is not understood.
Node parse(std::string_view pattern);

// The characters of \w.
CodePoints word();

// Code points of UTF-8; throws UsageError where `what` is not.
std::u32string code_points(std::string_view text, const char* what);

}  // namespace regex

enum class Match { whole, anywhere };
// The texts that a pattern matches, as a whole or somewhere within. Look-aheads, \b and \B are
// allowed where nothing repeats them, but for "no such text begins here" before each character up
// to the end.
Language::Expr regex_expression(Characters& characters, const regex::Node& pattern, Match match);

// Whether a language, which is finished, has a text; the work counts against its budget.
bool is_in(const Language& language, std::string_view text);

// Whether it matches a text; the work counts against the budget of `whole`.
bool matches_pattern(const std::string& pattern, const std::string& text, Match match,
                     const Language& whole);

}  // namespace invar::grammar
