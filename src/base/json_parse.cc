// Texts of JSON as values.
#include <simdjson.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>

#include "base/error.h"
#include "base/input_file.h"
#include "base/json.h"

namespace invar::json {

namespace {

using simdjson::dom::element;
using simdjson::dom::element_type;

class Converter {
 public:
  Converter(std::string_view where, const ParseLimits& limits) : where_(where), limits_(limits) {}

  Value convert(const element& source, int depth) {
    if (++values_ > limits_.max_values)
      fail("{}: expected at most {} values of JSON, found more", where_, limits_.max_values);
    if (depth > limits_.max_depth)
      fail("{}: JSON is nested deeper than {} levels", where_, limits_.max_depth);
    switch (source.type()) {
      case element_type::ARRAY:
        return convert_array(source.get_array().value_unsafe(), depth);
      case element_type::OBJECT:
        return convert_object(source.get_object().value_unsafe(), depth);
      case element_type::INT64:
        return Value(source.get_int64().value_unsafe());
      case element_type::UINT64:
        return Value(source.get_uint64().value_unsafe());
      case element_type::DOUBLE:
        return Value(source.get_double().value_unsafe());
      case element_type::STRING:
        return Value(source.get_string().value_unsafe());
      case element_type::BOOL:
        return Value(source.get_bool().value_unsafe());
      case element_type::NULL_VALUE:
        break;
    }
    return Value();
  }

 private:
  Value convert_array(const simdjson::dom::array& source, int depth) {
    Array array;
    array.reserve(source.size());
    for (const element& item : source) array.push_back(convert(item, depth + 1));
    return Value(std::move(array));
  }

  Value convert_object(const simdjson::dom::object& source, int depth) {
    expect_no_twins(source);
    Object object;
    object.reserve(source.size());
    for (const auto& field : source)
      object.emplace_back(std::string(field.key), convert(field.value, depth + 1));
    return Value(std::move(object));
  }

  void expect_no_twins(const simdjson::dom::object& source) const {
    std::vector<std::string_view> keys;
    keys.reserve(source.size());
    for (const auto& field : source) keys.push_back(field.key);
    std::sort(keys.begin(), keys.end());
    const auto twin = std::adjacent_find(keys.begin(), keys.end());
    if (twin != keys.end())
      fail("{}: the key \"{}\" stands twice in one JSON object", where_, *twin);
  }

  std::string_view where_;
  const ParseLimits& limits_;
  size_t values_ = 0;
};

// simdjson refuses integers beyond 64 bits, which JSON allows and Python writes. This is a text
// that it takes: the same with ".0" behind them, so that they are doubles.
struct NumberScan {
  std::string text;
  bool has_large_integers = false;
  std::string_view beyond_double;  // the first number that no double is near

  explicit NumberScan(std::string_view source) {
    for (size_t at = 0; at < source.size();) {
      const size_t size = size_of_token(source.substr(at));
      add(source.substr(at, size));
      at += size;
    }
  }

 private:
  // A string, a number, or one other byte.
  static size_t size_of_token(std::string_view rest) {
    if (rest[0] == '"') {
      size_t end = 1;
      while (end < rest.size() && rest[end] != '"') end += rest[end] == '\\' ? 2 : 1;
      return std::min(end + 1, rest.size());
    }
    if (rest[0] != '-' && (rest[0] < '0' || rest[0] > '9')) return 1;
    return std::min(rest.find_first_not_of("0123456789+-.eE", 1), rest.size());
  }

  template <typename Integer>
  static bool fits(std::string_view token) {
    Integer integer{};
    const char* end = token.data() + token.size();
    return std::from_chars(token.data(), end, integer).ec == std::errc();
  }

  void add(std::string_view token) {
    text += token;
    if (token[0] != '-' && (token[0] < '0' || token[0] > '9')) return;
    if (beyond_double.empty() && std::isinf(std::strtod(std::string(token).c_str(), nullptr)))
      beyond_double = token;
    if (token.find_first_of(".eE") != token.npos || token == "-") return;
    if (!fits<int64_t>(token) && !fits<uint64_t>(token)) {
      text += ".0";
      has_large_integers = true;
    }
  }
};

// The document alone stays: a copy of the text and its marks, which the parser takes, go before a
// Value is made.
element parse_into(simdjson::dom::document& document, std::string_view text,
                   std::string_view where) {
  simdjson::dom::parser parser;
  element root;
  const auto read = [&](std::string_view of) {
    return parser.parse_into_document(document, of.data(), of.size()).get(root);
  };
  auto error = read(text);
  if (error) {
    const NumberScan numbers(text);
    if (!numbers.beyond_double.empty())
      fail("{}: expected numbers up to 1.8e308, found {}", where, quoted(numbers.beyond_double));
    if (numbers.has_large_integers) error = read(numbers.text);
  }
  if (error) fail("{}: not valid JSON: {}", where, simdjson::error_message(error));
  return root;
}

}  // namespace

Value parse(std::string_view text, std::string_view where, const ParseLimits& limits) {
  if (text.size() > limits.max_bytes)
    fail("{}: {} bytes of JSON where at most {} are accepted", where, text.size(),
         limits.max_bytes);
  simdjson::dom::document document;
  const element root = parse_into(document, text, where);
  return Converter(where, limits).convert(root, 0);
}

Value parse_file(const std::string& path, const ParseLimits& limits) {
  return parse(read_whole_file(path, static_cast<int64_t>(limits.max_bytes)), path, limits);
}

}  // namespace invar::json
