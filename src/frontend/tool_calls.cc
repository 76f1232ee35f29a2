#include "frontend/tool_calls.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"

namespace invar {

namespace {

constexpr std::string_view kClose = "</tool_call>";

// The function of a tool, checked.
const json::Value& function_of(const json::Value& tool) {
  const json::Value* function = tool.find("function");
  const json::Value* name = function ? function->find("name") : nullptr;
  if (!name || !name->is_string())
    fail_usage(
        "expected {{\"type\": \"function\", \"function\": {{\"name\": ...}}}} as a tool, "
        "found {}",
        json::excerpt(tool));
  return *function;
}

json::Value parameters_of(const json::Value& function) {
  const json::Value* parameters = function.find("parameters");
  if (!parameters || !parameters->is_object() || parameters->as_object().empty())
    return json::Object{{"type", "object"}, {"properties", json::Object()}};
  if (parameters->find("type") || !parameters->find("properties")) return *parameters;
  json::Value object = *parameters;  // arguments are one
  object.set("type", "object");
  return object;
}

// A schema that stands at `place` of another: what its references meant, they go on to mean.
json::Value moved(const json::Value& schema, const std::string& place) {
  if (schema.is_array()) {
    json::Array items;
    for (const json::Value& item : schema.as_array()) items.push_back(moved(item, place));
    return items;
  }
  if (!schema.is_object()) return schema;
  json::Object members;
  for (const auto& [word, value] : schema.as_object()) {
    const bool is_here = word == "$ref" && value.is_string() && value.as_string().starts_with('#');
    members.emplace_back(word, is_here ? json::Value("#" + place + value.as_string().substr(1))
                                       : moved(value, place));
  }
  return members;
}

// A call of the tool, as the schema at `place` of a larger one. `key`: how it names arguments that
// are of the schema `arguments`.
json::Value schema_of_call(const json::Value& function, const json::Value& arguments,
                           const std::string& key, const std::string& place) {
  const json::Value properties =
      json::Object{{"name", json::Object{{"const", function.find("name")->as_string()}}},
                   {key, moved(arguments, place + "/properties/" + key)}};
  return json::Object{
      {"type", "object"}, {"properties", properties}, {"required", json::Array{"name", key}}};
}

bool is_strict(const json::Value& function) {
  const json::Value* strict = function.find("strict");
  if (strict && !strict->is_null() && !strict->is_bool())
    fail_usage("expected strict of a tool as true or false, found {}", strict->type_name());
  return strict && *strict == json::Value(true);
}

}  // namespace

json::Value grammar_of_call(const json::Value& tools, const std::string& name) {
  json::Array calls;
  for (const json::Value& tool : tools.as_array()) {
    const json::Value& function = function_of(tool);
    if (function.find("name")->as_string() == name)
      return json::Object{{"json", parameters_of(function)}};
    calls.push_back(schema_of_call(function, parameters_of(function), "parameters",
                                   fmt::format("/anyOf/{}", calls.size())));
  }
  if (!name.empty()) fail_usage("tool_choice names {}, which is no tool", json::quoted(name));
  if (calls.empty()) fail_usage("tool_choice asks for a call and there are no tools");
  return json::Object{{"json", json::Object{{"anyOf", std::move(calls)}}}};
}

bool has_strict(const json::Value& tools) {
  return std::ranges::any_of(tools.as_array(),
                             [](const json::Value& tool) { return is_strict(function_of(tool)); });
}

json::Value grammar_of_calls(const json::Value& tools, ToolFormat format, bool once) {
  const bool is_tagged = format == ToolFormat::tagged;
  const char* key = is_tagged ? "arguments" : "parameters";
  json::Array calls;
  for (const json::Value& tool : tools.as_array()) {
    const json::Value& function = function_of(tool);
    const json::Value arguments = is_strict(function)
                                      ? parameters_of(function)
                                      : json::Value(json::Object{{"type", "object"}});
    calls.push_back(
        schema_of_call(function, arguments, key, fmt::format("/anyOf/{}", calls.size())));
  }
  return json::Object{{"calls", json::Object{{"open", std::string(opening_mark(format))},
                                             {"close", std::string(is_tagged ? kClose : "")},
                                             {"once", once},
                                             {"call", json::Object{{"anyOf", std::move(calls)}}}}}};
}

}  // namespace invar
