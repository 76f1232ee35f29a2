// The ways to write a character.
#include <algorithm>

#include "base/error.h"
#include "sampling/grammar/intersection.h"
#include "sampling/grammar/regex.h"

namespace invar::grammar {

namespace {

using Expr = Language::Expr;

const CodePoints kAnyCharacter = {{0, 0x10ffff}};
const CodePoints kSurrogates = {{0xd800, 0xdfff}};  // are no characters

CodePoints without(const CodePoints& ranges, const CodePoints& others) {
  CodePoints outside = complement(ranges);
  outside.insert(outside.end(), others.begin(), others.end());
  return complement(std::move(outside));
}

bool holds(const CodePoints& ranges, char32_t c) {
  return std::any_of(ranges.begin(), ranges.end(),
                     [&](const auto& range) { return range.first <= c && c <= range.second; });
}

}  // namespace

Expr Characters::of(const CodePoints& ranges) {
  const auto known = known_.find(ranges);
  if (known != known_.end()) return known->second;
  if (ranges.size() == 1 && ranges[0].first == ranges[0].second && is_itself(ranges[0].first))
    return known_[ranges] = language_.character(ranges[0].first);
  const CodePoints plain = without(ranges, kSurrogates);
  if (ranges == kAnyCharacter) {
    const Table& any = table_of_any(spelling_);
    language_.budget().spend(static_cast<int64_t>(any.bytes() / 100));
    return known_[ranges] = language_.table(any);
  }
  return known_[ranges] = language_.table(table_of(plain, language_.shared_budget()));
}

// All the ways to write a character, as one thing to follow.
Table Characters::table_of(const CodePoints& plain, const std::shared_ptr<Budget>& budget) const {
  Language language(budget);
  const Part part{spelling_ == Spelling::plain ? language.character(plain) : json(language, plain)};
  if (part.expr == language.nothing())
    fail_usage("the regular expression has a character that cannot be written");
  const Expr any = language.repeat(part.expr, 0, kEndless);
  return intersection(language, {&part, 1}, any);
}

// Most patterns need it: it is made once.
const Table& Characters::table_of_any(Spelling spelling) {
  const auto made = [](Spelling how) {
    Language none;
    const auto budget = std::make_shared<Budget>(INT64_MAX);
    return Characters(none, how).table_of(without(kAnyCharacter, kSurrogates), budget);
  };
  static const Table plain = made(Spelling::plain), json = made(Spelling::json);
  return spelling == Spelling::plain ? plain : json;
}

// Whether there is no other way to write a character.
bool Characters::is_itself(char32_t c) const {
  if (c >= 0xd800 && c <= 0xdfff) return false;
  return spelling_ == Spelling::plain || (c >= 0x20 && c != '"' && c != '\\');
}

// As itself or with the escape of one letter; the control characters that have none, by number.
Expr Characters::json(Language& language, const CodePoints& ranges) {
  static constexpr std::pair<char32_t, char> kEscapes[] = {
      {'"', '"'}, {'\\', '\\'}, {'\b', 'b'}, {'\f', 'f'}, {'\n', 'n'}, {'\r', 'r'}, {'\t', 't'}};
  ByteSet letters{};
  for (const auto& [c, letter] : kEscapes)
    if (holds(ranges, c)) add_to(letters, letter, letter);
  std::vector<Expr> options;
  options.push_back(language.character(without(ranges, {{0, 0x1f}, {'"', '"'}, {'\\', '\\'}})));
  options.push_back(language.sequence({language.text("\\"), language.bytes(letters)}));
  for (char32_t c = 0; c < 0x20; ++c) {
    const bool has_letter = c == '\b' || c == '\f' || c == '\n' || c == '\r' || c == '\t';
    if (has_letter || !holds(ranges, c)) continue;
    ByteSet last{};
    for (const char digit : {"0123456789abcdef"[c % 16], "0123456789ABCDEF"[c % 16]})
      add_to(last, digit, digit);
    const Expr number = language.text(c < 16 ? "\\u000" : "\\u001");
    options.push_back(language.sequence({number, language.bytes(last)}));
  }
  return language.choice(options);
}

}  // namespace invar::grammar
