// Grammars as llama.cpp writes them (GBNF): name ::= "text" [class] other (group) * + ? {m,n} | #
// remark
#include <algorithm>
#include <map>

#include "base/error.h"
#include "base/json.h"
#include "sampling/grammar/languages.h"
#include "sampling/grammar/regex.h"

namespace invar::grammar {

namespace {

using Expr = Language::Expr;
constexpr size_t kMaxCharacters = size_t{1} << 20;

class GbnfParser {
 public:
  GbnfParser(std::string_view grammar, Language& language)
      : text_(regex::code_points(grammar, "the grammar")),
        language_(language),
        characters_(language, Characters::Spelling::plain) {}

  Expr parse() {
    for (skip_space(); at_ < text_.size(); skip_space()) parse_rule();
    const auto root = rules_.find("root");
    if (root == rules_.end() || !root->second.is_defined)
      fail_usage("expected a rule \"root\" in the grammar, found none");
    for (const auto& [name, rule] : rules_)
      if (!rule.is_defined)
        fail_usage("the grammar uses the rule {}, which it does not define", json::quoted(name));
    return root->second.expr;
  }

 private:
  struct Rule {
    Expr expr = 0;
    bool is_defined = false;
  };

  [[noreturn]] void refuse(std::string_view what) const {
    const auto line = std::count(text_.begin(), text_.begin() + std::ssize(before()), U'\n') + 1;
    fail_usage("the grammar has {} in line {}", what, line);
  }
  std::u32string_view before() const {
    return std::u32string_view(text_).substr(0, std::min(at_, text_.size()));
  }

  bool here(char32_t c) const { return at_ < text_.size() && text_[at_] == c; }
  bool skip(char32_t c) { return here(c) && (++at_, true); }
  bool skip_mark() {
    if (!std::u32string_view(text_).substr(at_).starts_with(U"::=")) return false;
    return at_ += 3, true;
  }

  void skip_space() {
    while (at_ < text_.size()) {
      if (here('#'))
        while (at_ < text_.size() && !here('\n')) ++at_;
      else if (here(' ') || here('\t') || here('\r') || here('\n'))
        ++at_;
      else
        break;
    }
  }

  // Empty where there is none.
  std::string take_name() {
    std::string name;
    for (; at_ < text_.size(); ++at_) {
      const char32_t c = text_[at_];
      const bool is_letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
      if (!is_letter && !(c >= '0' && c <= '9') && c != '-' && c != '.') break;
      if (name.empty() && c == '.') break;  // any character
      name += static_cast<char>(c);
    }
    return name;
  }

  Rule& rule(const std::string& name) {
    const auto [at, is_new] = rules_.try_emplace(name);
    if (is_new) at->second.expr = language_.rule(language_.add_rule(name));
    return at->second;
  }

  void parse_rule() {
    const std::string name = take_name();
    if (name.empty()) refuse("something that is no rule");
    skip_space();
    if (!skip_mark()) refuse(fmt::format("no ::= behind {}", json::quoted(name)));
    const Expr body = parse_choice();
    Rule& made = rule(name);
    if (made.is_defined) refuse(fmt::format("a second rule {}", json::quoted(name)));
    made.is_defined = true;
    language_.define(language_.node(made.expr).at, body);
  }

  Expr parse_choice() {
    if (++depth_ > kMaxNesting) refuse("too many groups within one another");
    std::vector<Expr> options;
    do options.push_back(parse_sequence());
    while (skip('|'));
    --depth_;
    return language_.choice(options);
  }

  Expr parse_sequence() {
    std::vector<Expr> parts;
    for (skip_space(); at_ < text_.size() && !here('|') && !here(')'); skip_space()) {
      if (next_rule_begins()) break;
      Expr part = parse_part();
      // No space before what repeats it, as in llama.cpp.
      for (int nesting = 0; repeats(part); ++nesting)
        if (nesting > kMaxNesting) refuse("too many repetitions within one another");
      parts.push_back(part);
    }
    if (depth_ == 1 && here(')')) refuse("a ) that nothing opens");
    return language_.sequence(parts);
  }

  bool next_rule_begins() {
    const size_t begin = at_;
    const bool is_name = !take_name().empty();
    skip_space();
    const bool begins = is_name && std::u32string_view(text_).substr(at_).starts_with(U"::=");
    at_ = begin;
    return begins;
  }

  Expr parse_part() {
    if (here('"') || here('\'')) return parse_text(text_[at_++]);
    if (skip('[')) return parse_class();
    if (skip('.')) return characters_.any();
    if (skip('(')) {
      const Expr group = parse_choice();
      if (!skip(')')) refuse("a ( that is not closed");
      return group;
    }
    const std::string name = take_name();
    if (name.empty()) refuse("something that is no part of a rule");
    return rule(name).expr;
  }

