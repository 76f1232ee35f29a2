#include "sampling/grammar/schema_opposite.h"

#include <algorithm>
#include <vector>

#include "sampling/grammar/schema_words.h"

namespace invar::grammar {

namespace {

using json::Value;

std::optional<Value> other_types(const Value& type) {
  json::Array named = type.is_array() ? type.as_array() : json::Array{type}, others;
  const auto has = [&](const char* one) { return std::ranges::count(named, Value(one)) > 0; };
  if (has("integer") && !has("number")) return std::nullopt;
  for (const char* one : {"object", "array", "string", "number", "boolean", "null"})
    if (!has(one)) others.push_back(one);
  return others.empty() ? Value(false) : Value(json::Object{{"type", std::move(others)}});
}

// One of these is not there.
Value without_one(const json::Array& names) {
  json::Array options;
  for (const Value& name : names)
    if (name.is_string())
      options.push_back(json::Object{
          {"type", "object"}, {"properties", json::Object{{name.as_string(), Value(false)}}}});
  return options.empty() ? Value(false) : Value(json::Object{{"anyOf", std::move(options)}});
}

// One of these is there and is another value.
std::optional<Value> with_another(const json::Object& properties) {
  json::Array options;
  for (const auto& [name, schema] : properties)
    if (const auto other = opposite_schema(schema))
      options.push_back(json::Object{{"type", "object"},
                                     {"properties", json::Object{{name, *other}}},
                                     {"required", json::Array{name}}});
  if (options.empty()) return std::nullopt;
  return json::Object{{"anyOf", std::move(options)}};
}

std::optional<Value> opposite_word(const std::string& word, const Value& value) {
  if (word == "const") return json::Object{{kExcluded, json::Array{value}}};
  if (word == "enum" && value.is_array()) return json::Object{{kExcluded, value}};
  if (word == "type") return other_types(value);
  if (word == "not") return value;
  if (word == "required" && value.is_array()) return without_one(value.as_array());
  if (word == "properties" && value.is_object()) return with_another(value.as_object());
  if (word != "anyOf" || !value.is_array()) return std::nullopt;
  json::Array all;
  for (const Value& one : value.as_array()) {
    const auto other = opposite_schema(one);
    if (!other) return std::nullopt;
    all.push_back(*other);
  }
  return json::Object{{"allOf", std::move(all)}};
}

}  // namespace

Value any_of(Value a, Value b) {
  return json::Object{{"anyOf", json::Array{std::move(a), std::move(b)}}};
}

// To break one word is enough.
std::optional<Value> opposite_schema(const Value& schema) {
  if (schema == Value(true)) return Value(false);
  if (schema == Value(false)) return Value(true);
  if (!schema.is_object()) return std::nullopt;
  json::Array options;
  bool says_nothing = true;
  for (const auto& [word, value] : schema.as_object()) {
    if (is_annotation(word)) continue;
    says_nothing = false;
    if (word == "type" && schema.as_object().size() > 1) continue;  // the others say it better
    if (auto other = opposite_word(word, value)) options.push_back(std::move(*other));
  }
  if (says_nothing) return Value(false);
  if (options.empty()) return std::nullopt;
  if (options.size() == 1) return options[0];
  return json::Object{{"anyOf", std::move(options)}};
}

}  // namespace invar::grammar
