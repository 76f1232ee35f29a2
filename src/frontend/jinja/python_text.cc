#include "frontend/jinja/python_text.h"

#include <fmt/format.h>
#include <string.h>
#include <unicode/locid.h>
#include <unicode/uchar.h>
#include <unicode/unistr.h>

#include <algorithm>
#include <span>

#include "tokenizer/utf8.h"

namespace invar::jinja::text {

bool is_space(char32_t c) {
  if (c < 0x80) return c == ' ' || (c >= 9 && c <= 13) || (c >= 0x1c && c <= 0x1f);
  return c == 0x85 || c == 0xa0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200a) || c == 0x2028 ||
         c == 0x2029 || c == 0x202f || c == 0x205f || c == 0x3000;
}

bool is_printable(char32_t c) {
  if (c == ' ') return true;
  switch (u_charType(static_cast<UChar32>(c))) {
    case U_UNASSIGNED:
    case U_CONTROL_CHAR:
    case U_FORMAT_CHAR:
    case U_SURROGATE:
    case U_PRIVATE_USE_CHAR:
    case U_LINE_SEPARATOR:
    case U_PARAGRAPH_SEPARATOR:
    case U_SPACE_SEPARATOR:
      return false;
    default:
      return true;
  }
}

int64_t length(std::string_view s) {
  return std::count_if(s.begin(), s.end(), [](char c) { return !utf8::is_continuation(c); });
}

std::optional<std::string_view> at(std::string_view s, int64_t index) {
  if (index < 0) index += length(s);
  if (index < 0) return std::nullopt;
  for (size_t i = 0; i < s.size(); i += utf8::length(s[i]))
    if (index-- == 0) return s.substr(i, utf8::length(s[i]));
  return std::nullopt;
}

std::vector<size_t> starts(std::string_view s) {
  std::vector<size_t> starts;
  for (size_t i = 0; i < s.size(); i += utf8::length(s[i])) starts.push_back(i);
  starts.push_back(s.size());
  return starts;
}

namespace {

bool is_stripped(char32_t c, const std::string* characters) {
  if (!characters) return is_space(c);
  for (size_t i = 0; i < characters->size(); i += utf8::length((*characters)[i]))
    if (utf8::decode(*characters, i) == c) return true;
  return false;
}

size_t start_of_last(std::string_view s) {
  size_t i = s.size() - 1;
  while (i > 0 && utf8::is_continuation(s[i])) --i;
  return i;
}

}  // namespace

std::string_view left_stripped(std::string_view s, const std::string* characters) {
  size_t i = 0;
  while (i < s.size() && is_stripped(utf8::decode(s, i), characters)) i += utf8::length(s[i]);
  return s.substr(i);
}

std::string_view right_stripped(std::string_view s, const std::string* characters) {
  while (!s.empty() && is_stripped(utf8::decode(s, start_of_last(s)), characters))
    s = s.substr(0, start_of_last(s));
  return s;
}

std::string_view stripped(std::string_view s, const std::string* characters) {
  return right_stripped(left_stripped(s, characters), characters);
}

namespace {

Lines split_at_space(std::string_view s, int64_t limit) {
  Lines parts;
  for (s = left_stripped(s); !s.empty(); s = left_stripped(s)) {
    if (limit >= 0 && std::ssize(parts) == limit) {
      parts.push_back(right_stripped(s));
      break;
    }
    size_t end = 0;
    while (end < s.size() && !is_space(utf8::decode(s, end))) end += utf8::length(s[end]);
    parts.push_back(s.substr(0, end));
    s = s.substr(end);
  }
  return parts;
}

Lines split_at_space_from_right(std::string_view s, int64_t limit) {
  Lines parts;
  for (s = right_stripped(s); !s.empty(); s = right_stripped(s)) {
    if (limit >= 0 && std::ssize(parts) == limit) {
      parts.push_back(left_stripped(s));
      break;
    }
    size_t begin = s.size();
    while (begin > 0 && !is_space(utf8::decode(s, start_of_last(s.substr(0, begin)))))
      begin = start_of_last(s.substr(0, begin));
    parts.push_back(s.substr(begin));
    s = s.substr(0, begin);
  }
  std::reverse(parts.begin(), parts.end());
  return parts;
}

}  // namespace

