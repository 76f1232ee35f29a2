#include "frontend/jinja/lexer.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "base/ends.h"
#include "frontend/jinja/python_text.h"
#include "tokenizer/utf8.h"

namespace invar::jinja {

namespace {

constexpr std::string_view kSymbols[] = {"//", "**", "==", "!=", ">=", "<=", "+", "-", "/",
                                         "*",  "%",  "~",  "[",  "]",  "(",  ")", "{", "}",
                                         ">",  "<",  "=",  ".",  ":",  "|",  ",", ";"};

bool is_name_byte(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
         static_cast<unsigned char>(c) >= 0x80;
}
bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

// Every line ends with \n; one empty line at the end goes.
std::string normalized(std::string_view source) {
  std::string out;
  out.reserve(source.size());
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] == '\r') {
      out += '\n';
      if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
    } else {
      out += source[i];
    }
  }
  if (!out.empty() && last_of(out) == '\n') out.pop_back();
  return out;
}

class Lexer {
 public:
  explicit Lexer(std::string_view source) : source_(normalized(source)) {}

  std::vector<Token> run() {
    try {
      while (at_ < source_.size()) read_data();
    } catch (Fault& found) {
      if (found.line == 0) found.line = line_;
      throw;
    }
    tokens_.push_back({TokenKind::end, line_});
    return std::move(tokens_);
  }

 private:
  std::string_view rest() const { return std::string_view(source_).substr(at_); }
  bool looks_at(std::string_view text) const { return rest().starts_with(text); }
  char here() const { return at_ < source_.size() ? source_[at_] : '\0'; }

  void advance(size_t bytes) {
    line_ +=
        static_cast<int>(std::count(source_.begin() + at_, source_.begin() + at_ + bytes, '\n'));
    at_ += bytes;
    line_starts_ = bytes > 0 && source_[at_ - 1] == '\n';
  }
  void skip_space() { advance(rest().size() - text::left_stripped(rest()).size()); }

  // Text up to the next tag, then the tag.
  void read_data() {
    const size_t begin = at_;
    size_t tag = begin;
    while (true) {
      tag = source_.find('{', tag);
      if (tag == std::string::npos || tag + 1 == source_.size()) {
        emit_data(std::string_view(source_).substr(begin));
        return advance(source_.size() - begin);
      }
      const char c = source_[tag + 1];
      if (c == '%' || c == '#' || c == '{') break;
      ++tag;
    }
    const char kind = source_[tag + 1];
    const char sign = tag + 2 < source_.size() ? source_[tag + 2] : '\0';
    std::string_view data = std::string_view(source_).substr(begin, tag - begin);
    emit_data(without_margin(data, sign, kind != '{'));
    advance(tag + 2 - begin);
    if (sign == '-' || sign == '+') advance(1);
    if (kind == '#') return read_comment();
    if (kind == '{') return read_tag(TokenKind::variable_begin, TokenKind::variable_end);
    if (!read_raw()) read_tag(TokenKind::block_begin, TokenKind::block_end);
  }

  // The part of the text before a tag that the tag leaves.
  std::string_view without_margin(std::string_view data, char sign, bool strips_margin) const {
    if (sign == '-') return text::right_stripped(data);
    if (sign == '+' || !strips_margin) return data;
    const size_t newline = data.rfind('\n');
    const size_t margin = newline == data.npos ? 0 : newline + 1;
    if (margin == 0 && !line_starts_) return data;
    return text::is_blank(data.substr(margin)) ? data.substr(0, margin) : data;
  }

  void emit_data(std::string_view data) {
    if (!data.empty()) tokens_.push_back({TokenKind::data, line_, std::string(data)});
  }

