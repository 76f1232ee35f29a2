#include "sampling/grammar/json_text.h"

#include <algorithm>
#include <mutex>

#include "base/error.h"
#include "sampling/grammar/intersection.h"
#include "sampling/grammar/schema_words.h"

namespace invar::grammar {

namespace {

using Expr = Language::Expr;

// The texts that a string may be, as they are written.
Table string_table(Language& parts, const StringRules& rules, bool with_formats,
                   const Writing& writing) {
  Characters characters(parts, writing.spelling);
  std::vector<Part> all;
  if (!writing.without.empty())
    all.push_back({parts.sequence(
                       {characters.anything(), parts.text(writing.without), characters.anything()}),
                   true});
  for (const std::string& pattern : rules.patterns)
    all.push_back({regex_expression(characters, regex::parse(pattern), Match::anywhere)});
  if (with_formats)
    for (const std::string& format : rules.formats)
      all.push_back(
          {regex_expression(characters, regex::parse(*format_pattern(format)), Match::whole)});
  for (const std::string& pattern : rules.excluded_patterns)
    all.push_back({regex_expression(characters, regex::parse(pattern), Match::anywhere), true});
  std::vector<std::string> excluded;
  for (const std::string& text : rules.excluded) {
    std::string quoted;
    json::append_quoted(quoted, text);
    const bool is_plain = writing.spelling == Characters::Spelling::plain;
    excluded.push_back(is_plain ? text : quoted.substr(1, quoted.size() - 2));
  }
  if (!excluded.empty()) all.push_back({parts.texts(excluded), true});
  const Expr anything = characters.anything();
  const Table table = intersection(parts, all, anything);
  if (table.size() == 0 || table.shortest[0] >= rules.low) return table;
  all.push_back({parts.repeat(characters.any(), rules.low, kEndless)});
  return intersection(parts, all, anything);
}

// A grammar is not regular: no other rule can be held to beside it.
Expr text_of_grammar(Language& language, const StringRules& rules, const Writing& writing) {
  StringRules others = rules;
  others.grammars.clear();
  if (rules.grammars.size() > 1 || others != StringRules())
    fail_usage("expected no other rule of a text beside its {}, found one", kLark);
  return add_lark(language, rules.grammars[0], writing);
}

// The texts of a format, which is the same for all forms: it is made once.
const Table& format_table(const std::string& format) {
  static std::mutex mutex;
  static std::map<std::string, Table> made;
  const std::lock_guard lock(mutex);
  const auto [at, is_new] = made.try_emplace(format);
  if (is_new) {
    Language parts(std::make_shared<Budget>(INT64_MAX));
    at->second = string_table(parts, {.formats = {format}}, true, {Characters::Spelling::json});
  }
  return at->second;
}

// Whether the rules are a format, and a length at most.
bool is_format_alone(const StringRules& rules, const Writing& writing) {
  StringRules others = rules;
  others.formats.clear();
  others.high = kEndless;
  return rules.formats.size() == 1 && others == StringRules() &&
         writing.spelling == Characters::Spelling::json && writing.without.empty();
}

Expr held_text(Language& language, const StringRules& rules, const Writing& writing) {
  if (!rules.grammars.empty()) return text_of_grammar(language, rules, writing);
  if (is_format_alone(rules, writing)) {
    const Table& table = format_table(rules.formats[0]);
    language.budget().spend(static_cast<int64_t>(table.bytes() / 100));
    return language.table(table, std::min(rules.high, format_length(rules.formats[0])));
  }
  Language parts(language.shared_budget());
  Table table = string_table(parts, rules, true, writing);
  int32_t high = rules.high;
  for (const std::string& format : rules.formats) high = std::min(high, format_length(format));
  // A format is only a remark in JSON schema. One that its pattern excludes, as zod's times without
  // a zone, gives way to it.
  if (table.size() == 0 && !rules.formats.empty() && !rules.patterns.empty())
    table = string_table(parts, rules, false, writing);
  return language.table(std::move(table), high);
}

// As itself, with a backslash and a letter, or by number: one of four digits that is no surrogate,
// or two that are a pair.
Table string_character(std::shared_ptr<Budget> budget) {
  Language l(std::move(budget));
  const Expr plain = l.character({{0x20, '!'}, {'#', '['}, {']', 0x10ffff}});
  const auto digits = [&](std::string_view of) {
    ByteSet set{};
    for (const char c : of) add_to(set, c, c);
    return l.bytes(set);
  };
  const Expr hex = digits("0123456789abcdefABCDEF"), two = l.sequence({hex, hex});
  const Expr d = digits("dD");
  const Expr high = l.sequence({d, digits("89abAB"), two});
  const Expr low = l.sequence({d, digits("cdefCDEF"), two});
  const Expr number =
      l.choice({l.sequence({digits("0123456789abcefABCEF"), hex, two}),
                l.sequence({d, digits("01234567"), two}), l.sequence({high, l.text("\\u"), low})});
  const Expr escape = l.choice({digits("\"\\/bfnrt"), l.sequence({l.text("u"), number})});
  const Part all{l.choice({plain, l.sequence({l.text("\\"), escape})})};
  return intersection(l, {&all, 1}, l.repeat(all.expr, 0, kEndless));
}

// The texts of JSON's white space that a pattern matches.
Expr spacing(Language& language, std::string_view pattern) {
  if (pattern.empty()) return language.empty();
  Language parts(language.shared_budget());
  Characters characters(parts, Characters::Spelling::plain);
  ByteSet set{};
  for (const char c : {' ', '\t', '\r', '\n'}) add_to(set, c, c);
  const Part all[] = {{regex_expression(characters, regex::parse(pattern), Match::whole)},
                      {parts.repeat(parts.bytes(set), 0, kEndless)}};
  Table table = intersection(parts, all, characters.anything());
  if (table.size() == 0)
    fail_usage("expected white space between tokens of JSON as a pattern of spaces, found {}",
               json::quoted(pattern));
  return language.table(std::move(table));
}

}  // namespace

JsonText::JsonText(Language& language, std::string_view whitespace, Spelling spelling)
    : language_(language), spelling_(spelling) {
  space_ = spacing(language, whitespace);
  comma_ = language.sequence({language.text(","), space_});
  character_ = language.table(string_character(language.shared_budget()));
}

Expr JsonText::string(const StringRules& rules) {
  if (const auto known = strings_.find(rules); known != strings_.end()) return known->second;
  const Expr quote = language_.text(spelling_ == Spelling::json ? "\"" : kTextMark);
  return strings_[rules] = language_.sequence({quote, make_string(rules), quote});
}

Expr JsonText::name(const StringRules& rules) {
  if (spelling_ == Spelling::json) return string(rules);
  StringRules bare = rules;
  bare.patterns.emplace_back("^[A-Za-z0-9_$][A-Za-z0-9_$./-]*$");
  return plain_text(language_, bare, kTextMark);
}

// A name that is no word stands between marks.
std::string JsonText::spelled_name(const std::string& name) const {
  constexpr std::string_view kOdd = ":{}[],\"<> \t\r\n";
  if (spelling_ == Spelling::json) return json::dump(json::Value(name));
  return name.empty() || name.find_first_of(kOdd) != name.npos ? spelled(json::Value(name)) : name;
}

// A value without members and items.
std::string JsonText::spelled(const json::Value& value) const {
  if (spelling_ == Spelling::json || !value.is_string()) return json::dump(value);
  return std::string(kTextMark) + value.as_string() + std::string(kTextMark);
}

Expr JsonText::make_string(const StringRules& rules) {
  if (rules.high < rules.low) return language_.nothing();
  if (spelling_ == Spelling::marked) return plain_text(language_, rules, kTextMark);
  if (rules.is_plain()) return language_.repeat(character_, rules.low, rules.high);
  return held_text(language_, rules, {Characters::Spelling::json});
}

Expr plain_text(Language& language, const StringRules& rules, std::string_view without) {
  if (rules.high < rules.low) return language.nothing();
  return held_text(language, rules, {Characters::Spelling::plain, without});
}

Expr JsonText::number(const NumberRules& rules) {
  const bool is_free = rules.low.is_null() && rules.high.is_null() && rules.multiple.is_null();
  return is_free ? plain_number(rules.is_integer) : bounded_number(language_, rules);
}

// Up to 18 digits, so that integers have 64 bits.
Expr JsonText::plain_number(bool is_integer) {
  Language& l = language_;
  const Expr digit = l.byte_range('0', '9');
  const Expr whole =
      l.choice({l.text("0"), l.sequence({l.byte_range('1', '9'), l.repeat(digit, 0, 17)})});
  const Expr integer = l.sequence({l.optional(l.text("-")), whole});
  if (is_integer) return integer;
  const Expr fraction = l.sequence({l.text("."), l.repeat(digit, 1, 17)});
  const Expr sign = l.choice({l.text("+"), l.text("-")});
  const Expr letter = l.choice({l.text("e"), l.text("E")});
  const Expr exponent = l.sequence({letter, l.optional(sign), l.repeat(digit, 1, 2)});
  return l.sequence({integer, l.optional(fraction), l.optional(exponent)});
}

Expr JsonText::any() {
  if (any_ >= 0) return any_;
  const int32_t rule = language_.add_rule("any JSON value");
  any_ = language_.rule(rule);
  object_ = list("{", "}", member(name(StringRules()), any_), 0, kEndless);
  array_ = list("[", "]", any_, 0, kEndless);
  language_.define(rule,
                   language_.choice({string({}), number({}), boolean(), null(), object_, array_}));
  return any_;
}

Expr JsonText::one_of(const json::Array& values) {
  std::vector<std::string> texts;
  std::vector<Expr> options;
  for (const json::Value& one : values)
    if (one.is_array() || one.is_object())
      options.push_back(value(one));
    else
      texts.push_back(spelled(one));
  options.push_back(language_.texts(texts));
  return language_.choice(options);
}

Expr JsonText::value(const json::Value& value) {
  Language& l = language_;
  if (!value.is_array() && !value.is_object()) return l.text(spelled(value));
  std::vector<Expr> parts{l.text(value.is_array() ? "[" : "{"), space_};
  const auto add = [&](Expr part) {
    if (parts.size() > 2) parts.push_back(comma_);
    parts.push_back(part);
  };
  if (value.is_array())
    for (const json::Value& item : value.as_array()) add(this->value(item));
  else
    for (const auto& [name, item] : value.as_object())
      add(member(this->name(name), this->value(item)));
  if (parts.size() > 2) parts.push_back(space_);
  parts.push_back(l.text(value.is_array() ? "]" : "}"));
  return l.sequence(parts);
}

Expr JsonText::list(std::string_view open, std::string_view close, Expr item, int32_t low,
                    int32_t high) {
  Language& l = language_;
  if (high < low) return l.nothing();
  if (high == 0) return l.sequence({l.text(open), l.text(close)});
  const Expr more = l.repeat(l.sequence({comma_, item}), std::max(low - 1, 0),
                             high == kEndless ? high : high - 1);
  const Expr items = l.sequence({item, more, space_});
  return l.sequence({l.text(open), space_, low == 0 ? l.optional(items) : items, l.text(close)});
}

Language json_object_language(std::string_view whitespace) {
  Language language;
  language.finish(JsonText(language, whitespace).any_object());
  return language;
}

}  // namespace invar::grammar
