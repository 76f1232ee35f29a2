// The parts of JSON as expressions.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "sampling/grammar/language.h"
#include "sampling/grammar/languages.h"
#include "sampling/grammar/regex.h"

namespace invar::grammar {

// A schema's rules for a string: lengths in characters, and patterns and formats that all hold.
struct StringRules {
  int32_t low = 0, high = kEndless;
  std::vector<std::string> patterns, formats;
  std::vector<std::string> excluded;  // texts that it is not
  std::vector<std::string> excluded_patterns;
  std::vector<std::string> grammars;  // Lark's
  auto operator<=>(const StringRules&) const = default;
  bool is_plain() const {
    return patterns.empty() && formats.empty() && excluded.empty() && excluded_patterns.empty() &&
           grammars.empty();
  }
};

// How a text is written, and what does not stand in it.
struct Writing {
  Characters::Spelling spelling;
  std::string_view without = {};
};

// Its rules for a number. Bounds are null where there are none.
struct NumberRules {
  bool is_integer = false;
  json::Value low, high;
  bool low_excluded = false, high_excluded = false;
  json::Value multiple;
};

class JsonText {
 public:
  using Expr = Language::Expr;
  // `whitespace`: a regular expression of spaces, tabs and newlines. Throws UsageError.
  JsonText(Language& language, std::string_view whitespace, Spelling spelling = Spelling::json);

  Expr space() const { return space_; }  // what may stand between two tokens
  Expr comma() const { return comma_; }  // and space
  Expr boolean() { return language_.choice({language_.text("true"), language_.text("false")}); }
  Expr null() { return language_.text("null"); }
  // One of these values and no other.
  Expr one_of(const json::Array& values);
  Expr string(const StringRules& rules);
  // The name of a member: one, or any that follows the rules.
  Expr name(const std::string& name) { return language_.text(spelled_name(name)); }
  Expr name(const StringRules& rules);
  Expr number(const NumberRules& rules);
  // Any value, object.
  Expr any();
  Expr any_object() { return any(), object_; }
  Expr any_array() { return any(), array_; }
  // open item, item ... close
  Expr list(std::string_view open, std::string_view close, Expr item, int32_t low, int32_t high);
  // "name": value
  Expr member(Expr name, Expr value) {
    return language_.sequence({name, language_.text(":"), space_, value});
  }

 private:
  Expr value(const json::Value& value);
  std::string spelled(const json::Value& value) const;
  std::string spelled_name(const std::string& name) const;
  Expr make_string(const StringRules& rules);
  Expr plain_number(bool is_integer);

  Language& language_;
  const Spelling spelling_;
  Expr space_, comma_, character_;
  Expr any_ = -1, object_ = -1, array_ = -1;
  std::map<StringRules, Expr> strings_;
};

// The texts of `rules` as they are, of which none has `without` in it.
Language::Expr plain_text(Language& language, const StringRules& rules, std::string_view without);

// A text of Lark's grammar; none of its terminals has what does not stand in it.
Language::Expr add_lark(Language& language, std::string_view grammar, const Writing& writing);

// The pattern of a format of JSON schema; null where the name says nothing that can be held to.
const std::string* format_pattern(const std::string& format);
// The most characters of a format, or kEndless.
int32_t format_length(const std::string& format);

// JSON numbers within bounds, without an exponent; up to 18 digits before the point and 17 behind.
Language::Expr bounded_number(Language& language, const NumberRules& rules);

}  // namespace invar::grammar