  // The end of a tag with its signs, where one stands here; takes it and the space it eats.
  bool take_end(std::string_view end, bool trims_newline) {
    const bool minus = here() == '-', plus = here() == '+' && trims_newline;
    if (!rest().substr(minus || plus ? 1 : 0).starts_with(end)) return false;
    advance(end.size() + (minus || plus ? 1 : 0));
    if (minus)
      skip_space();
    else if (!plus && trims_newline && here() == '\n')
      advance(1);
    return true;
  }

  void read_comment() {
    const int line = line_;
    while (at_ < source_.size()) {
      if (take_end("#}", true)) return;
      advance(1);
    }
    line_ = line;
    fault("a comment is not closed");
  }

  // {% raw %} and what it protects. False when the tag is another.
  bool read_raw() {
    std::string_view after = text::left_stripped(rest());
    if (!after.starts_with("raw")) return false;
    after = text::left_stripped(after.substr(3));
    const bool minus = after.starts_with("-%}");
    if (!minus && !after.starts_with("%}")) return false;
    advance(rest().size() - after.size() + (minus ? 3 : 2));
    if (minus) skip_space();
    const int line = line_;
    for (size_t tag = source_.find("{%", at_); tag != std::string::npos;
         tag = source_.find("{%", tag + 2)) {
      std::string_view inside = std::string_view(source_).substr(tag + 2);
      const char sign = inside.empty() ? '\0' : inside[0];
      if (sign == '-' || sign == '+') inside.remove_prefix(1);
      inside = text::left_stripped(inside);
      if (!inside.starts_with("endraw")) continue;
      inside = text::left_stripped(inside.substr(6));
      const size_t skip = inside.starts_with('-') || inside.starts_with('+') ? 1 : 0;
      if (!inside.substr(skip).starts_with("%}")) continue;
      const std::string_view data = std::string_view(source_).substr(at_, tag - at_);
      emit_data(without_margin(data, sign, true));
      advance(rest().size() - inside.size());
      take_end("%}", true);
      return true;
    }
    line_ = line;
    fault("a raw block is not closed");
  }

  void read_tag(TokenKind begin, TokenKind end) {
    const std::string_view closing = end == TokenKind::block_end ? "%}" : "}}";
    tokens_.push_back({begin, line_});
    std::string open;  // brackets
    while (true) {
      if (open.empty()) {
        const int line = line_;
        if (take_end(closing, end == TokenKind::block_end)) {
          tokens_.push_back({end, line});
          return;
        }
      }
      if (at_ == source_.size()) fault("a tag is not closed");
      if (text::left_stripped(rest()).size() < rest().size())
        skip_space();
      else
        read_token(open);
    }
  }

  void read_token(std::string& open) {
    const char c = here();
    if (c == '\'' || c == '"') return read_string();
    if (is_digit(c)) return read_number();
    if (is_name_byte(c)) {
      size_t size = 0;
      while (size < rest().size() && is_name_byte(rest()[size])) ++size;
      tokens_.push_back({TokenKind::name, line_, std::string(rest().substr(0, size))});
      return advance(size);
    }
    for (const std::string_view symbol : kSymbols) {
      if (!looks_at(symbol)) continue;
      balance(open, symbol[0]);
      tokens_.push_back({TokenKind::symbol, line_, std::string(symbol)});
      return advance(symbol.size());
    }
    fault(fmt::format("found the character {} where an expression should be",
                      json::quoted(rest().substr(0, utf8::length(c)))));
  }

  static void balance(std::string& open, char c) {
    if (c == '(') open += ')';
    if (c == '[') open += ']';
    if (c == '{') open += '}';
    if (c != ')' && c != ']' && c != '}') return;
    if (open.empty()) fault(fmt::format("found a {} that nothing opens", c));
    if (last_of(open) != c) fault(fmt::format("found {} where {} was expected", c, last_of(open)));
    open.pop_back();
  }

  // Digits with single underscores between them; appends the digits.
  static bool take_digits(std::string_view s, size_t& i, std::string& out) {
    if (i >= s.size() || !is_digit(s[i])) return false;
    while (i < s.size() &&
           (is_digit(s[i]) || (s[i] == '_' && i + 1 < s.size() && is_digit(s[i + 1])))) {
      if (s[i] != '_') out += s[i];
      ++i;
    }
    return true;
  }

