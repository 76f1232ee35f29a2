// The methods of Python's str on UTF-8 text: counted, cut and searched by code points.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "frontend/jinja/value.h"

namespace invar::jinja {

class Budget;

namespace text {

using Lines = std::vector<std::string_view>;

bool is_space(char32_t c);      // str.isspace
bool is_printable(char32_t c);  // str.isprintable

int64_t length(std::string_view s);
// The code points [index, index + 1), index counted from the end when negative; nothing outside.
std::optional<std::string_view> at(std::string_view s, int64_t index);
// Where each code point begins, and the end.
std::vector<size_t> starts(std::string_view s);

std::string_view left_stripped(std::string_view s, const std::string* characters = nullptr);
std::string_view right_stripped(std::string_view s, const std::string* characters = nullptr);
std::string_view stripped(std::string_view s, const std::string* characters = nullptr);

// Runs of white space when there is no separator. `limit` splits at most; negative: all.
Lines split(std::string_view s, const std::string* separator, int64_t limit);
Lines split_from_right(std::string_view s, const std::string* separator, int64_t limit);
Lines split_lines(std::string_view s, bool keep_ends);
// The byte at which `part` begins, from byte `from` on, or npos. Linear in the worst case too.
size_t find(std::string_view s, std::string_view part, size_t from = 0);
// `most`: it counts no further.
int64_t count(std::string_view s, std::string_view part, int64_t most = INT64_MAX);
std::string replaced(std::string_view s, std::string_view old, std::string_view with,
                     int64_t limit);

std::string upper(std::string_view s);
std::string lower(std::string_view s);
std::string capitalized(std::string_view s);
std::string titled(std::string_view s);        // str.title
std::string titled_words(std::string_view s);  // Jinja's filter of that name
bool is_upper(std::string_view s);
bool is_lower(std::string_view s);
bool is_digits(std::string_view s);
bool is_alphabetic(std::string_view s);
bool is_alphanumeric(std::string_view s);
bool is_blank(std::string_view s);

}  // namespace text

// Bytes of a printed value, or of what a format makes; a Fault where there were more.
constexpr size_t kMostPrinted = size_t{32} << 20;
// That Fault, before a text is whole: values share their parts, so that few steps make much to
// print.
void expect_room(const std::string& out, size_t more = 0);

// Python's str() and repr(). Undefined is no text. Adds to `values` how many values were printed.
std::string to_text(const Value& value, int64_t* values = nullptr);
std::string to_repr(const Value& value, int64_t* values = nullptr);
// Python's repr of a float: the shortest digits that read back as the same number.
std::string float_repr(double value);

struct JsonStyle {
  bool ensure_ascii = false;
  std::optional<std::string> indent;  // of one level
  std::string item_separator = ", ", key_separator = ": ";
  bool sort_keys = false;
};
// Python's json.dumps. Adds to `values` how many values were printed.
std::string to_json(const Value& value, const JsonStyle& style, int64_t* values = nullptr);

// Python's `format % values`; `values` is a tuple, a dict or one value. A step for each value
// printed.
std::string percent_formatted(Budget& budget, std::string_view format, const Value& values);
// Python's format.format(...), for fields without conversions and format specifications.
std::string brace_formatted(Budget& budget, std::string_view format, const Arguments& arguments);

}  // namespace invar::jinja