Lines split(std::string_view s, const std::string* separator, int64_t limit) {
  if (!separator) return split_at_space(s, limit);
  if (separator->empty()) fault("a text cannot be split at an empty separator");
  Lines parts;
  size_t begin = 0;
  while (limit < 0 || std::ssize(parts) < limit) {
    const size_t end = find(s, *separator, begin);
    if (end == std::string_view::npos) break;
    parts.push_back(s.substr(begin, end - begin));
    begin = end + separator->size();
  }
  parts.push_back(s.substr(begin));
  return parts;
}

Lines split_from_right(std::string_view s, const std::string* separator, int64_t limit) {
  if (!separator) return split_at_space_from_right(s, limit);
  if (separator->empty()) fault("a text cannot be split at an empty separator");
  Lines parts;
  while (limit < 0 || std::ssize(parts) < limit) {
    const size_t at = s.rfind(*separator);
    if (at == std::string_view::npos) break;
    parts.push_back(s.substr(at + separator->size()));
    s = s.substr(0, at);
  }
  parts.push_back(s);
  std::reverse(parts.begin(), parts.end());
  return parts;
}

Lines split_lines(std::string_view s, bool keep_ends) {
  const auto ends_line = [](char32_t c) {
    return (c >= 10 && c <= 13) || (c >= 0x1c && c <= 0x1e) || c == 0x85 || c == 0x2028 ||
           c == 0x2029;
  };
  Lines lines;
  size_t begin = 0;
  for (size_t i = 0; i < s.size();) {
    const char32_t c = utf8::decode(s, i);
    size_t end = i + utf8::length(s[i]);
    if (ends_line(c)) {
      if (c == '\r' && end < s.size() && s[end] == '\n') ++end;
      lines.push_back(s.substr(begin, (keep_ends ? end : i) - begin));
      begin = end;
    }
    i = end;
  }
  if (begin < s.size()) lines.push_back(s.substr(begin));
  return lines;
}

size_t find(std::string_view s, std::string_view part, size_t from) {
  if (from > s.size()) return std::string_view::npos;
  if (part.empty()) return from;
  const void* found = ::memmem(s.data() + from, s.size() - from, part.data(), part.size());
  return found ? static_cast<const char*>(found) - s.data() : std::string_view::npos;
}

int64_t count(std::string_view s, std::string_view part, int64_t most) {
  if (part.empty()) return length(s) + 1;
  int64_t count = 0;
  for (size_t i = find(s, part); i != std::string_view::npos && count < most;
       i = find(s, part, i + part.size()))
    ++count;
  return count;
}

std::string replaced(std::string_view s, std::string_view old, std::string_view with,
                     int64_t limit) {
  std::string out;
  size_t from = 0;
  if (old.empty()) {  // before every code point and at the end
    for (; from < s.size() && limit != 0; from += utf8::length(s[from])) {
      if (limit > 0) --limit;
      out += with;
      out += s.substr(from, utf8::length(s[from]));
    }
    if (from == s.size() && limit != 0) out += with;
    return out += s.substr(from);
  }
  for (; limit != 0; --limit) {
    const size_t at = find(s, old, from);
    if (at == std::string_view::npos) break;
    out += s.substr(from, at - from);
    out += with;
    from = at + old.size();
  }
  return out += s.substr(from);
}