  void read_number() {
    const std::string_view s = rest();
    const char kind = s.size() > 2 && s[0] == '0' ? static_cast<char>(s[1] | 0x20) : '\0';
    if (kind == 'x' || kind == 'o' || kind == 'b') fault("numbers are written in decimals");
    size_t i = 0;
    std::string digits;
    take_digits(s, i, digits);
    bool is_float = false;
    if (i < s.size() && s[i] == '.' && i + 1 < s.size() && is_digit(s[i + 1])) {
      is_float = true;
      digits += '.';
      take_digits(s, ++i, digits);
    }
    if (i < s.size() && (s[i] | 0x20) == 'e') {
      size_t end = i + 1;
      std::string exponent = "e";
      if (end < s.size() && (s[end] == '+' || s[end] == '-')) exponent += s[end++];
      if (take_digits(s, end, exponent)) {
        is_float = true;
        digits += exponent;
        i = end;
      }
    }
    Token token{TokenKind::number, line_, std::string(s.substr(0, i))};
    int64_t integer = 0;
    double real = 0;
    const char* last = digits.data() + digits.size();
    const auto result = is_float ? std::from_chars(digits.data(), last, real)
                                 : std::from_chars(digits.data(), last, integer);
    if (result.ec != std::errc()) fault("the number " + digits + " is too large");
    token.number = is_float ? Value(real) : Value(integer);
    tokens_.push_back(std::move(token));
    advance(i);
  }

  void read_string() {
    const char quote = here();
    const std::string_view s = rest();
    std::string value;
    size_t i = 1;
    while (i < s.size() && s[i] != quote) {
      if (s[i] == '\\' && i + 1 < s.size())
        read_escape(s, i, value);
      else
        value += s[i++];
    }
    if (i >= s.size()) fault("a string is not closed");
    tokens_.push_back({TokenKind::string, line_, std::move(value)});
    advance(i + 1);
  }

  // Python's escapes. `i` stands on the backslash.
  static void read_escape(std::string_view s, size_t& i, std::string& out) {
    static constexpr std::string_view kPlain = "\\'\"abfnrtv", kMeans = "\\'\"\a\b\f\n\r\t\v";
    const char c = s[i + 1];
    if (const size_t found = kPlain.find(c); found != kPlain.npos) {
      out += kMeans[found];
      i += 2;
    } else if (c == '\n') {
      i += 2;
    } else if (c == 'x' || c == 'u' || c == 'U') {
      const size_t size = c == 'x' ? 2 : c == 'u' ? 4 : 8;
      uint32_t code = 0;
      const std::string_view hex = s.substr(std::min(i + 2, s.size()), size);
      const auto end = std::from_chars(hex.data(), hex.data() + hex.size(), code, 16).ptr;
      if (hex.size() < size || end != hex.data() + size || code > 0x10ffff ||
          (code >= 0xd800 && code < 0xe000))
        fault("a string has an escape that is no character");
      utf8::append(out, code);
      i += 2 + size;
    } else if (c >= '0' && c <= '7') {
      uint32_t code = 0;
      size_t end = i + 1;
      while (end < s.size() && end < i + 4 && s[end] >= '0' && s[end] <= '7')
        code = code * 8 + (s[end++] - '0');
      utf8::append(out, code);
      i = end;
    } else {
      out += s[i++];  // an unknown escape stands for itself
    }
  }

  const std::string source_;
  size_t at_ = 0;
  int line_ = 1;
  bool line_starts_ = true;  // the last token ended with a newline
  std::vector<Token> tokens_;
};

}  // namespace

std::vector<Token> tokenize(std::string_view source) {
  return Lexer(source).run();
}

}  // namespace invar::jinja