  bool repeats(Expr& part) {
    int32_t low = 0, high = kEndless;
    if (skip('*')) {
    } else if (skip('+')) {
      low = 1;
    } else if (skip('?')) {
      high = 1;
    } else if (skip('{')) {
      skip_space();
      low = high = here(',') ? 0 : number();
      skip_space();
      if (skip(',')) {
        skip_space();
        high = here('}') ? kEndless : number();
        skip_space();
      }
      if (!skip('}')) refuse("a { that is not a count");
      if (high < low) refuse("a count that ends below its beginning");
    } else {
      return false;
    }
    part = language_.repeat(part, low, high);
    return true;
  }

  int32_t number() {
    int32_t value = 0;
    const size_t begin = at_;
    for (; at_ < text_.size() && text_[at_] >= '0' && text_[at_] <= '9'; ++at_) {
      value = value * 10 + static_cast<int32_t>(text_[at_] - '0');
      if (value > kMaxRepetitions) refuse("a count above 100000");
    }
    if (at_ == begin) refuse("a { that is not a count");
    return value;
  }

  Expr parse_text(char32_t quote) {
    std::vector<Expr> parts;
    while (!here(quote)) parts.push_back(characters_.of({one(take_character())}));
    ++at_;
    return language_.sequence(parts);
  }

  static std::pair<char32_t, char32_t> one(char32_t c) { return {c, c}; }

  Expr parse_class() {
    const bool is_negated = skip('^');
    CodePoints ranges;
    while (!here(']')) {
      const char32_t low = take_character();
      char32_t high = low;
      const bool is_range = here('-') && at_ + 1 < text_.size() && text_[at_ + 1] != ']';
      if (is_range) ++at_, high = take_character();
      if (high < low) refuse("a range in [] that ends below its beginning");
      ranges.push_back({low, high});
    }
    ++at_;
    // Sorted and merged either way.
    const CodePoints others = complement(std::move(ranges));
    return characters_.of(is_negated ? others : complement(others));
  }

  char32_t take_character() {
    if (at_ >= text_.size()) refuse("a text or class that is not closed");
    const char32_t c = text_[at_++];
    if (c == '\n') refuse("a text or class that is not closed");
    if (c != '\\') return c;
    if (at_ >= text_.size()) refuse("a backslash at its end");
    const char32_t escaped = text_[at_++];
    switch (escaped) {
      case 'n':
        return '\n';
      case 'r':
        return '\r';
      case 't':
        return '\t';
      case 'x':
        return hex(2);
      case 'u':
        return hex(4);
      case 'U':
        return hex(8);
      default:
        if ((escaped >= 'a' && escaped <= 'z') || (escaped >= 'A' && escaped <= 'Z') ||
            (escaped >= '0' && escaped <= '9'))
          refuse("an escape that is not supported");
        return escaped;
    }
  }

  char32_t hex(int digits) {
    uint64_t value = 0;
    for (int i = 0; i < digits; ++i) {
      const char32_t c = at_ < text_.size() ? text_[at_++] : U' ';
      const char32_t lower = c | 0x20;
      if (c >= '0' && c <= '9')
        value = value * 16 + (c - '0');
      else if (lower >= 'a' && lower <= 'f')
        value = value * 16 + (lower - 'a' + 10);
      else
        refuse("an escape without its digits");
    }
    if (value > 0x10ffff) refuse("an escape above U+10FFFF");
    return static_cast<char32_t>(value);
  }

  std::u32string text_;
  Language& language_;
  Characters characters_;
  std::map<std::string, Rule> rules_;
  size_t at_ = 0;
  int depth_ = 0;
};

}  // namespace

bool is_gbnf(std::string_view grammar) {
  constexpr const char* kSpace = " \t\r\n";
  constexpr const char* kName = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_";
  for (size_t at = 0; (at = grammar.find("::=", at)) != grammar.npos; at += 3) {
    const std::string_view name =
        grammar.substr(0, grammar.substr(0, at).find_last_not_of(kSpace) + 1);
    const std::string_view before = name.substr(0, name.find_last_not_of(kName) + 1);
    const std::string_view line = before.substr(before.rfind('\n') + 1);
    if (before.size() < name.size() && line.find_first_not_of(kSpace) == line.npos) return true;
  }
  return false;
}

Language gbnf_language(std::string_view grammar) {
  if (grammar.size() > kMaxCharacters)
    fail_usage("the grammar is too large: expected at most {} bytes, found {}", kMaxCharacters,
               grammar.size());
  Language language;
  language.finish(GbnfParser(grammar, language).parse());
  return language;
}

}  // namespace invar::grammar
