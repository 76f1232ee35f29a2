#include "frontend/tool_calls.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "base/error.h"

namespace invar {

namespace {

constexpr std::string_view kOpen = "<tool_call>", kClose = "</tool_call>";
constexpr std::string_view kPythonTag = "<|python_tag|>", kSpaces = " \t\r\n";

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
  if (parameters && parameters->is_object()) return *parameters;
  return json::Object{{"type", "object"}, {"properties", json::Object()}};
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

// {"name": ..., "arguments" or "parameters": {...}}
std::optional<ToolCall> read_call(std::string_view text) {
  try {
    const json::Value value = json::parse(text, "a call");
    const json::Value* name = value.find("name");
    const json::Value* arguments = value.find("arguments");
    if (!arguments) arguments = value.find("parameters");
    if (!name || !name->is_string() || !arguments) return std::nullopt;
    return ToolCall{name->as_string(),
                    arguments->is_string() ? arguments->as_string() : json::dump(*arguments)};
  } catch (const Error&) {
    return std::nullopt;
  }
}

// What stands of a call that was cut: its name, and its arguments as far as they come. Nothing
// where the name is not whole.
std::optional<ToolCall> read_cut_call(std::string_view text) {
  const auto take = [&text](std::string_view word) {
    text.remove_prefix(std::min(text.find_first_not_of(kSpaces), text.size()));
    if (!text.starts_with(word)) return false;
    text.remove_prefix(word.size());
    return true;
  };
  if (!take("{") || !take("\"name\"") || !take(":") || !take("\"")) return std::nullopt;
  size_t end = 0;
  while (end < text.size() && text[end] != '"') end += text[end] == '\\' ? 2 : 1;
  if (end >= text.size()) return std::nullopt;
  const std::string quoted = "\"" + std::string(text.substr(0, end + 1));
  ToolCall call{json::parse(quoted, "a call").as_string(), ""};
  text.remove_prefix(end + 1);
  if (!take(",") || !take("\"parameters\"") || !take(":")) return call;
  text.remove_prefix(std::min(text.find_first_not_of(kSpaces), text.size()));
  call.arguments = text;
  return call;
}

// How much of the end of `text` could become `mark`.
size_t beginning_of(std::string_view mark, std::string_view text) {
  for (size_t size = std::min(mark.size() - 1, text.size()); size > 0; --size)
    if (text.ends_with(mark.substr(0, size))) return size;
  return 0;
}

}  // namespace

ToolFormat tool_format_of(std::string_view chat_template) {
  if (chat_template.find(kOpen) != std::string_view::npos) return ToolFormat::tagged;
  if (chat_template.find("\"parameters\"") != std::string_view::npos) return ToolFormat::bare;
  return ToolFormat::none;
}

json::Value form_of_call(const json::Value& tools, const std::string& name) {
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

std::string_view opening_mark(ToolFormat format) {
  return format == ToolFormat::tagged ? kOpen : std::string_view();
}

json::Value form_of_calls(const json::Value& tools, ToolFormat format, bool once) {
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

void ToolCallReader::push(std::string_view piece, std::string& content,
                          std::vector<ToolCall>& calls) {
  if (format_ == ToolFormat::none) {
    content += piece;
    return;
  }
  held_ += piece;
  if (format_ == ToolFormat::tagged) {
    read_tagged(content, calls);
    if (!called_) text_first_ |= !content.empty();
    return;
  }
  if (format_ != ToolFormat::bare) return;
  // A text that does not begin like a call is none.
  const size_t begin = held_.find_first_not_of(kSpaces);
  if (begin == std::string::npos) return;
  const std::string_view text = std::string_view(held_).substr(begin);
  if (text[0] == '{' || text.starts_with(kPythonTag) || kPythonTag.starts_with(text)) return;
  content += held_;
  held_.clear();
  format_ = ToolFormat::none;
}

void ToolCallReader::read_tagged(std::string& content, std::vector<ToolCall>& calls) {
  while (true) {
    if (!in_call_) {
      const size_t open = held_.find(kOpen);
      const size_t shown =
          open == std::string::npos ? held_.size() - beginning_of(kOpen, held_) : open;
      content.append(held_, 0, shown);
      held_.erase(0, shown);
      if (open == std::string::npos) return;
      in_call_ = true;
    }
    const size_t close = held_.find(kClose);
    if (close == std::string::npos) return;
    const std::string_view inner =
        std::string_view(held_).substr(kOpen.size(), close - kOpen.size());
    if (const auto call = read_call(inner)) {
      calls.push_back(*call);
      if (!std::exchange(called_, true)) text_first_ |= !content.empty();
    } else {
      content.append(held_, 0, close + kClose.size());
    }
    held_.erase(0, close + kClose.size());
    in_call_ = false;
  }
}

void ToolCallReader::finish(std::string& content, std::vector<ToolCall>& calls) {
  const std::string text = std::exchange(held_, {});
  if (format_ == ToolFormat::arguments) {
    calls.push_back({name_, text});
    return;
  }
  std::string_view inner = text;
  if (inner.starts_with(kPythonTag)) inner.remove_prefix(kPythonTag.size());
  if (in_call_) inner.remove_prefix(kOpen.size());  // the closing tag was a stop
  auto call = inner.empty() ? std::nullopt : read_call(inner);
  // Nothing of an answer that is held to a call is text, wherever it is cut.
  const bool is_cut = format_ == ToolFormat::object && !call;
  if (is_cut) call = read_cut_call(inner);
  if (call)
    calls.push_back(*call);
  else if (!is_cut)
    content += text;
}

}  // namespace invar