namespace {

icu::UnicodeString wide(std::string_view s) {
  return icu::UnicodeString::fromUTF8(icu::StringPiece(s.data(), static_cast<int32_t>(s.size())));
}
std::string narrow(const icu::UnicodeString& s) {
  std::string out;
  return s.toUTF8String(out);
}
// The first code point in title case: mostly its capital, for a few one of two letters.
std::string title_case(std::string_view character) {
  const char32_t c = utf8::decode(character, 0);
  const char32_t title = static_cast<char32_t>(u_totitle(static_cast<UChar32>(c)));
  if (title == c && length(upper(character)) > 1)  // such as a sharp s
    return narrow(wide(character).toTitle(nullptr, icu::Locale::getRoot()));
  std::string out;
  utf8::append(out, title);
  return out;
}
bool is_cased(char32_t c) {
  return u_hasBinaryProperty(static_cast<UChar32>(c), UCHAR_CASED);
}

template <typename F>
bool all_of(std::string_view s, F holds) {
  for (size_t i = 0; i < s.size(); i += utf8::length(s[i]))
    if (!holds(static_cast<UChar32>(utf8::decode(s, i)))) return false;
  return !s.empty();
}

}  // namespace

std::string upper(std::string_view s) {
  return narrow(wide(s).toUpper(icu::Locale::getRoot()));
}
std::string lower(std::string_view s) {
  return narrow(wide(s).toLower(icu::Locale::getRoot()));
}

std::string capitalized(std::string_view s) {
  if (s.empty()) return "";
  const size_t first = utf8::length(s[0]);
  return title_case(s.substr(0, first)) + lower(s.substr(first));
}

std::string titled(std::string_view s) {
  std::string out;
  bool in_word = false;
  for (size_t i = 0; i < s.size(); i += utf8::length(s[i])) {
    const std::string_view character = s.substr(i, utf8::length(s[i]));
    out += in_word ? lower(character) : title_case(character);
    in_word = is_cased(utf8::decode(s, i));
  }
  return out;
}

std::string titled_words(std::string_view s) {
  // Words begin after a dash, a bracket that opens, or white space.
  std::string out;
  bool begins = true;
  size_t word = 0;
  const auto flush = [&](size_t end) {
    if (end > word) out += lower(s.substr(word, end - word));
    word = end;
  };
  for (size_t i = 0; i < s.size(); i += utf8::length(s[i])) {
    const char32_t c = utf8::decode(s, i);
    const bool divides = is_space(c) || c == '-' || c == '(' || c == '{' || c == '[' || c == '<';
    if (begins || divides) {
      flush(i);
      out += upper(s.substr(i, utf8::length(s[i])));
      word = i + utf8::length(s[i]);
    }
    begins = divides;
  }
  flush(s.size());
  return out;
}

bool is_upper(std::string_view s) {
  bool any = false;
  for (size_t i = 0; i < s.size(); i += utf8::length(s[i])) {
    const UChar32 c = static_cast<UChar32>(utf8::decode(s, i));
    if (u_isULowercase(c) || u_istitle(c)) return false;
    any = any || u_isUUppercase(c);
  }
  return any;
}

bool is_lower(std::string_view s) {
  bool any = false;
  for (size_t i = 0; i < s.size(); i += utf8::length(s[i])) {
    const UChar32 c = static_cast<UChar32>(utf8::decode(s, i));
    if (u_isUUppercase(c) || u_istitle(c)) return false;
    any = any || u_isULowercase(c);
  }
  return any;
}

bool is_digits(std::string_view s) {
  return all_of(s, [](UChar32 c) { return u_isdigit(c); });
}
bool is_alphabetic(std::string_view s) {
  return all_of(s, [](UChar32 c) { return u_isalpha(c); });
}
bool is_alphanumeric(std::string_view s) {
  return all_of(s, [](UChar32 c) { return u_isalnum(c); });
}
bool is_blank(std::string_view s) {
  return all_of(s, [](UChar32 c) { return is_space(static_cast<char32_t>(c)); });
}

}  // namespace invar::jinja::text
