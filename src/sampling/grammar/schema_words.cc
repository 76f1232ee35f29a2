#include "sampling/grammar/schema_words.h"

#include <algorithm>
#include <charconv>

#include "base/error.h"

namespace invar::grammar {

namespace {

using json::Value;

constexpr std::string_view kCombinations[] = {"$ref",
                                              "allOf",
                                              "anyOf",
                                              "oneOf",
                                              "not",
                                              "if",
                                              "then",
                                              "else",
                                              "dependentRequired",
                                              "dependentSchemas"};
constexpr std::string_view kPlain[] = {"type",
                                       "enum",
                                       "const",
                                       "minimum",
                                       "maximum",
                                       "exclusiveMinimum",
                                       "exclusiveMaximum",
                                       "multipleOf",
                                       "minLength",
                                       "maxLength",
                                       "pattern",
                                       "format",
                                       "items",
                                       "prefixItems",
                                       "additionalItems",
                                       "minItems",
                                       "maxItems",
                                       "uniqueItems",
                                       "contains",
                                       "minContains",
                                       "maxContains",
                                       "properties",
                                       "required",
                                       "additionalProperties",
                                       "unevaluatedProperties",
                                       "unevaluatedItems",
                                       "patternProperties",
                                       "propertyNames",
                                       "minProperties",
                                       "maxProperties",
                                       "nullable",
                                       kLark,
                                       kExcluded};
// Their values are a schema, a list of schemas, or names with schemas; or no schema at all.
constexpr std::string_view kOfSchema[] = {"items",
                                          "additionalItems",
                                          "additionalProperties",
                                          "unevaluatedItems",
                                          "unevaluatedProperties",
                                          "propertyNames",
                                          "contains",
                                          "not",
                                          "if",
                                          "then",
                                          "else",
                                          "contentSchema"};
constexpr std::string_view kOfNames[] = {"properties",  "patternProperties", "$defs",
                                         "definitions", "dependentSchemas",  "dependencies"};
constexpr std::string_view kOfValues[] = {"enum",     "const",    "default",           "example",
                                          "examples", "required", "dependentRequired", "type"};

template <size_t N>
bool among(std::string_view word, const std::string_view (&words)[N]) {
  return std::find(std::begin(words), std::end(words), word) != std::end(words);
}

Value normal_value(const std::string& word, const Value& value);

Value normal_names(const Value& names) {
  if (!names.is_object()) return names;
  json::Object out;
  for (const auto& [name, schema] : names.as_object())
    out.emplace_back(name, schema.is_array() ? schema : normal_schema(schema));
  return out;
}

Value normal_list(const Value& list) {
  json::Array out;
  for (const Value& one : list.as_array()) out.push_back(normal_schema(one));
  return out;
}

Value normal_value(const std::string& word, const Value& value) {
  if (among(word, kOfValues)) return value;
  if (among(word, kOfNames)) return normal_names(value);
  if (value.is_array()) return normal_list(value);
  return among(word, kOfSchema) || value.is_object() ? normal_schema(value) : value;
}

// The third draft says of a property whether it is required.
void move_required(Value& schema) {
  const Value* properties = schema.find("properties");
  if (!properties || !properties->is_object()) return;
  json::Object kept;
  json::Array required;
  if (const Value* found = schema.find("required"); found && found->is_array())
    required = found->as_array();
  for (const auto& [name, property] : properties->as_object()) {
    const Value* flag = property.find("required");
    if (!flag || !flag->is_bool()) {
      kept.emplace_back(name, property);
      continue;
    }
    if (flag->as_bool()) required.push_back(name);
    json::Object without;
    for (const auto& [word, value] : property.as_object())
      if (word != "required") without.emplace_back(word, value);
    kept.emplace_back(name, std::move(without));
  }
  schema.set("properties", std::move(kept));
  if (!required.empty()) schema.set("required", std::move(required));
}

// Lists of names and schemas had one word.
void divide_dependencies(Value& schema) {
  const Value* found = schema.find("dependencies");
  if (!found || !found->is_object()) return;
  const json::Object all = found->as_object();
  for (const auto& [name, value] : all) {
    const char* word = value.is_array() ? "dependentRequired" : "dependentSchemas";
    Value of = schema.find(word) ? *schema.find(word) : Value(json::Object());
    of.set(name, value);
    schema.set(word, std::move(of));
  }
}

}  // namespace

bool is_annotation(std::string_view word) {
  return !among(word, kCombinations) && !among(word, kPlain);
}

bool is_combination(std::string_view word) {
  return among(word, kCombinations);
}

Value normal_schema(const Value& schema) {
  if (schema.is_null()) return true;
  if (!schema.is_object()) return schema;
  Value out = json::Object();
  for (const auto& [word, value] : schema.as_object()) {
    if ((value.is_null() && word != "const") || word == kExcluded) continue;
    const bool is_branch = (word == "then" || word == "else") && !schema.find("if");
    if (is_branch) continue;
    const bool is_ref = word == "$dynamicRef" || word == "$recursiveRef";
    out.set(is_ref ? "$ref" : word, normal_value(word, value));
  }
  move_required(out);
  divide_dependencies(out);
  return out;
}

SchemaReferences::SchemaReferences(const Value& root) : root_(root) {
  for (const char* word : {"$id", "id"})
    if (const Value* id = root.find(word); id && id->is_string())
      base_ = id->as_string().substr(0, id->as_string().find('#'));
  find_names(root);
}

void SchemaReferences::find_names(const Value& value) {
  if (value.is_array())
    for (const Value& one : value.as_array()) find_names(one);
  if (!value.is_object()) return;
  for (const auto& [word, one] : value.as_object()) {
    const bool is_anchor = word == "$anchor" || word == "$dynamicAnchor";
    if (one.is_string() && (word == "$id" || word == "id" || is_anchor))
      names_.try_emplace((is_anchor ? "#" : "") + one.as_string(), &value);
    find_names(one);
  }
}

namespace {

// %41 stands for A.
std::string decoded(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    uint8_t byte = 0;
    const char* digits = text.data() + i + 1;
    const bool is_byte = text[i] == '%' && i + 2 < text.size() &&
                         std::from_chars(digits, digits + 2, byte, 16).ptr == digits + 2;
    out += is_byte ? static_cast<char>(byte) : text[i];
    if (is_byte) i += 2;
  }
  return out;
}

// ~1 stands for / and ~0 for ~.
std::string member_name(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    const std::string_view two = text.substr(i, 2);
    const bool is_escape = two == "~1" || two == "~0";
    out += two == "~1" ? '/' : text[i];
    i += is_escape;
  }
  return out;
}

