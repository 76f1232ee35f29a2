#include "base/json.h"

#include <simdjson.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "base/error.h"

namespace invar::json {

namespace {

// Up to here every double with no fraction is one integer alone.
constexpr double kExactIntegers = 1ll << 53;

template <typename T, typename Data>
const T& expect(const Data& data, const char* expected, const char* found) {
  const T* value = std::get_if<T>(&data);
  if (!value) fail("expected {}, found {}", expected, found);
  return *value;
}

}  // namespace

Value::Value(uint64_t value) {
  if (value > INT64_MAX)
    data_ = value;
  else
    data_ = static_cast<int64_t>(value);
}

bool Value::as_bool() const {
  return expect<bool>(data_, "a boolean", type_name());
}
std::optional<int64_t> Value::to_integer() const {
  if (const int64_t* integer = std::get_if<int64_t>(&data_)) return *integer;
  const double* number = std::get_if<double>(&data_);
  if (!number || std::trunc(*number) != *number || std::abs(*number) > kExactIntegers)
    return std::nullopt;
  return static_cast<int64_t>(*number);
}
std::optional<uint64_t> Value::to_unsigned() const {
  if (const uint64_t* integer = std::get_if<uint64_t>(&data_)) return *integer;
  const auto integer = to_integer();
  if (!integer || *integer < 0) return std::nullopt;
  return static_cast<uint64_t>(*integer);
}
int64_t Value::as_integer() const {
  if (const auto integer = to_integer()) return *integer;
  if (is_number()) fail("expected an integer, found {}", excerpt(*this));
  return expect<int64_t>(data_, "an integer", type_name());
}
double Value::as_number() const {
  if (const int64_t* integer = std::get_if<int64_t>(&data_)) return static_cast<double>(*integer);
  if (const uint64_t* integer = std::get_if<uint64_t>(&data_)) return static_cast<double>(*integer);
  return expect<double>(data_, "a number", type_name());
}
const std::string& Value::as_string() const {
  return expect<std::string>(data_, "a string", type_name());
}
const Array& Value::as_array() const {
  return expect<Array>(data_, "an array", type_name());
}
const Object& Value::as_object() const {
  return expect<Object>(data_, "an object", type_name());
}
Array& Value::as_array() {
  return const_cast<Array&>(std::as_const(*this).as_array());
}
Object& Value::as_object() {
  return const_cast<Object&>(std::as_const(*this).as_object());
}

const Value* Value::find(std::string_view key) const {
  const Object* object = std::get_if<Object>(&data_);
  if (!object) return nullptr;
  for (const Member& member : *object)
    if (member.first == key) return &member.second;
  return nullptr;
}

void Value::set(std::string_view key, Value value) {
  if (is_null()) data_ = Object{};
  Object& object = as_object();
  for (Member& member : object)
    if (member.first == key) {
      member.second = std::move(value);
      return;
    }
  object.emplace_back(std::string(key), std::move(value));
}

const char* Value::type_name() const {
  static constexpr const char* kNames[] = {"null",     "a boolean", "an integer", "an integer",
                                           "a number", "a string",  "an array",   "an object"};
  return kNames[data_.index()];
}

void append_quoted(std::string& out, std::string_view text) {
  static constexpr char kHex[] = "0123456789abcdef";
  out += '"';
  for (const char c : text) {
    switch (c) {
      case '"':
        out += "\\\"";
        break;
      case '\\':
        out += "\\\\";
        break;
      case '\n':
        out += "\\n";
        break;
      case '\r':
        out += "\\r";
        break;
      case '\t':
        out += "\\t";
        break;
      case '\b':
        out += "\\b";
        break;
      case '\f':
        out += "\\f";
        break;
      default:
        if (static_cast<unsigned char>(c) < 0x20) {
          out += "\\u00";
          out += kHex[c >> 4];
          out += kHex[c & 15];
        } else {
          out += c;
        }
    }
  }
  out += '"';
}

namespace {

constexpr size_t kExcerptBytes = 160;

// The first bytes of a UTF-8 text, up to a whole character.
std::string_view beginning(std::string_view text) {
  size_t end = std::min(text.size(), kExcerptBytes);
  while (end > 0 && end < text.size() && (text[end] & 0xc0) == 0x80) --end;
  return text.substr(0, end);
}

// The same for people: bytes that are no UTF-8 are replaced.
std::string readable_beginning(std::string_view text) {
  const std::string_view shown = beginning(text);
  if (simdjson::validate_utf8(shown.data(), shown.size())) return std::string(shown);
  std::string out;
  for (const char c : shown) out += c & 0x80 ? "\xef\xbf\xbd" : std::string(1, c);
  return out;
}

}  // namespace

double shortest(float value) {
  char buffer[40];
  const char* end = std::to_chars(buffer, buffer + sizeof buffer, value).ptr;
  double decimal = value;
  std::from_chars(buffer, end, decimal);
  return decimal;
}

std::string quoted(std::string_view text) {
  std::string out;
  append_quoted(out, readable_beginning(text));
  return beginning(text).size() < text.size() ? out + "..." : out;
}

namespace {

void append_double(std::string& out, double value) {
  if (!std::isfinite(value)) {  // JSON has no such numbers
    out += "null";
    return;
  }
  char buffer[40];
  const char* end = std::to_chars(buffer, buffer + sizeof buffer, value).ptr;
  const std::string_view text(buffer, end);
  out += text;
  if (text.find_first_of(".e") == std::string_view::npos) out += ".0";
}

void append_value(std::string& out, const Value& value, int indent, int level);

void append_break(std::string& out, int indent, int level) {
  if (indent <= 0) return;
  out += '\n';
  out.append(static_cast<size_t>(indent) * level, ' ');
}

void append_array(std::string& out, const Array& array, int indent, int level) {
  out += '[';
  for (size_t i = 0; i < array.size(); ++i) {
    if (i) out += indent > 0 ? "," : ", ";
    append_break(out, indent, level + 1);
    append_value(out, array[i], indent, level + 1);
  }
  if (!array.empty()) append_break(out, indent, level);
  out += ']';
}

void append_object(std::string& out, const Object& object, int indent, int level) {
  out += '{';
  for (size_t i = 0; i < object.size(); ++i) {
    if (i) out += indent > 0 ? "," : ", ";
    append_break(out, indent, level + 1);
    append_quoted(out, object[i].first);
    out += ": ";
    append_value(out, object[i].second, indent, level + 1);
  }
  if (!object.empty()) append_break(out, indent, level);
  out += '}';
}

void append_value(std::string& out, const Value& value, int indent, int level) {
  if (value.is_null()) {
    out += "null";
  } else if (value.is_bool()) {
    out += value.as_bool() ? "true" : "false";
  } else if (value.is_integer()) {
    const auto integer = value.to_integer();
    out += integer ? std::to_string(*integer) : std::to_string(*value.to_unsigned());
  } else if (value.is_number()) {
    append_double(out, value.as_number());
  } else if (value.is_string()) {
    append_quoted(out, value.as_string());
  } else if (value.is_array()) {
    append_array(out, value.as_array(), indent, level);
  } else {
    append_object(out, value.as_object(), indent, level);
  }
}

}  // namespace

std::string dump(const Value& value, int indent) {
  std::string out;
  append_value(out, value, indent, 0);
  return out;
}

void append(std::string& out, const Value& value) {
  append_value(out, value, 0, 0);
}

std::string excerpt(const Value& value) {
  const std::string text = dump(value), shown = readable_beginning(text);
  return beginning(text).size() < text.size() ? shown + "..." : shown;
}

}  // namespace invar::json
