#include "base/json.h"

#include <simdjson.h>

#include <charconv>
#include <cmath>
#include <unordered_set>

#include "base/error.h"
#include "base/input_file.h"

namespace invar::json {

namespace {

template <typename T>
const T& expect(
    const std::variant<std::monostate, bool, int64_t, double, std::string, Array, Object>& data,
    const char* expected, const char* found) {
  const T* value = std::get_if<T>(&data);
  if (!value) fail("expected {}, found {}", expected, found);
  return *value;
}

}  // namespace

bool Value::as_bool() const {
  return expect<bool>(data_, "a boolean", type_name());
}
int64_t Value::as_integer() const {
  return expect<int64_t>(data_, "an integer", type_name());
}
double Value::as_number() const {
  if (const int64_t* integer = std::get_if<int64_t>(&data_)) return static_cast<double>(*integer);
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
  static constexpr const char* kNames[] = {"null",     "a boolean", "an integer", "a number",
                                           "a string", "an array",  "an object"};
  return kNames[data_.index()];
}

namespace {

using simdjson::dom::element;
using simdjson::dom::element_type;

class Converter {
 public:
  Converter(std::string_view where, const ParseLimits& limits) : where_(where), limits_(limits) {}

  Value convert(const element& source, int depth) const {
    if (depth > limits_.max_depth)
      fail("{}: JSON is nested deeper than {} levels", where_, limits_.max_depth);
    switch (source.type()) {
      case element_type::ARRAY:
        return convert_array(source.get_array().value_unsafe(), depth);
      case element_type::OBJECT:
        return convert_object(source.get_object().value_unsafe(), depth);
      case element_type::INT64:
        return Value(source.get_int64().value_unsafe());
      case element_type::UINT64:  // above 2^63: keep the magnitude
        return Value(static_cast<double>(source.get_uint64().value_unsafe()));
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
  Value convert_array(const simdjson::dom::array& source, int depth) const {
    Array array;
    array.reserve(source.size());
    for (const element& item : source) array.push_back(convert(item, depth + 1));
    return Value(std::move(array));
  }

  Value convert_object(const simdjson::dom::object& source, int depth) const {
    Object object;
    object.reserve(source.size());
    std::unordered_set<std::string_view> seen;
    for (const auto& field : source) {
      if (!seen.insert(field.key).second)
        fail("{}: the key \"{}\" stands twice in one JSON object", where_, field.key);
      object.emplace_back(std::string(field.key), convert(field.value, depth + 1));
    }
    return Value(std::move(object));
  }

  std::string_view where_;
  const ParseLimits& limits_;
};

}  // namespace

Value parse(std::string_view text, std::string_view where, const ParseLimits& limits) {
  if (text.size() > limits.max_bytes)
    fail("{}: {} bytes of JSON where at most {} are accepted", where, text.size(),
         limits.max_bytes);
  simdjson::dom::parser parser;
  element root;
  const auto error = parser.parse(simdjson::padded_string(text.data(), text.size())).get(root);
  if (error) fail("{}: not valid JSON: {}", where, simdjson::error_message(error));
  return Converter(where, limits).convert(root, 0);
}

Value parse_file(const std::string& path, const ParseLimits& limits) {
  return parse(read_whole_file(path, static_cast<int64_t>(limits.max_bytes)), path, limits);
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

}  // namespace

std::string quoted(std::string_view text) {
  std::string out;
  append_quoted(out, beginning(text));
  return beginning(text).size() < text.size() ? out + "..." : out;
}

namespace {

void append_double(std::string& out, double value) {
  if (!std::isfinite(value)) {  // JSON has no such numbers
    out += "null";
    return;
  }
  char buffer[40];
  const float narrow = static_cast<float>(value);
  const auto end = static_cast<double>(narrow) == value
                       ? std::to_chars(buffer, buffer + sizeof buffer, narrow).ptr
                       : std::to_chars(buffer, buffer + sizeof buffer, value).ptr;
  const std::string_view text(buffer, end - buffer);
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
    out += std::to_string(value.as_integer());
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
  const std::string text = dump(value);
  const std::string_view shown = beginning(text);
  return shown.size() < text.size() ? std::string(shown) + "..." : text;
}

}  // namespace invar::json