const Value* step_into(const Value& value, const std::string& name) {
  if (!value.is_array()) return value.find(name);
  size_t index = 0;
  const char* end = name.data() + name.size();
  const bool is_index = std::from_chars(name.data(), end, index).ptr == end && !name.empty();
  return is_index && index < value.as_array().size() ? &value.as_array()[index] : nullptr;
}

}  // namespace

const Value& SchemaReferences::resolve(const Value& ref) const {
  if (!ref.is_string())
    fail_usage("expected a text at $ref of the JSON schema, found {}", json::excerpt(ref));
  const std::string path = ref.as_string();
  const size_t mark = std::min(path.find('#'), path.size());
  const std::string document = path.substr(0, mark);
  const std::string within = mark < path.size() ? decoded(path.substr(mark + 1)) : "";
  const Value* at = nullptr;
  if (document.empty() || document == base_) at = &root_;
  for (const std::string& name : {path, document})
    if (const auto found = names_.find(name); !at && found != names_.end()) at = found->second;
  if (at && !within.empty() && within[0] != '/') {
    const auto found = names_.find("#" + within);
    at = found == names_.end() ? nullptr : found->second;
  } else {
    for (size_t begin = 1; at && begin <= within.size() && !within.empty();) {
      const size_t end = std::min(within.find('/', begin), within.size());
      at = step_into(*at, member_name(within.substr(begin, end - begin)));
      begin = end + 1;
    }
  }
  if (!at) fail_usage("the JSON schema refers to {}, which it does not have", json::quoted(path));
  return *at;
}

}  // namespace invar::grammar
